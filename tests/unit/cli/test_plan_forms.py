"""Launch commands as shells, images, compose files and Kubernetes hold them."""

from __future__ import annotations

import json
import shlex

import pytest

from gpuwatch.cli import UsageError, main
from gpuwatch.cli.plan_command import read_launch

MODEL = "Qwen/Qwen3-8B"


def planned(capsys, command, *arguments):
    code = main(["plan", *arguments, "--gpu-memory", "80", "--json", "--from-command", command])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("image", "rest", "version"),
    [
        ("lmsysorg/sglang:v0.5.3-cu126", "python3 -m sglang.launch_server --model-path x", "0.5.3"),
        ("lmsysorg/sglang:v0.5.3rc0", "sglang serve x", "0.5.3"),
        ("lmsysorg/sglang:latest", "sglang serve x", ""),
        ("vllm/vllm-openai:v0.10.2", "--model x", "0.10.2"),
        ("registry:5000/team/vllm-openai:0.11.0-x86_64", "--model x", "0.11.0"),
        ("vllm/vllm-openai@sha256:0a1b", "--model x", ""),
        ("rocm/vllm:rocm6.4_vllm_0.10.1", "vllm serve x", "0.10.1"),
        ("nvcr.io/nvidia/vllm:25.09-py3", "vllm serve x", ""),
        ("lmcache/vllm-openai:v0.3.9", "--model x", ""),
        ("lmsysorg/sglang:v0.5.3", "vllm serve x", ""),
        ("docker.io/lmcache/vllm-openai:v0.3.9", "x", ""),
        ("registry.corp/ml/vllm:0.3.1", "vllm serve x", ""),
        ("registry.corp/ml/vllm:v0.8.5", "vllm serve x", "0.8.5"),
        ("registry.corp/ml/vllm:v1.4.2", "vllm serve x", ""),
        ("vllm/vllm-openai:v1.4.2", "--model x", "1.4.2"),
        ("nvcr.io/nvidia/ai-dynamo/sglang-runtime:0.6.1", "sglang serve x", ""),
        ("--add-host sglang:10.0.0.2 lmsysorg/sglang:v0.5.3", "sglang serve x", "0.5.3"),
        ("-e IMAGE=vllm/vllm-openai:v0.6.0 vllm/vllm-openai:v0.11.0", "--model x", "0.11.0"),
    ],
)
def test_the_name_of_an_image_says_the_version_of_the_engine_that_it_is_called_after(image, rest, version):
    assert read_launch(f"docker run --gpus all {image} {rest}").image == version


def test_where_the_version_is_from_is_said(capsys):
    notes = planned(capsys, f"docker run vllm/vllm-openai:v0.8.5 {MODEL}")[1]["notes"]
    assert "vllm 0.8.5 by the name of its image (--engine-version)" in notes
    notes = planned(capsys, f"docker run registry.corp/ml/vllm:0.3.1 vllm serve {MODEL}")[1]["notes"]
    assert any(note.endswith("assumed (--engine-version)") for note in notes)


def test_flags_of_an_sglang_image_are_those_of_its_version(capsys):
    start = "docker run lmsysorg/sglang:{} sglang serve Qwen/Qwen3-8B --cuda-graph-max-bs{} 16"
    command = start.format("v0.5.3", "")
    _, plan = planned(capsys, command)
    assert (plan["flags"], plan["command"]) == ([], command)
    assert planned(capsys, start.format("v0.5.3", "-decode"))[1]["command"] == command
    later = start.format("v0.5.23", "-decode")
    assert planned(capsys, later)[1]["command"] == later


def test_sglang_serve_takes_its_model_bare(capsys):
    code, plan = planned(capsys, f"sglang serve {MODEL} --tp 2")
    assert (code, plan["models"][0]["name"], plan["models"][0]["tp"], plan["flags"]) == (0, MODEL, 2, [])


