"""A bundle holds what an incident needs, plays like the original, and has no name and no secret in it."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path

import pytest
from unit.pipeline import scenario

from gpuwatch.alerts.rulefile import load, shipped_paths
from gpuwatch.cli import main
from gpuwatch.cli.hidden import written
from gpuwatch.model import Batch, Fact, LogEvent, series
from gpuwatch.pipeline.replay import replay
from gpuwatch.recording import Header, Reader, Writer

LOGS = Path(__file__).resolve().parents[3] / "tests" / "fixtures" / "logs"
HOST, SERVER = "payroll-gpu-17", "payroll-gpu-17.corp.example.com:8000"
UUID = "GPU-1f2e3d4c-5b6a-7988-a1b2-c3d4e5f60718"
CARD = {"host": "vm", "gpu": "0", "uuid": UUID, "xid": "79"}
SECRETS = ("payroll", "example.com", "alice", "hf_AbCdEfGhIjKlMnOpQrSt", "s3cr3t", "10.20.30.40", UUID, "my diary")


def moved(batch: Batch) -> Batch:
    """A batch of the scenario on a machine with a name."""
    keys = tuple(
        tuple((name, {scenario.HOST: HOST, scenario.SERVER: SERVER}.get(value, value)) for name, value in key)
        for key in batch.keys
    )
    facts = tuple(Fact(f.key, f.value, "/home/alice/vllm.log", f.line, f.time, SERVER) for f in batch.facts)
    return Batch(batch.target.replace(scenario.SERVER, SERVER), batch.time, keys, batch.values, facts=facts)


@pytest.fixture
def recorded(tmp_path):
    """A storm on a machine with a name, with secrets where they could be."""
    path = tmp_path / "payroll-gpu-17.rec"
    writer = Writer(path, Header(HOST, scenario.START, 1.0, "test", note="alice@payroll-gpu-17"))
    extra = Batch(
        f"log:/home/alice/logs/{HOST}.log",
        scenario.START,
        (series("gpuwatch_log_lines_total", host=HOST, log=f"/home/alice/logs/{HOST}.log", server=SERVER),),
        (7.0,),
        facts=(
            Fact("flag.api-key", "--api-key s3cr3t", "command line of process 7", server=SERVER),
            Fact("flag.model", "/home/alice/models/tiny", "command line of process 7", server=SERVER),
            Fact("server.url", f"http://alice:s3cr3t@{SERVER}", "/home/alice/vllm.log", server=SERVER),
        ),
        events=(
            LogEvent(
                "torch_oom", f"{HOST}: token hf_AbCdEfGhIjKlMnOpQrSt of 10.20.30.40, prompt: 'my diary'",
                "/home/alice/vllm.log", 3, scenario.START, SERVER, (("where", UUID), ("who", "alice@10.20.30.40")),
            ),
        ),
    )  # fmt: skip
    card = Batch(
        "nvml", scenario.START, (series("gpuwatch_gpu_memory_used_bytes", host=HOST, uuid=UUID, gpu="0"),), (7e10,)
    )
    for number, (time, batches) in enumerate(scenario.storm()):
        for batch in [*batches, *([scenario.LAUNCH, extra] if not number else [])]:
            writer.write(moved(batch) if batch is not extra else extra)
        writer.write(card)
        writer.tick(time)
    writer.close()
    return path


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "alice.log"
    lines = (LOGS / "vllm_0_31_0_killed.log").read_text().splitlines()
    asked = "Received request cmpl-1: prompt: 'my diary', params: x"
    given = "{'model_tag': '/home/alice/models/tiny', 'host': '10.20.30.40', 'port': 8106, 'api_key': ['s3cr3t']}"
    lines[5:5] = [
        f"(APIServer pid=1) INFO 11-29 15:46:09 [logger.py:40] {asked}",
        f"(APIServer pid=1) INFO 11-29 15:46:09 [api_utils.py:286] non-default args: {given}",
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def unpack(path):
    """Return the members by name, recordings as the text that is in them."""
    members = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            assert member.isfile()
            content = archive.extractfile(member).read()
            name = member.name.partition("/")[2]
            members[name] = gzip.decompress(content).decode() if name.endswith(".rec") else content.decode()
    return members


def test_nothing_of_the_machine_and_no_secret_is_in_it(recorded, log, tmp_path, capsys):
    out = tmp_path / "incident.tar.gz"
    assert main(["bundle", str(recorded), str(log), "-o", str(out)]) == 0
    members = unpack(out)
    assert set(members) == {
        "README.txt", "findings.md", "findings.json", "facts.json", "manifest.json",
        "recordings/host-1.rec", "logs/alice.log.txt",
    }  # fmt: skip
    for name, text in members.items():
        for secret in SECRETS:
            where = text.replace("logs/alice.log", "")
            assert secret not in where.replace("alice.log", ""), (name, secret)
    said = capsys.readouterr()
    assert said.out.startswith(f"{out}: ")
    assert said.err == ""


def test_the_recording_in_it_comes_to_the_same_findings_at_the_same_times(recorded, tmp_path):
    out = tmp_path / "incident.tar.gz"
    assert main(["bundle", str(recorded), "-o", str(out), "--quiet"]) == 0
    with tarfile.open(out) as archive:
        (tmp_path / "copy.rec").write_bytes(archive.extractfile("incident/recordings/host-1.rec").read())
    rules = load(shipped_paths())

    def found(path):
        return [
            (result.time, [(f.id, f.since, f.state, f.caused_by, len(f.evidence), f.advice) for f in result.findings])
            for result in replay(path, rules)
        ]

    assert found(tmp_path / "copy.rec") == found(recorded)
    assert "kv_preemption_storm" in {finding[0] for finding in found(recorded)[-1][1]}
    ticks = list(Reader(tmp_path / "copy.rec").ticks())
    labels = dict(next(batch for batch in ticks[1].batches if batch.target.startswith("engine:")).keys[0])
    assert (labels["host"], labels["server"]) == ("host-1", "host-2:8000")
    card = dict(next(batch for batch in ticks[1].batches if batch.target == "nvml").keys[0])
    assert card["uuid"] == "GPU-00000001-0000-0000-0000-000000000000"


def test_the_recognised_lines_of_a_log_and_its_facts_are_in_it(log, tmp_path):
    out = tmp_path / "incident.tgz"
    assert main(["bundle", str(log), "-o", str(out), "--quiet"]) == 0
    members = unpack(out)
    excerpt = members["logs/alice.log.txt"].splitlines()
    assert excerpt[-1].endswith("See stack trace (above) for the root cause.")
    assert excerpt[-1].startswith("92: ")
    facts = {fact["key"]: fact["value"] for fact in json.loads(members["facts.json"])}
    assert (facts["kv.tokens"], facts["engine"], facts["version"]) == (5120, "vllm", "0.31.0")
    found = json.loads(members["findings.json"])
    assert (found["schema"], found["findings"][0]["id"]) == (1, "worker_died")
    manifest = json.loads(members["manifest.json"])
    assert [(given["kind"], given["lines"]) for given in manifest["inputs"]] == [("engine_log", 105)]
    assert "worker_died" in members["findings.md"]


def test_system_prompts_and_keys_of_a_launch_are_in_no_part_and_a_cause_ends_with_the_error(tmp_path):
    path = tmp_path / "server.log"
    head = "INFO 11-30 11:00:0"
    path.write_text(
        f"{head}1 [utils.py:233] non-default args: {{'model': 'm', 'hf_overrides': {{'auth': 'INNERSECRET'}}}}\n"
        f'{head}2 [api_server.py:9] vllm serve m --chat-template "You are SYSTEMSECRET prompt"\n'
        "ERROR 11-30 11:00:06 [core.py:700] RuntimeError: CUDA error: an illegal memory access was encountered "
        "AWS_SECRET_ACCESS_KEY=awsSECRET1234\n"
    )
    out = tmp_path / "b.tar.gz"
    assert main(["bundle", str(path), "-o", str(out), "--quiet"]) == 0
    members = unpack(out)
    for secret in ("INNERSECRET", "SYSTEMSECRET", "awsSECRET"):
        assert not [name for name, text in members.items() if secret in text]
    (found,) = json.loads(members["findings.json"])["findings"]
    assert "an illegal memory access was encountered." in found["cause"]


def test_free_text_in_the_settings_of_a_launch_and_a_quoted_prompt_are_in_no_part(tmp_path):
    path = tmp_path / "server.log"
    head = "(APIServer pid=1) INFO 11-30 11:00:0"
    path.write_text(
        f"{head}1 [utils.py:233] non-default args: {{'model': 'm', 'override_generation_config': {{'system': 'You are "
        "WRITTEN\\'s bot'}, 'default_chat_template_kwargs': {'sys': \"Be WRITTEN\"}, 'served_model_name': ['m'], "
        "'rope_scaling': {'rope_type': 'yarn', 'factor': 4.0}, 'dtype': 'bfloat16', 'max_model_len': 8192}\n"
        "(APIServer pid=1) ERROR 11-30 11:00:06 [serving_completion.py:116] ValueError: The decoder prompt "
        "(length 9000) is longer than the maximum model length of 8192. prompt 'what's WRITTEN here' Make sure of it\n"
    )
    out = tmp_path / "b.tar.gz"
    assert main(["bundle", str(path), "-o", str(out), "--quiet"]) == 0
    members = unpack(out)
    assert not [name for name, text in members.items() if "WRITTEN" in text]
    log = members["logs/server.log.txt"]
    assert "{'rope_type': 'yarn', 'factor': 4.0}, 'dtype': 'bfloat16', 'max_model_len': 8192}" in log
    assert "'served_model_name': ['m']" in log
    assert "longer than the maximum model length of 8192." in log


def test_only_values_of_several_words_are_cut_out_of_settings():
    for kept in (
        "{'a': 'one', 'b': [1, 2], 'c': {'d': 'two'}}",
        '--speculative-config \'{"method": "ngram", "num_speculative_tokens": 3}\'',
        "ServerArgs(model_path='org/name', json_model_override_args='{\"a\": 1}', dtype='auto')",
    ):
        assert written(kept) == kept
    assert written("ServerArgs(system='be nice', dtype='auto')") == "ServerArgs(system=<redacted>, dtype='auto')"
    assert written('{"sys": "be nice", "n": 1}') == '{"sys": <redacted>, "n": 1}'
    assert written('{"sys": "be nice') == '{"sys": <redacted>'


def test_the_result_of_a_probe_is_packed_under_other_names_and_a_file_that_is_nothing_is_said_to_be_left_out(
    log, tmp_path, capsys
):
    probe, nothing = tmp_path / "ramp.json", tmp_path / "notes.txt"
    server = {"url": f"http://{SERVER}", "engine": "vllm"}
    data = {"schema": 1, "probe": "ramp", "server": server, "conclusion": [f"{HOST}.corp.example.com carries 4."]}
    probe.write_text(json.dumps(data))
    nothing.write_text("buy milk\n")
    assert main(["bundle", "-o", str(tmp_path / "b.tar.gz"), str(log), str(probe), str(nothing)]) == 0
    assert "notes.txt: nothing was recognised in it" in capsys.readouterr().err
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        text = archive.extractfile("b/probes/ramp.json").read().decode()
        manifest = json.load(archive.extractfile("b/manifest.json"))
    assert json.loads(text)["server"]["url"] == "http://<host>:8000"
    assert "payroll" not in text
    assert "result of probe ramp" in [item["kind"] for item in manifest["inputs"]]


def test_the_result_of_a_probe_with_an_address_that_is_none_is_packed(log, tmp_path):
    probe = tmp_path / "ramp.json"
    probe.write_text(json.dumps({"schema": 1, "probe": "ramp", "server": {"url": "http://[bad:80"}}))
    assert main(["bundle", "-o", str(tmp_path / "b.tar.gz"), str(log), str(probe)]) == 0


def test_a_host_of_two_letters_has_another_name_as_well(tmp_path):
    path = tmp_path / "a.rec"
    writer = Writer(path, Header("vm", scenario.START, 1.0, "test"))
    keys = (series("gpuwatch_host_memory_total_bytes", host="vm"), series("gpuwatch_gpu_xid_errors_total", **CARD))
    for second in range(90):
        writer.write(Batch("nvml", scenario.START + 1000 * second, keys, (1e9, float(second > 60))))
        writer.tick(scenario.START + 1000 * second)
    writer.close()
    assert main(["bundle", "-o", str(tmp_path / "b.tar.gz"), str(path)]) == 0
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        found = json.load(archive.extractfile("b/findings.json"))["findings"]
    assert {item["labels"]["host"] for item in found} == {"host-1"}


def test_what_cannot_be_read_is_named_and_the_rest_is_packed(log, tmp_path, capsys):
    out = tmp_path / "incident.tar.gz"
    assert main(["bundle", str(tmp_path / "gone.log"), str(log), "-o", str(out), "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == f"gpuwatch bundle: {tmp_path}/gone.log: no such file\n"
    assert [left["why"] for left in json.loads(said.out)["left_out"]] == ["no such file"]
    assert main(["bundle", str(tmp_path / "gone.log"), "-o", str(tmp_path / "b.tar.gz")]) == 2
    assert not (tmp_path / "b.tar.gz").exists()


def test_files_in_which_nothing_is_recognised_are_no_bundle(log, tmp_path, capsys):
    nothing = tmp_path / "notes.txt"
    nothing.write_text("buy milk\n")
    assert main(["bundle", str(nothing), "-o", str(tmp_path / "b.tar.gz")]) == 3
    assert "gpuwatch bundle: nothing to pack: in no file was anything recognised\n" in capsys.readouterr().err
    assert not (tmp_path / "b.tar.gz").exists()
    assert main(["bundle", str(nothing), str(log), "-o", str(tmp_path / "b.tar.gz"), "--quiet"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "x.zip"], "-o x.zip: the name must end in .tar.gz or .tgz"),
        (["-o", "no/x.tgz"], "no/x.tgz: the folder no does not exist"),
        (["-o", "old.tgz"], "old.tgz: exists already; choose another name"),
        (["-o", "x.tgz", "--for", "0"], "--for is 0; allowed: 1 to 86400 seconds"),
        (["-o", "x.tgz", "-"], "-: is no regular file; save it to one first"),
        (["-o", "x.tgz", "."], ".: is no regular file; save it to one first"),
        (["-o", "x.tgz", "old.tgz", "--for", "5"],
         "files are packed as they are; --engine, --log and --for are for watching this machine"),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.tgz").write_text("precious")
    assert main(["bundle", *words]) == 2
    assert capsys.readouterr().err == f"gpuwatch bundle: {message}\n"
    assert (tmp_path / "old.tgz").read_text() == "precious"


def test_this_machine_is_watched_where_no_file_is_named(log, tmp_path, monkeypatch):
    (tmp_path / "gpuwatch.toml").write_text(
        'host = "node"\ngpus = false\ndiscovery = false\nkernel_log = "off"\ninterval = 0.2\n'
    )
    monkeypatch.setenv("GPUWATCH_CONFIG", str(tmp_path / "gpuwatch.toml"))
    out = tmp_path / "now.tar.gz"
    assert main(["bundle", "--log", str(log), "--for", "2", "-o", str(out), "--quiet"]) == 0
    members = unpack(out)
    assert {"recordings/now.rec", "logs/alice.log.txt", "doctor.json"} <= set(members)
    assert main(["bundle", "--for", "1", "-o", str(tmp_path / "nothing.tar.gz"), "--quiet"]) == 3
    assert not (tmp_path / "nothing.tar.gz").exists()
