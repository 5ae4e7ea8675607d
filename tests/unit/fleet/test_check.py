"""``gpuwatch check --prometheus`` as a script sees it."""

from __future__ import annotations

import json

import fleet_data
import pytest
from fleet_data import host_name

from gpuwatch.cli import fleet as cli_fleet
from gpuwatch.cli import main
from gpuwatch.clock import ManualClock
from tests.unit.fleet.conftest import NOW


@pytest.fixture(autouse=True)
def at_the_end_of_the_samples(monkeypatch):
    """The made-up samples are of a fixed time; the command looks at that time."""
    monkeypatch.delenv("GPUWATCH_CONFIG", raising=False)
    original = cli_fleet.fleet

    def then(config, args):
        driver = original(config, args)
        driver.clock = ManualClock(NOW * 1000)
        return driver

    monkeypatch.setattr(cli_fleet, "fleet", then)


def test_findings_are_printed_and_decide_the_exit_code(server, capsys):
    assert main(["check", "--prometheus", server.url, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    (read,) = report["inputs"]
    assert (read["path"], read["kind"], read["up"], read["detail"]) == (server.url, "prometheus", True, "")
    assert {found["id"] for found in report["findings"]} == {
        "kv_preemption_storm", "engine_down", "gpu_lost", "gpu_headroom_low",
    }  # fmt: skip
    lost = next(found for found in report["findings"] if found["id"] == "gpu_lost")
    assert "dropped off" in lost["cause"]
    assert lost["labels"]["host"] == "gpu-058"
    assert main(["check", "--prometheus", server.url, "--quiet", "--fail-on", "never"]) == 0


def test_for_people_it_is_text(server, capsys):
    assert main(["check", "--prometheus", server.url]) == 1
    out = capsys.readouterr().out
    assert "● kv_preemption_storm" in out
    assert "--max-num-seqs 64 → 11" in out
    places = [line.split() for line in out.splitlines() if line.startswith("    at     ")]
    assert len(places) == 5  # two GPUs of one machine are short of memory
    assert all(place[1] == "host" for place in places)
    assert ["at", "host", "gpu-058,", "gpu"] in [place[:4] for place in places]


def test_a_machine_that_is_no_longer_scraped_is_named(server, capsys):
    assert main(["check", "--prometheus", server.url]) == 1
    assert f"host {host_name(fleet_data.GONE)}: not scraped for 2 min 15 s\n" in capsys.readouterr().out
    main(["check", "--prometheus", server.url, "--json"])
    gone = f"host {host_name(fleet_data.GONE)}: not scraped for 2 min 15 s"
    assert [said for said in json.loads(capsys.readouterr().out)["problems"] if said.startswith("host ")] == [gone]


SCRAPED = "max by (cluster, host) (gpuwatch_build_info)"


def last_seen(*hosts):
    """Answer which machines were last scraped when, so many seconds ago; nothing fires and nothing else is known."""
    rows = [{"metric": {"host": name}, "value": [NOW, str(NOW - ago)]} for name, ago in hosts]
    alive = [{"metric": {"host": name}, "value": [NOW, "1"]} for name, ago in hosts if ago < 60]

    def answer(query):
        if "rules" in query:
            return None
        result = rows if "timestamp(" in query else alive if query == SCRAPED else []
        data = {"status": "success", "data": {"resultType": "vector", "result": result}}
        return 200, "application/json", json.dumps(data).encode()

    return answer


def test_machines_that_are_all_gone_are_not_called_healthy(server, capsys):
    server.fault = last_seen(("node-a", 180), ("node-b", 206))
    assert main(["check", "--prometheus", server.url]) == 3
    out = capsys.readouterr().out
    assert "host node-a: not scraped for 3 min" in out
    assert "host node-b: not scraped for 3 min 26 s" in out
    assert "no longer scrapes any host" in out
    assert main(["check", "--prometheus", server.url, "--quiet"]) == 3
    assert "no longer scrapes any host" in capsys.readouterr().err


def test_one_machine_that_is_gone_does_not_speak_for_the_others(server, capsys):
    server.fault = last_seen(("node-a", 180), ("node-b", 15))
    assert main(["check", "--prometheus", server.url]) == 0
    out = capsys.readouterr().out
    assert "host node-a: not scraped for 3 min" in out
    assert "node-b" not in out


def test_it_looks_for_as_long_as_it_is_told(server, capsys):
    assert main(["check", "--prometheus", server.url, "--for", "20", "--json", "--interval", "5"]) == 1
    capsys.readouterr()
    assert sum("host_engines" in query or "timestamp" in query for query in server.asked) == 5


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((503, "text/plain", b"busy"), "HTTP 503"),
        ((200, "text/html", b"<html>"), "text/html"),
        ((500, "application/json", b'{"status":"error","errorType":"x","error":"boom\\u001b[31m!"}'), "boom!"),
    ],
)
def test_nothing_to_judge_is_three_and_says_why(server, capsys, answer, words):
    server.fault = lambda _query: answer
    assert main(["check", "--prometheus", server.url]) == 3
    assert words in capsys.readouterr().out
    assert main(["check", "--prometheus", server.url, "--json"]) == 3
    captured = capsys.readouterr()
    assert json.loads(captured.out)["inputs"][0]["up"] is False
    assert words in captured.err