@pytest.mark.parametrize("bare", ["", "Qwen/Qwen3-32B "])
def test_the_launcher_of_sglang_is_told_its_model_by_a_flag(capsys, bare):
    start = "python -m sglang.launch_server"
    code, plan = planned(capsys, f"{start} {bare}--context-length 1000000", *([] if bare else ["Qwen/Qwen3-32B"]))
    assert [fault["flag"] for fault in plan["flags"]] == ["--model-path", "--context-length"]
    assert plan["command"] == f"{start} --context-length 40960 --model-path Qwen/Qwen3-32B"
    assert code == 0


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("docker run --entrypoint vllm vllm/vllm-openai:v0.11.0 serve x -tp 2", ("x", "-tp", "2")),
        ("docker run --entrypoint=vllm --gpus all img serve x", ("x",)),
        ("docker run --entrypoint python3 img -m vllm.entrypoints.openai.api_server --model x", ("--model", "x")),
        ("docker run --entrypoint bash vllm/vllm-openai:v0.11.0 -c 'cd /srv && vllm serve x'", ("x",)),
        ("docker run --entrypoint '' img vllm serve x", ("x",)),
        ("podman run --entrypoint '[\"vllm\", \"serve\"]' vllm/vllm-openai:v0.11.0 x -tp 2", ("x", "-tp", "2")),
        ("podman run --entrypoint '[\"sh\",\"-c\"]' vllm/vllm-openai:v0.11.0 'vllm serve x'", ("x",)),
        ("docker run --entrypoint /start.sh vllm/vllm-openai:v0.11.0 x -tp 2", ("x", "-tp", "2")),
        ("docker run --entrypoint /start vllm/vllm-openai:v0.11.0 --model x", ("--model", "x")),
        ('echo "to stop: pkill -f \\"vllm serve y\\"" ; vllm serve x', ("x",)),
        ('echo "Starting vllm serve now" && vllm serve x -tp 2', ("x", "-tp", "2")),
        ("echo Starting vllm serve now && vllm serve x -tp 2", ("x", "-tp", "2")),
        ("echo Starting vllm serve now && bash -c 'vllm serve x'", ("x",)),
        ('curl -d "run vllm serve --port abc" y; vllm serve x', ("x",)),
        ('logger "vllm serve starting"; bash -lc "vllm serve x"', ("x",)),
        ("sudo tmux new-session -d 'vllm serve x'", ("x",)),
        ("'vllm serve x -tp 2'", ("x", "-tp", "2")),
        ('bash -c "vllm serve x -tp 2"', ("x", "-tp", "2")),
        ("ssh host 'nohup vllm serve x > log'", ("x",)),
        ("ssh host 'docker run vllm/vllm-openai:v0.11.0 --model x'", ("--model", "x")),
        ("docker run vllm/vllm-openai:v1 --model x --a 'vllm serve y'", ("--model", "x", "--a", "vllm serve y")),
        ("kubectl exec pod -- sh -lc 'exec vllm serve x'", ("x",)),
        ('["vllm", "serve", "x", "--served-model-name", "a b"]', ("x", "--served-model-name", "a b")),
        ('command: ["sh", "-c", "vllm serve x"]', ("x",)),
        ("command: >\n  vllm serve x\n  -tp 2\n", ("x", "-tp", "2")),
        ("args: |\n  vllm serve x", ("x",)),
        ('command:\n  - vllm\n  - serve\n  - "x"\n  - --dtype=half', ("x", "--dtype=half")),
        ("- vllm\n- serve\n- x   # the model\n- --seed=1  # same", ("x", "--seed=1")),
        ('- vllm\n- serve\n- x\n- "{\\"a\\": 1}"\n- \'it\'\'s\'', ("x", '{"a": 1}', "it's")),
        ("command:\n  - sh\n  - -c\n  - |\n    vllm serve x -tp 2\n", ("x", "-tp", "2")),
        ('command: ["vllm", "serve"]\nargs: ["x", "-tp", "2"]', ("x", "-tp", "2")),
        ('args: ["vllm serve x"]\ncommand: ["/bin/sh", "-c"]\nimage: vllm/vllm-openai:v0.11.0', ("x",)),
        ('image: vllm/vllm-openai:v0.11.0\ncommand: ["--model", "x"]', ("--model", "x")),
        ("image: vllm/vllm-openai:v0.11.0\ncommand: --model x", ("--model", "x")),
        ("- vllm serve x -tp 2", ("x", "-tp", "2")),
        (
            "services:\n  a:\n    command: nginx\n  b:\n    image: vllm/vllm-openai:v0.11.0\n    command: --model x",
            ("--model", "x"),
        ),
        ("[ -d x ] && vllm serve x", ("x",)),
    ],
)  # fmt: skip
def test_an_engine_is_found_however_it_is_started(text, arguments):
    assert read_launch(text).command.arguments == arguments


@pytest.mark.parametrize(
    "text",
    [
        "docker run --entrypoint nvidia-smi vllm/vllm-openai:v0.11.0 serve x",
        "command: >\n  --model x --tensor-parallel-size 2",
        'bash -c "echo vllm"',
        'echo "vllm serve x"',
        "docker run --entrypoint bash vllm/vllm-openai:v0.11.0 -c nvidia-smi",
        "[1, 2]",
    ],
)
def test_what_starts_no_engine_is_said_to(text):
    with pytest.raises(UsageError, match="has no engine in it"):
        read_launch(text)


