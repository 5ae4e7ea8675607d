"""``gpuwatch diagnose``: what people and programs get, and what never gets out."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuwatch.cli import FINE, FOUND, NOTHING, WRONG, main
from gpuwatch.cli.diagnose import Progress
from gpuwatch.cli.markdown import public
from gpuwatch.recording import Header, Writer

ROOT = Path(__file__).resolve().parents[3]
FREE = (
    "(EngineCore pid=4) ERROR 11-29 10:00:00 [core.py:1] ValueError: Free memory on device cuda:0 (4.07/23.55 GiB) on "
    "startup is less than desired GPU memory utilization (0.8, 18.84 GiB). Decrease GPU memory utilization or reduce "
    "GPU memory used by other processes.\n"
)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(FREE)
    return str(path)


@pytest.fixture
def novel(tmp_path):
    path = tmp_path / "novel.txt"
    path.write_text("It was the best of times.\n" * 50)
    return str(path)


def run(capsys, *args):
    code = main(["diagnose", *args])
    return code, *capsys.readouterr()


def test_people_get_the_kind_the_cause_the_evidence_with_its_place_and_the_change(capsys, log):
    code, out, err = run(capsys, log)
    assert code == FINE
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == f"{log}: engine log, vllm, 1 lines"
    assert "startup_gpu_shared" in out
    assert any(line.strip().startswith("seen") and line.endswith(f"[{log}:1]") for line in lines)
    assert "→" in out


def test_json_is_the_documented_object(capsys, log, novel):
    code, out, _ = run(capsys, "--json", log, novel, "--flags", "vllm serve m --gpu-memory-utilization 0.8")
    assert code == FINE
    document = json.loads(out)
    assert document["schema"] == 1
    assert [(each["path"], each["kind"], each["engine"]) for each in document["inputs"]] == [
        (log, "engine_log", "vllm"),
        (novel, "unknown", ""),
        ("--flags", "flags", "vllm"),
    ]
    first = document["findings"][0]
    assert first["id"] == "startup_gpu_shared"
    assert first["severity"] == "critical"
    assert {"title", "cause", "confidence", "evidence", "advice", "caused_by", "state", "since", "labels"} <= set(first)
    assert 0 <= first["confidence"] <= 1
    assert {"source": log, "line": 1}.items() <= first["evidence"][0].items()
    assert {"text", "name", "value", "unit"} <= set(first["evidence"][0])
    assert all(set(advice) == {"text", "flag", "from", "to"} for advice in first["advice"])
    assert isinstance(document["not_enough_evidence"], list)


def test_a_command_with_a_quote_that_does_not_close_is_refused(capsys):
    code, _, err = run(capsys, "--flags", "vllm serve 'x")
    assert code == WRONG
    assert err == "gpuwatch diagnose: --flags cannot be split into words: No closing quotation\n"


@pytest.mark.parametrize(("limit", "code"), [("never", FINE), ("critical", FOUND), ("warning", FOUND), ("info", FOUND)])
def test_the_exit_code_is_one_only_where_it_is_asked_for(capsys, log, limit, code):
    assert run(capsys, log, "--fail-on", limit)[0] == code
    assert run(capsys, log)[0] == FINE


def test_nothing_readable_is_two_with_one_line_for_each_file(capsys, tmp_path):
    empty = tmp_path / "empty"
    empty.touch()
    code, out, err = run(capsys, str(empty), str(tmp_path), str(tmp_path / "missing"))
    assert code == WRONG
    assert out == ""
    assert err.splitlines() == [
        f"gpuwatch diagnose: {empty}: is empty",
        f"gpuwatch diagnose: {tmp_path}: is a folder; name the files in it",
        f"gpuwatch diagnose: {tmp_path / 'missing'}: no such file",
    ]


def test_one_unreadable_file_among_others_is_said_and_is_no_failure(capsys, log, tmp_path):
    code, out, err = run(capsys, "--json", log, str(tmp_path / "missing"))
    assert code == FINE
    assert "no such file" in err
    assert json.loads(out)["inputs"][1] == {
        "path": str(tmp_path / "missing"),
        "kind": "unknown",
        "engine": "",
        "engine_version": "",
        "lines": 0,
        "note": "no such file",
    }


def test_files_of_something_else_are_three_and_say_so(capsys, novel):
    code, out, _ = run(capsys, novel)
    assert code == NOTHING
    assert "no line of it is of a kind that gpuwatch knows" in out
    assert "no findings" in out


def test_a_recording_without_a_complete_tick_is_three_and_says_so(capsys, tmp_path, log):
    path = tmp_path / "empty.rec"
    Writer(path, Header(host="node", created=1_700_000_000_000, interval=1.0, program="test")).close()
    code, _, err = run(capsys, str(path))
    assert (code, err) == (NOTHING, f"gpuwatch diagnose: {path}: holds no complete tick\n")
    assert run(capsys, str(path), str(log))[0] == FINE


def test_a_command_alone_can_be_judged(capsys):
    code, out, _ = run(capsys, "--json", "--flags", "vllm serve m --chunked-prefill-size 8192")
    assert code == FINE
    assert json.loads(out)["findings"][0]["id"] == "flag_unknown"


@pytest.mark.parametrize(
    ("args", "words"), [((), "nothing to read"), (("x", "--json", "--markdown"), "exclude each other")]
)
def test_wrong_usage_is_two_with_one_line(capsys, args, words):
    code, _, err = run(capsys, *args)
    assert code == WRONG
    assert err.count("\n") == 1
    assert words in err


def test_quiet_prints_nothing_but_the_exit_code_stays(capsys, log):
    assert run(capsys, log, "--quiet", "--fail-on", "critical") == (FOUND, "", "")


def test_text_of_a_log_cannot_steer_the_terminal(capsys, tmp_path):
    path = tmp_path / "evil\x1b]0;x\x07.log"
    path.write_text(FREE.replace("cuda:0", "cuda\x1b[2J:0\x1b]0;owned\x07"))
    _, out, _ = run(capsys, str(path))
    assert "\x1b" not in out
    assert "\x07" not in out


def test_markdown_is_ready_to_paste(capsys, log):
    code, out, _ = run(capsys, log, "--markdown")
    assert code == FINE
    assert out.startswith("### gpuwatch diagnose\n")
    assert "* `server.log`: engine log, vllm, 1 lines" in out
    assert "`startup_gpu_shared` (critical)" in out
    block = re.search(r"```text\n(.*?)```", out, re.DOTALL)[1]
    assert block.startswith("server.log:1: ")
    assert str(Path(log).parent) not in out


def test_markdown_of_hostile_lines_keeps_its_fences(capsys, tmp_path):
    path = tmp_path / "server.log"
    path.write_text(FREE.replace("ValueError: ", "ValueError: ```</details> "))
    out = run(capsys, str(path), "--markdown")[1]
    assert out.count("```") == 2


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("loading /home/alice/models/x and /Users/bob/y", "loading /home/<user>/models/x and /Users/<user>/y"),
        ("C:\\Users\\carol\\x", "C:\\Users\\<user>\\x"),
        ("config in /root/.cache/x", "config in ~/.cache/x"),
        ("--api-key sk-abcdefghijklmnopqrstuvwx", "--api-key <redacted>"),
        ("Authorization: Bearer abcdefghijklmnopqrstuvwx", "Authorization: <redacted>"),
        ("hf_abcdefghijklmnopqrstuvwx", "<redacted>"),
        ("prompt: 'what I asked'", "prompt: <redacted>"),
        ("connect to (10.1.2.3, 29400)", "connect to (<address>, 29400)"),
        ("bind 127.0.0.1:8000 and 0.0.0.0:8000", "bind 127.0.0.1:8000 and 0.0.0.0:8000"),
        ("driver 580.95.05, CUDA 13.0, nccl 2.21.5", "driver 580.95.05, CUDA 13.0, nccl 2.21.5"),
        ("http://node7.example.internal:8000/metrics", "http://<host>:8000/metrics"),
        ("from https://huggingface.co/Qwen", "from https://huggingface.co/Qwen"),
        ("host gpu-3.cluster.local is down", "host <host> is down"),
        ("alice@gpu-3:~$ vllm serve", "<user>@<host>:~$ vllm serve"),
        ("mail dave@example.com", "mail <user>@<host>"),
        ("Nov 29 10:00:00 gpu-3 kernel: NVRM: x", "Nov 29 10:00:00 <host> kernel: NVRM: x"),
        ("gpu-3:3663:4044 [0] NCCL WARN x", "<host>:3663:4044 [0] NCCL WARN x"),
        ("fe80::1ff:fe23:4567:890a", "<address>"),
        ("GPU-5f3d1e2a-0000-1111-2222-333344445555", "GPU-<uuid>"),
        ("vllm.v1.engine.exceptions.EngineDeadError: x", "vllm.v1.engine.exceptions.EngineDeadError: x"),
        ("at 10:00:00 vLLM 0.32.0 took 3.82 GiB", "at 10:00:00 vLLM 0.32.0 took 3.82 GiB"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "torch.OutOfMemoryError: CUDA out of memory."),
        ("user=bob ok", "user=<user> ok"),
        ("{'username': 'carol', 'user': None}", "{'username': '<user>', 'user': None}"),
        ("uid=1000(bob) gid=1000(staff) user=root", "uid=1000(<user>) gid=1000(<user>) user=root"),
        ("session opened for user bob(uid=0)", "session opened for user <user>(uid=0)"),
        ("to 2001:db8::17 and [2001:db8::1]:8000", "to <address> and [<address>]:8000"),
        ("bind [::1]:8000, fe80::1: down, ::ffff:10.1.2.3", "bind [::1]:8000, <address>: down, <address>"),
        ("VLLM::EngineCore, c10::cuda, at::add, torch::5d", "VLLM::EngineCore, c10::cuda, at::add, torch::5d"),
        ("https://u:pw@h.acme.com:8443/x", "https://<redacted>@<host>:8443/x"),
        ("postgres://u:p@[2001:db8::1]:5432/", "postgres://<redacted>@<host>:5432/"),
        ("from /scratch/alice/x and /mnt/users/bob/y", "from /scratch/<user>/x and /mnt/users/<user>/y"),
        ("author: dave, user_id: dave, user_id=17", "author: <user>, user_id: <user>, user_id=17"),
        ("--api-key abcdefgh ijklmnop user_id: dave", "--api-key <redacted> user_id: <user>"),
        ("xoxb" + "-123456789012-abcdef", "<redacted>"),
    ],
)
def test_what_is_nobodys_business_is_cut_out_and_the_rest_stays(text, shown):
    assert public(text) == shown


def test_files_may_stand_before_between_and_behind_options(capsys, log, novel, tmp_path):
    other = tmp_path / "other.log"
    other.write_text(FREE)
    code, out, err = run(capsys, log, "--flags", "vllm serve m --max-num-seqs 8", str(other), "--json", novel)
    assert (code, err) == (FINE, "")
    assert [each["path"] for each in json.loads(out)["inputs"]] == [log, str(other), novel, "--flags"]


def test_an_option_that_does_not_exist_is_refused_between_files(capsys, log):
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", log, "--nope", log])
    assert ended.value.code == WRONG
    assert "--nope" in capsys.readouterr().err


def test_where_nothing_is_found_what_is_lacking_is_told_without_asking(capsys, tmp_path):
    path = tmp_path / "tail.log"
    path.write_text("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n")
    code, out, _ = run(capsys, str(path))
    assert code == FINE
    assert "no findings\ncould not be judged:\n  worker_died: why the engine ended" in out


def test_the_names_of_this_machine_and_user_are_cut_out(monkeypatch):
    monkeypatch.setenv("USER", "mallory")
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="rack-7"))
    assert public("x mallory y rack-7 z rack-77") == "x <host> y <host> z rack-77"


def test_a_bar_is_drawn_on_a_terminal_while_a_large_file_is_read(tmp_path):
    path = tmp_path / "large.log"
    path.write_text("INFO 11-29 10:00:00 [a.py:1] nothing\n" * 1_200_000)
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "gpuwatch", "diagnose", str(path)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=follower,
    ) as process:
        os.close(follower)
        drawn = b""
        while True:
            try:
                piece = os.read(leader, 4096)
            except OSError:
                break
            if not piece:
                break
            drawn += piece
        out = process.stdout.read().decode()
    os.close(leader)
    assert re.search(r"\r…[^\r]*large\.log \[█*·+\] +\d+ %\r", drawn.decode())
    # What was drawn is wiped away again.
    assert re.search(r"\r +\r$", drawn.decode())
    assert out.startswith(f"{path}: engine log, vllm, 1,200,000 lines")


def test_no_bar_is_drawn_for_small_files_or_where_nobody_looks(capsys, log):
    bar = Progress([log])
    bar.step(log, 500, 1000)
    bar.clear()
    assert capsys.readouterr().err == ""


def test_standard_input_is_a_file_like_others():
    done = subprocess.run(
        [sys.executable, "-m", "gpuwatch", "diagnose", "--json", "-"],
        cwd=ROOT,
        input=FREE.encode(),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == FINE
    assert json.loads(done.stdout)["inputs"][0]["path"] == "stdin"


def test_a_command_on_the_command_line_keeps_its_secrets(capsys):
    flags = (
        "ANTHROPIC_API_KEY=sk-ant-api03-abcdefghijklmnop vllm serve s3://AKIAABCDEFGHIJKLMNOP:hush@bucket/m "
        "--hf-token hf_abcdefghijklmnopqrst --api-key=hushhush --max-model-length 5 --gpu-memory-utilization 0.99"
    )
    for form in ("--json", "--markdown"):
        code, out, _ = run(capsys, form, "--flags", flags)
        assert code == FINE
        assert "--max-model-len" in out
        assert all(secret not in out for secret in ("hush", "hf_abc", "sk-ant", "AKIA"))


def test_the_signature_of_an_address_is_cut_out():
    text = public(
        "GET https://huggingface.co/m?X-Amz-Signature=0badcafe0badcafe&X-Amz-Date=20260601 or ?sv=1&sig=aGVsbG8%3D"
    )
    assert "0badcafe" not in text
    assert "aGVsbG8" not in text
    assert "X-Amz-Date=20260601" in text