def test_a_prometheus_that_does_not_know_us_is_nothing_to_judge(server, capsys):
    server.fault = lambda query: (
        (200, "application/json", b'{"status":"success","data":{"resultType":"vector","result":[]}}')
        if "gpuwatch" in query or "ALERTS" in query
        else None
    )
    assert main(["check", "--prometheus", server.url]) == 3
    assert "has no series of gpuwatch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--prometheus", "ftp://h"], "allowed: http://HOST:PORT"),
        (["--prometheus", "http://u:p@h"], "no user or password in the address"),
        (["--prometheus", "http://h", "--engine", "http://e"], "--prometheus cannot be used with --engine"),
        (["--prometheus", "http://h", "--for", "0.5"], "--for is 0.5"),
    ],
)
def test_what_cannot_work_is_one_line(capsys, arguments, why):
    assert main(["check", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert why in captured.err
    assert captured.err.count("\n") == 1


def test_the_login_of_the_configuration_is_used_for_its_own_address_only(server, capsys, tmp_path):
    (tmp_path / "password").write_text("secret\n")
    config = tmp_path / "gpuwatch.toml"
    config.write_text(f'[prometheus]\nurl = "{server.url}"\nuser = "u"\npassword_file = "{tmp_path / "password"}"\n')
    main(["check", "--config", str(config), "--prometheus", server.url, "--quiet"])
    assert all(headers["Authorization"].startswith("Basic ") for headers in server.headers)
    server.headers.clear()
    config.write_text(config.read_text().replace(server.url, "http://other:9090"))
    main(["check", "--config", str(config), "--prometheus", server.url, "--quiet"])
    assert server.headers
    assert not any("Authorization" in headers for headers in server.headers)
    capsys.readouterr()


def test_a_secret_that_cannot_be_read_is_one_line(server, capsys, tmp_path):
    config = tmp_path / "gpuwatch.toml"
    config.write_text(f'[prometheus]\nurl = "{server.url}"\ntoken_file = "/nonexistent/token"\n')
    assert main(["check", "--config", str(config), "--prometheus", server.url]) == 2
    assert "/nonexistent/token: No such file or directory" in capsys.readouterr().err


STORE_DOWN = ["store-2: connection refused"]


def test_what_fires_in_a_partial_answer_is_shown_and_decides_the_exit_code(server, capsys):
    server.warnings = STORE_DOWN
    assert main(["check", "--prometheus", server.url, "--json"]) == 1
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert {found["id"] for found in report["findings"]} == {
        "kv_preemption_storm", "engine_down", "gpu_lost", "gpu_headroom_low",
    }  # fmt: skip
    (read,) = report["inputs"]
    assert (read["up"], read["reason"]) == (True, "partial")
    assert read["detail"].endswith("the answer is not complete: store-2: connection refused")
    assert "not everything was judged: " in captured.err
    assert main(["check", "--prometheus", server.url]) == 1
    out = capsys.readouterr().out
    assert "● gpu_lost" in out
    assert "not everything was judged: " in out
    assert "store-2: connection refused" in out


@pytest.mark.parametrize(("fail_on", "code"), [("critical", 1), ("never", 3)])
def test_a_partial_answer_never_says_that_all_is_well(server, capsys, fail_on, code):
    server.warnings = STORE_DOWN
    assert main(["check", "--prometheus", server.url, "--quiet", "--fail-on", fail_on]) == code
    server.fault = last_seen(("node-a", 15))
    assert main(["check", "--prometheus", server.url, "--quiet"]) == 0  # the fault's own answer is whole
    server.fault = lambda query: (
        (
            200,
            "application/json",
            b'{"status":"success","isPartial":true,"data":{"resultType":"vector","result":[]}}',
        )
        if query.startswith(("ALERTS", "gpuwatch_finding_info"))
        else last_seen(("node-a", 15))(query)
    )
    assert main(["check", "--prometheus", server.url, "--quiet"]) == 3
    capsys.readouterr()


def test_a_name_that_two_programs_use_is_named(server, capsys):
    row = {"metric": {"host": "node-a"}, "value": [NOW, "2"]}
    both = json.dumps({"status": "success", "data": {"resultType": "vector", "result": [row]}}).encode()
    server.fault = lambda query: (
        (200, "application/json", both) if "without (version)" in query else last_seen(("node-a", 15))(query)
    )
    assert main(["check", "--prometheus", server.url]) == 0
    assert "host node-a: 2 programs have this name and are added up: " in capsys.readouterr().out
