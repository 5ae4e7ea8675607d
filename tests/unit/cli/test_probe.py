"""``gpuwatch probe`` from the command line."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from gpuwatch.cli import main
from gpuwatch.cli.probe import PROBES
from gpuwatch.cli.probe_output import result_json, result_lines, table
from gpuwatch.cli.probe_run import OPTIONS, is_local
from gpuwatch.diagnosis.finding import Advice, Evidence, Finding
from gpuwatch.model import Fact
from gpuwatch.pipeline.known import Known
from gpuwatch.probes.client import Server
from gpuwatch.probes.result import Result
from tests.unit.probes.engine import Engine, serving

FEW = ("--lengths", "300", "--depths", "0.5", "--trials", "1")
QUICK = ("--concurrency", "1", "--from", "256", "--to", "512", "--max-tokens", "4")


def closed_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def test_a_ramp_prints_its_points_and_what_they_mean(capsys):
    with serving(Engine()) as url:
        code = main(["probe", "ramp", "--engine", url, *QUICK])
    out = capsys.readouterr().out
    assert code == 0
    assert out.startswith("probe ramp: vLLM 0.32.0, m at http://127.0.0.1:")
    assert "prefill tok/s" in out
    assert "every length up to 512 tokens goes well: the longest that was asked for" in out


def test_json_is_one_object_and_the_saved_file_is_the_same(capsys, tmp_path):
    saved = tmp_path / "ramp.json"
    with serving(Engine()) as url:
        code = main(["probe", "ramp", "--json", "--engine", url, *QUICK, "-o", str(saved)])
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert (document["schema"], document["probe"], document["complete"]) == (1, "ramp", True)
    assert document["server"]["engine"] == "vllm"
    assert {"name": "max_model_len", "value": 4096, "unit": "tokens"} in document["facts"]
    assert [row["prompt_tokens"] for row in document["rows"]] == [256, 512]
    assert json.loads(saved.read_text()) == document
    assert list(tmp_path.iterdir()) == [saved]


def test_context_reads_the_models_configuration_and_fails_on_request(capsys, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {"architectures": ["X"], "model_type": "llama", "num_hidden_layers": 2, "max_position_embeddings": 2048}
        )
    )
    with serving(Engine()) as url:
        arguments = ["probe", "context", "--engine", url, "--model-config", str(config)]
        assert main([*arguments, "--quiet"]) == 0
        assert capsys.readouterr().out == ""
        assert main([*arguments, "--fail-on", "warning"]) == 1
        assert "rope_context" in capsys.readouterr().out
        assert main([*arguments, "--fail-on", "critical"]) == 0


def test_context_reads_the_log(capsys, tmp_path):
    log = tmp_path / "vllm.log"
    log.write_text(
        "INFO 11-29 12:00:00 [core.py:1] x\nINFO 11-29 12:00:01 [kv_cache_utils.py:1] GPU KV cache size: 2,560 tokens\n"
    )
    with serving(Engine(metrics=False)) as url:
        assert main(["probe", "context", "--engine", url, "--log", str(log), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"name": "kv_pool_tokens_printed", "value": 2560.0, "unit": "tokens"} in document["facts"]
    assert [finding["id"] for finding in document["findings"]] == ["max_model_len_exceeds_kv"]


# What is refused, in one line


@pytest.mark.parametrize("host", ["example.invalid:8000", "http://10.1.2.3:8000", "https://[2001:db8::1]"])
def test_a_server_elsewhere_needs_yes(capsys, host):
    assert main(["probe", "ramp", "--engine", host]) == 2
    err = capsys.readouterr().err
    assert "not on this machine" in err
    assert "--yes" in err
    assert err.count("\n") == 1


def test_which_hosts_are_this_machine():
    assert is_local("localhost")
    assert is_local("127.0.0.1")
    assert is_local("::1")
    assert is_local(socket.gethostname())
    assert not is_local("192.0.2.1")
    assert not is_local("example.invalid")


def test_nothing_that_answers_is_exit_code_three(capsys):
    assert main(["probe", "ramp", "--engine", f"http://127.0.0.1:{closed_port()}"]) == 3
    err = capsys.readouterr().err
    assert "connection refused" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("probe", ["ramp", "needle"])
def test_a_probe_without_one_answer_is_exit_code_three(capsys, probe):
    first = 1 if probe == "ramp" else 4
    with serving(Engine(mishap=lambda tokens, number: 400 if number > first and tokens > 10 else None)) as url:
        assert (
            main(["probe", probe, "--engine", url, "--concurrency", "1", *(QUICK[2:] if probe == "ramp" else FEW)]) == 3
        )
    assert re.search("No request was answered|No question in a long text was answered", capsys.readouterr().out)


def test_an_address_without_a_port_is_named_as_such(capsys):
    assert main(["probe", "ramp", "--engine", "foo"]) == 2
    assert capsys.readouterr().err == "gpuwatch probe: --engine foo: no port; expected http://HOST:PORT\n"


def test_a_configuration_file_that_is_not_there_is_wrong_usage(capsys):
    assert main(["probe", "ramp", "--engine", "http://127.0.0.1:1", "--config", "nofile.toml"]) == 2
    err = capsys.readouterr().err
    assert "nofile.toml" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--concurrency", "0"], "'0' is not a whole number from 1 to 1,024"),
        (["--concurrency", "1,x"], "'x' is not a whole number"),
        (["--for", "nan"], "'nan' is not a number"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_values_that_make_no_sense_are_refused(capsys, arguments, words):
    with pytest.raises(SystemExit) as caught:
        main(["probe", "ramp", "--engine", "http://127.0.0.1:1", *arguments])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_a_result_that_cannot_be_saved_is_said_before_anything_is_sent(capsys, tmp_path):
    there = tmp_path / "there.json"
    there.write_text("{}")
    engine = Engine()
    with serving(engine) as url:
        assert main(["probe", "ramp", "--engine", url, "-o", str(there)]) == 2
        assert "exists already" in capsys.readouterr().err
        assert main(["probe", "ramp", "--engine", url, "-o", str(tmp_path / "no" / "x.json")]) == 2
        assert "does not exist" in capsys.readouterr().err
    assert not engine.asked


def test_a_result_that_can_no_longer_be_saved_is_printed_all_the_same(capsys, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    engine = Engine()

    def mishap(tokens, number):
        if tokens == 512:
            folder.rmdir()

    engine.mishap = mishap
    with serving(engine) as url:
        assert main(["probe", "ramp", "--engine", url, *QUICK, "-o", str(folder / "x.json")]) == 2
    out, err = capsys.readouterr()
    assert "up to 512 tokens goes well" in out
    assert "No such file or directory; the result is printed, not saved" in err


def test_a_result_is_saved_where_stdout_fails(tmp_path):
    saved = tmp_path / "x.json"
    with serving(Engine()) as url, Path("/dev/full").open("w") as full:
        arguments = [sys.executable, "-m", "gpuwatch", "probe", "ramp", "--engine", url, *QUICK, "-o", str(saved)]
        process = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, timeout=120, check=False)
    assert process.returncode != 0
    assert json.loads(saved.read_text())["complete"] is True


@pytest.mark.parametrize("dangling", [False, True])
def test_a_file_that_was_made_while_the_probe_ran_is_not_replaced(capsys, tmp_path, dangling):
    saved, engine = tmp_path / "x.json", Engine()

    def mishap(tokens, number):
        if tokens == 512:
            saved.symlink_to(tmp_path / "nowhere") if dangling else saved.write_text("precious")

    engine.mishap = mishap
    with serving(engine) as url:
        assert main(["probe", "ramp", "--engine", url, *QUICK, "-o", str(saved)]) == 2
        out, err = capsys.readouterr()
        assert "up to 512 tokens goes well" in out
        assert f"-o {saved}: exists by now; the result is printed, not saved" in err
        assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
        assert saved.is_symlink() if dangling else saved.read_text() == "precious"
        assert main(["probe", "ramp", "--engine", url, *QUICK, "-o", str(saved)]) == 2
        assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("mishap", [500, "garbage"])
@pytest.mark.parametrize("probe", ["ramp", "context", "prefix", "needle", "order", "digits"])
def test_a_server_that_fails_every_completion_is_exit_code_three(capsys, probe, mishap):
    engine = Engine(mishap=lambda tokens, number: mishap if tokens > 30 else None)
    with serving(engine) as url:
        assert main(["probe", probe, "--engine", url]) == 3
    captured = capsys.readouterr()
    assert captured.out or captured.err.count("\n") == 1


def test_a_missing_log_or_certificate_file_is_named(capsys, tmp_path):
    with serving(Engine()) as url:
        assert main(["probe", "context", "--engine", url, "--log", str(tmp_path / "none.log")]) == 2
        assert "none.log" in capsys.readouterr().err
        assert main(["probe", "context", "--engine", url, "--ca-file", str(tmp_path / "none.pem")]) == 2
        assert "none.pem: no such file" in capsys.readouterr().err


# Ctrl-C


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_probe_prints_what_it_has_and_says_so(how):
    engine = Engine()
    reached = threading.Event()

    def mishap(tokens, number):
        if tokens < 400:
            return None
        reached.set()
        return "hang"

    engine.mishap = mishap
    with serving(engine) as url:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpuwatch", "probe", "ramp", "--engine", url, "--json", *QUICK],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert reached.wait(60)
            process.send_signal(how)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 130, err
    document = json.loads(out)
    assert (document["complete"], document["stopped_because"]) == (False, "interrupted")
    assert document["rows"][0]["prompt_tokens"] == 256
    assert "Traceback" not in err


def test_an_interrupt_before_the_first_answer_ends_at_once():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "gpuwatch", "probe", "needle", "--engine", url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            listener.settimeout(60)
            connection, _ = listener.accept()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)  # it would wait for the answer for 300
            connection.close()
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 130
    assert "Traceback" not in err


def test_a_terminal_sees_a_bar_that_goes_away_and_a_pipe_sees_none():
    with serving(Engine()) as url:
        command = [sys.executable, "-m", "gpuwatch", "probe", "ramp", "--engine", url, *QUICK]
        assert subprocess.run(command, capture_output=True, check=True, timeout=120).stderr == b""
        terminal, end = os.openpty()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=end)
        os.close(end)
        seen = b""
        with suppress(OSError):  # the end of a terminal is an error
            while part := os.read(terminal, 4096):
                seen += part
        os.close(terminal)
        assert process.wait(120) == 0
    text = seen.decode()
    assert "1 x 512 tokens" in text
    assert "░" in text
    assert text.endswith(" \r")


# What is printed


RESULT = Result(
    "ramp",
    Server("http://user@host:1/x?key=1", "sglang", "0.5", "m"),
    1.5,
    complete=False,
    stopped_because="why",
    facts=(("a", float("nan"), ""),),
    rows=({"prompt_tokens": 2048, "ttft_s": 0.12345, "gpu_peak_bytes": 3 << 30, "kv_usage_ratio": 0.5, "x": None},),
    findings=(
        Finding("rope_context", "warning", "t", "c", 0.9, (Evidence("seen"),), advice=(Advice("change it", "--a"),)),
    ),
    conclusion=("It ends\x1b[31m here.",),
    advice=(Advice("change it", "--a"), Advice("more")),
    drawing=("▁▂▃",),
)


def test_the_text_of_a_result():
    lines = result_lines(RESULT)
    assert lines[0] == "probe ramp: SGLang 0.5, m at http://host:1/x"
    assert lines[1] == "Not complete: why."
    assert "▁▂▃" in lines
    assert "\x1b" not in "".join(lines)
    assert sum("change it" in line for line in lines) == 1
    assert lines[-1] == "→ more"


def test_a_table_has_units_in_its_heads_and_no_column_of_unknowns():
    assert table(RESULT.rows) == [
        "prompt tokens  ttft s  gpu peak GiB  kv usage",
        "        2,048   0.123          3.00      50 %",
    ]


def test_the_json_has_no_value_that_json_lacks():
    document = result_json(RESULT)
    assert document["facts"] == [{"name": "a", "value": None, "unit": ""}]
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["server"]["url"] == "http://host:1/x"


def test_every_probe_has_options_help_and_a_module(capsys):
    assert set(PROBES) == set(OPTIONS) == {"ramp", "prefix", "needle", "order", "digits", "context"}
    for name in PROBES:
        with pytest.raises(SystemExit) as caught:
            main(["probe", name, "--help"])
        assert caught.value.code == 0
        assert "--engine URL" in capsys.readouterr().out


def test_the_ledgers_pool_is_the_one_that_plan_prints(capsys):
    assert main(["plan", "Qwen3-8B", "--engine-version", "0.32.0", "--context", "4096", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["kv"]["tokens"]
    facts = {"model": Fact("model", "Qwen3-8B", "x"), "max_model_len": Fact("max_model_len", 4096, "x")}
    assert Known(facts).ledger_tokens("vllm", "0.32.0", 80 * 2**30) == planned
    assert Known(facts).ledger_tokens("vllm", "0.32.0", None) is None
    assert Known().ledger_tokens("vllm", "0.32.0", 80 * 2**30) is None
    assert Known(facts).ledger_tokens("other", "", 80 * 2**30) is None