def test_a_line_within_quotes_is_repaired_within_them(capsys):
    line = "cd /srv && VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve Qwen/Qwen3-8B --max-model-len 65536{} --api-key {}"
    image = "docker run -e HF_TOKEN={} --entrypoint bash vllm/vllm-openai:v0.11.0 -c {}"
    _, plan = planned(capsys, image.format("hf_abcdefgh", shlex.quote(line.format(" --swap-space 4", "s3cret"))))
    words = shlex.split(plan["command"])
    assert words[:-1] == shlex.split(image.format("<redacted>", ""))
    assert shlex.split(words[-1]) == shlex.split(line.format("", "'<redacted>'"))
    assert plan["serves"]


def test_lines_in_front_of_the_command_stay_lines():
    text = "args: |\n  cd /srv\n  exec vllm serve x -tp 2"
    assert read_launch(text).repaired(()) == "cd /srv\nexec vllm serve x -tp 2"
    listed = "- sh\n- -c\n- |\n  cd /srv\n  vllm serve x"
    assert shlex.split(read_launch(listed).repaired(())) == ["sh", "-c", "cd /srv\nvllm serve x"]


def test_a_file_of_settings_may_say_the_model_of_sglang(capsys):
    _, plan = planned(capsys, "python3 -m sglang.launch_server --config cfg.yaml", MODEL)
    assert plan["flags"] == []


def test_counts_are_carried_over_in_digits(capsys):
    start = f"sglang serve {MODEL}"
    _, plan = planned(capsys, f"{start} --max-model-len 32K --max-num-batched-tokens=4k")
    assert plan["command"] == f"{start} --context-length 32768 --chunked-prefill-size=4000"


def test_a_line_within_a_line_keeps_both():
    line = shlex.join(["ssh", "host", shlex.join(["bash", "-c", "vllm serve x -tp 2 2>&1 | tee log"])])
    assert read_launch(line).repaired(()) == line


@pytest.mark.parametrize(
    ("version", "command", "repaired"),
    [
        ("0.9.2", "vllm serve {} --kv-cache-memory-bytes 20G", "vllm serve {}"),
        ("0.9.2", "vllm serve {} --max-cudagraph-capture-size 64", "vllm serve {}"),
        ("0.32.0", "vllm serve {} --max-num-partial-prefills 4", "vllm serve {}"),
        ("0.32.0", "vllm serve {} --chunked-prefill-size -1", "vllm serve {}"),
        ("0.32.0", "vllm serve {} --chunked-prefill-size 4096", "vllm serve {} --max-num-batched-tokens 4096"),
        ("0.32.0", "vllm serve {} --tp 2", "vllm serve {} --tensor-parallel-size 2"),
        ("0.5.23", "sglang serve {} --max-model-len auto", "sglang serve {}"),
        ("0.5.23", "sglang serve {} --max-model-len 4096", "sglang serve {} --context-length 4096"),
    ],
)
def test_a_value_that_the_other_flag_does_not_take_is_not_carried_over(capsys, version, command, repaired):
    code, plan = planned(capsys, command.format(MODEL), "--engine-version", version)
    assert (code, plan["command"]) == (0, repaired.format(MODEL))
    (fault,) = plan["flags"]
    assert ("cannot be carried over" in fault["problem"]) == (fault["replacement"] is None)


MANIFESTS = {
    "a shell's line": (
        'image: vllm/vllm-openai:v0.8.5\ncommand: ["/bin/sh", "-c"]\nargs: ["vllm serve x --enable-reasoning"]',
        "0.8.5",
    ),
    "an entry point": (
        "services:\n  x:\n    image: vllm/vllm-openai:v0.9.1\n    entrypoint: [vllm, serve]\n    command: [x]",
        "0.9.1",
    ),
    "an interpreter": (
        "image: lmsysorg/sglang:v0.5.3\ncommand: [python3]\nargs: [-m, sglang.launch_server, --model-path, x]",
        "0.5.3",
    ),
    "an image without a version": ("image: my/vllm:latest\nentrypoint: [vllm]\ncommand: [serve, x]", ""),
}


@pytest.mark.parametrize(("text", "version"), MANIFESTS.values(), ids=MANIFESTS)
def test_the_image_of_a_container_says_the_version_whatever_its_command_starts(text, version):
    assert read_launch(text).image == version


