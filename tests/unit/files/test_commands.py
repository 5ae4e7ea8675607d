"""Launch commands are found in shells, containers and manifests; a proposal in a message is no setting."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import pytest

from gpuwatch.sources.files.commands import facts_of_launch, parse_launch, read_commands, read_environment
from gpuwatch.sources.files.samples import Found
from gpuwatch.sources.files.text import Text


def facts(text):
    found = Found()
    read_commands(Text(text.encode()), found)
    read_environment(Text(text.encode()), found)
    return {key: value for key, value, _, _ in found.facts}


def test_a_shell_command_over_several_lines_is_one_command():
    told = facts(
        "$ vllm serve Qwen/Qwen3-8B \\\n    --max-model-len 16k \\\n    -tp 2 --enforce-eager > server.log 2>&1 &\n"
        "$ echo --max-num-seqs 7\n"
    )
    assert told["engine"] == "vllm"
    assert told["model"] == "Qwen/Qwen3-8B"
    assert told["max_model_len"] == 16_000
    assert told["tp"] == 2
    assert told["flag.enforce-eager"] is True
    assert "flag.max-num-seqs" not in told
    assert told["command"].startswith("vllm serve Qwen/Qwen3-8B")


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        ("python3 -m vllm.entrypoints.openai.api_server --model m --max-num-seqs 8", "vllm"),
        ("/opt/venv/bin/python -m vllm.entrypoints.api_server --model m --max-num-seqs 8", "vllm"),
        ("docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.32.0 --model m --max-num-seqs 8", "vllm"),
        ("ExecStart=/opt/venv/bin/vllm serve m --max-num-seqs=8", "vllm"),
        ("+ nohup vllm serve m --max-num-seqs 8", "vllm"),
        ("python -m sglang.launch_server --model-path m --max-running-requests 8", "sglang"),
        ("sglang serve --model-path m --max-running-requests 8", "sglang"),
        ("docker run lmsysorg/sglang:v0.5.9 --model-path m --max-running-requests 8", "sglang"),
    ],
)
def test_every_way_to_start_an_engine_is_known(line, engine):
    told = facts(line)
    assert told["engine"] == engine
    assert told["max_num_seqs"] == 8


@pytest.mark.parametrize(
    "text",
    [
        "usage: vllm serve [model_tag] [options] --model MODEL",
        "Try `vllm serve --help` for more information.",
        "I tried vllm serve yesterday and it crashed.",
        "vllm: error: unrecognized arguments: --foo",
        "(APIServer pid=1) INFO 11-29 10:00:00 [api_server.py:149] args: Namespace(subparser='serve', model='m')",
    ],
)
def test_what_only_mentions_a_command_is_none(text):
    assert "command" not in facts(text)


def test_arguments_of_a_container_are_read_in_each_form_of_yaml():
    block = (
        "containers:\n- image: vllm/vllm-openai:v0.32.0\n  args:\n  - --model\n  - m\n  - --max-num-seqs=8\n  env:\n"
    )
    assert facts(block)["max_num_seqs"] == 8
    inline = 'image: vllm/vllm-openai\nargs: ["--model", "m", "--max-num-seqs", "8"]\n'
    assert facts(inline)["max_num_seqs"] == 8
    over_lines = 'command: ["vllm", "serve", "m",\n  "--max-num-seqs", "8",\n  "--enforce-eager"]\n'
    assert facts(over_lines)["enforce_eager"] is True
    compose = "services:\n  vllm:\n    image: vllm/vllm-openai\n    command: --model m --max-num-seqs 8\n"
    assert facts(compose)["max_num_seqs"] == 8
    folded = "    command: >\n      --model m\n      --max-num-seqs 8\n"
    assert facts(folded)["max_num_seqs"] == 8
    sglang = 'args: ["python3", "-m", "sglang.launch_server", "--max-running-requests", "8"]\n'
    assert facts(sglang)["engine"] == "sglang"


def test_settings_of_the_environment_are_read_where_they_are_set():
    told = facts(
        "VLLM_USE_V1=0\nexport NCCL_P2P_DISABLE=1\n"
        "docker run -e CUDA_VISIBLE_DEVICES=0,1 -e HF_TOKEN=hf_abcdefghijklmnop vllm/vllm-openai --model m\n"
        '        - name: OMP_NUM_THREADS\n          value: "1"\n'
        "      NCCL_SOCKET_IFNAME: eth0\n"
    )
    assert told["env.VLLM_USE_V1"] == "0"
    assert told["env.NCCL_P2P_DISABLE"] == "1"
    assert told["env.CUDA_VISIBLE_DEVICES"] == "0,1"
    assert told["env.HF_TOKEN"] == "set"
    assert told["env.OMP_NUM_THREADS"] == "1"
    assert told["env.NCCL_SOCKET_IFNAME"] == "eth0"


def test_a_setting_that_a_message_proposes_is_not_one():
    told = facts(
        "torch.OutOfMemoryError: CUDA out of memory. try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid\n"
        "DistBackendError: unhandled system error (run with NCCL_DEBUG=INFO for details)\n"
        "To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1\n"
    )
    assert not told


def test_flags_alone_are_of_the_engine_that_knows_them():
    assert parse_launch("--max-model-len 4096").engine == "vllm"
    assert parse_launch("--mem-fraction-static 0.8 --tp 2").engine == "sglang"
    assert parse_launch("nothing of that kind") is None


def test_quotes_that_do_not_close_do_not_hide_the_flags():
    launch = parse_launch('vllm serve m --served-model-name "mine --max-num-seqs 8')
    assert facts_of_launch(launch)["max_num_seqs"] == 8


def test_a_placeholder_is_no_model():
    assert "model" not in facts_of_launch(parse_launch("vllm serve MODEL --max-num-seqs 8"))


@pytest.mark.parametrize(
    "text",
    [
        "args:\n  - --max-num-seqs\n  - '8'\n  # - --block-size\n  # - '32'\n\n  - --enforce-eager\n  env: []\n",
        "args:\n- --max-num-seqs=8  # was 16\n- --enforce-eager\n",
        "args: [--max-num-seqs, 8, --enforce-eager]\n",
        'args: ["--max-num-seqs",  # was 16\n  "8", "--enforce-eager"]\n',
        'command: ["/bin/sh", "-c"]\nargs: ["exec vllm serve m --max-num-seqs 8 --enforce-eager | tee log"]\n',
        "args:\n- -c\n- 'vllm serve m --max-num-seqs 8 --enforce-eager'\n",
        "command: |\n  export X=1\n  vllm serve m --max-num-seqs 8 \\\n    --enforce-eager\n  echo --block-size 32\n",
        '"args": [\n    "--max-num-seqs",\n    "8",\n    "--enforce-eager"\n],\n"image": "vllm/vllm-openai"\n',
        '"Cmd": [\n    "--max-num-seqs",\n    "8",\n    "--enforce-eager"\n],\n',
    ],
    ids=["comments", "end comment", "bare", "flow comment", "shell", "shell item", "script", "json", "docker"],
)
def test_a_list_of_arguments_is_read_to_its_end_whatever_its_form(text):
    told = facts(text)
    assert told["max_num_seqs"] == 8
    assert told["enforce_eager"] is True
    assert "flag.block-size" not in told


def test_a_setting_in_braces_is_one():
    told = facts('env:\n- {name: VLLM_USE_V1, value: "0"}\n- {name: HF_TOKEN, value: hf_abcdefghijklmnop}\n')
    assert told["env.VLLM_USE_V1"] == "0"
    assert told["env.HF_TOKEN"] == "set"


def test_what_is_secret_in_a_command_is_not_kept_and_the_flags_behind_it_are():
    text = (
        'API=abc HF_TOKEN=hf_abcdefghijklmnopqrst vllm serve m --api-key one two --hf-overrides \'{"prompt": "who"}\' '
        "--ssl-keyfile-password=hunter2 --chat-template 'You are Bob, say nothing' --no-such-flag 1"
    )
    command = facts_of_launch(parse_launch(text))["command"]
    assert command.startswith("vllm serve m --api-key ")
    assert command.endswith("--no-such-flag 1")
    assert all(word not in command for word in ("one", "two", "hunter2", "Bob", "hf_abc", "who"))


def test_a_command_without_a_secret_stays_as_it_was_typed():
    text = "vllm serve m  --served-model-name 'a b' | tee log"
    assert facts_of_launch(parse_launch(text))["command"] == text