@pytest.mark.parametrize(
    "variables",
    [
        "environment:\n  - VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",
        'environment:\n  VLLM_ALLOW_LONG_MAX_MODEL_LEN: "1"',
        'env:\n  - name: VLLM_ALLOW_LONG_MAX_MODEL_LEN\n    value: "1"\n  - name: A\n    valueFrom: {b: c}',
    ],
)
def test_variables_beside_the_command_of_a_container_are_read(capsys, variables):
    rest = f"command: [--model, {MODEL}, --max-model-len, '131072', --swap-space, '4']\n"
    text = f"image: vllm/vllm-openai:v0.33.0\n{rest}"
    refused = planned(capsys, text)[1]
    taken = planned(capsys, f"{text}{variables}")[1]
    assert [flag["flag"] for flag in refused["flags"]] == ["--swap-space", "--max-model-len"]
    assert [flag["flag"] for flag in taken["flags"]] == ["--swap-space"]
    apart = "the repaired command is shown without the image and the variables beside it, which stay"
    assert apart in taken["notes"]
    assert apart not in refused["notes"]


def test_variables_in_forms_that_no_container_has_are_passed_over():
    text = "image: 5\nenv: 7\nenvironment: [1, {a: b}, {name: [1], value: x}]\ncommand: vllm serve x"
    assert read_launch(text).command.arguments == ("x",)


@pytest.mark.parametrize("end", ["\\", "`", "^"])
def test_a_line_goes_on_as_shells_powershell_and_cmd_have_it(end):
    text = f"vllm serve x {end}\n  --max-model-len 4096 {end}\n  --enforce-eager"
    assert read_launch(text).command.arguments == ("x", "--max-model-len", "4096", "--enforce-eager")


def test_a_refused_form_is_reported_counted_as_meant_and_repaired(capsys):
    told = f"vllm serve {MODEL} --max-num-seqs 1k stray --enable-prefix-caching False"
    _, plan = planned(capsys, told)
    assert [(flag["flag"], flag["replacement"]) for flag in plan["flags"]] == [
        ("--max-num-seqs", "--max-num-seqs 1000"),
        ("--enable-prefix-caching", "--no-enable-prefix-caching"),
    ]
    assert plan["command"] == f"vllm serve {MODEL} --max-num-seqs 1000 --no-enable-prefix-caching"
    assert "vLLM refuses words that belong to no flag; the repaired command leaves them out: 'stray'" in plan["notes"]
    _, again = planned(capsys, plan["command"])
    assert again["flags"] == []
    assert again["kv"] == plan["kv"]


def test_an_ambiguous_name_is_repaired_with_all_of_its_words(capsys):
    told = f"python -m sglang.launch_server --model-path {MODEL} --cuda-graph-bs 1 2 4 --pp 1"
    _, plan = planned(capsys, told)
    assert plan["command"] == f"python -m sglang.launch_server --model-path {MODEL} --pp-size 1"


def test_an_alias_of_a_later_version_takes_the_name_that_lasts(capsys):
    told = f"vllm serve {MODEL} --device-memory-utilization 0.8"
    _, plan = planned(capsys, told, "--engine-version", "0.30.0")
    assert plan["command"] == f"vllm serve {MODEL} --gpu-memory-utilization 0.8"


TWO_SERVICES = """
services:
  small:
    image: vllm/vllm-openai:v0.11.0
    command: --model Qwen/Qwen3-8B
  large:
    image: vllm/vllm-openai:v0.11.0
    command: --model Qwen/Qwen3-4B
"""


@pytest.mark.parametrize(
    ("text", "others"),
    [
        ("vllm serve Qwen/Qwen3-8B &\nvllm serve Qwen/Qwen3-4B --port 8001 --swap-space 4 &", "Qwen/Qwen3-4B"),
        ("vllm serve Qwen/Qwen3-8B && vllm serve Qwen/Qwen3-4B", "Qwen/Qwen3-4B"),
        (TWO_SERVICES, "Qwen/Qwen3-4B"),
        ("pip install vllm && vllm serve Qwen/Qwen3-8B", ""),
        ("vllm serve Qwen/Qwen3-8B; docker logs vllm", ""),
    ],
)
def test_engines_that_are_not_read_are_named(capsys, text, others):
    assert main(["plan", "--json", "--from-command", text]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    named = [note for note in notes if note.startswith("only the first engine is read")]
    assert [note.rpartition(": ")[2] for note in named] == [others] * bool(others)


@pytest.mark.parametrize(
    ("words", "odd"),
    [
        ("vllm serve Qwen/Qwen3-8B -tp2 -gmu 0.5", "-tp2, -gmu"),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-8B -tp 2", "-tp"),
        ("vllm serve Qwen/Qwen3-8B -tp 2 -O3 -cc.mode=3 -dp=1 -q fp8", ""),
    ],
)
def test_short_flags_that_no_version_has_are_named(capsys, words, odd):
    assert main(["plan", "--json", "--from-command", words]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    named = [note.rpartition(": ")[2] for note in notes if "no such short flag" in note]
    assert named == [odd] * bool(odd)
