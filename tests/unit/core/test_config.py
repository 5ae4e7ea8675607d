from __future__ import annotations

import os

import pytest

from gpuwatch.config import DEFAULT_PORTS, Config, ConfigError, EngineConfig, LogConfig, engine_from_url, load

FULL = """
interval = 0.5
history_minutes = 30
host = "node-07"
gpus = false
discovery = false
ports = [8000]
rules = ["mine.yml"]

[[engine]]
url = "https://10.0.0.1:8443"
token_env = "TOKEN"
timeout = 2
log = "/var/log/vllm.log"

[[log]]
source = "journal:vllm.service"
server = "127.0.0.1:8000"
"""


def write(tmp_path, text):
    path = tmp_path / "gpuwatch.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_every_key_is_read(tmp_path):
    config = load(write(tmp_path, FULL))
    assert config == Config(
        interval=0.5,
        history_minutes=30.0,
        host="node-07",
        gpus=False,
        discovery=False,
        ports=(8000,),
        rules=(str(tmp_path / "mine.yml"),),
        engines=(EngineConfig("https://10.0.0.1:8443", token_env="TOKEN", timeout=2.0, log="/var/log/vllm.log"),),
        logs=(LogConfig("journal:vllm.service", "127.0.0.1:8000"),),
    )


def test_rule_files_are_those_beside_the_configuration(tmp_path, monkeypatch):
    path = write(tmp_path, 'rules = ["mine.yml", "more/own.yml", "/etc/own.yml", "~/own.yml"]')
    monkeypatch.chdir(tmp_path)
    beside = (str(tmp_path / "mine.yml"), str(tmp_path / "more" / "own.yml"), "/etc/own.yml", "~/own.yml")
    assert load(path).rules == beside
    assert load(path.name).rules == ("mine.yml", "more/own.yml", "/etc/own.yml", "~/own.yml")


def test_an_empty_file_is_the_default(tmp_path):
    assert load(write(tmp_path, "")) == Config()
    assert Config().ports == DEFAULT_PORTS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("intervall = 1", "unknown key 'intervall'; allowed: interval, history_minutes, host, gpus"),
        ("interval = 0", "key 'interval' is 0; allowed: a number from 0.2 to 60"),
        ("interval = true", "key 'interval' is True; allowed: a number from 0.2 to 60"),
        ('interval = "1s"', "key 'interval' is '1s'; allowed: a number from 0.2 to 60"),
        ("gpus = 1", "key 'gpus' is 1; allowed: true or false"),
        ("kernel_log = 'dmesg'", "key 'kernel_log' is 'dmesg'; allowed: 'auto' or 'kmsg' or 'journal' or 'off'"),
        ("ports = [0]", "key 'ports' is [0]; allowed: a list of at most 64 ports from 1 to 65535"),
        ("rules = [1]", "key 'rules' is [1]; allowed: a list of strings"),
        ("engine = 3", "key 'engine': allowed: tables written as [[engine]]"),
        ("[engine]\nurl = 'http://h:1'", "key 'engine': allowed: tables written as [[engine]]"),
        ("[[engine]]\nkind = 'vllm'", "engine 1: key 'url' is missing"),
        ("[[engine]]\nurl = 'ftp://h'", "engine 1: engine 'ftp://h': allowed: http://HOST:PORT"),
        ("[[engine]]\nurl = 'http://h:99999'", "engine 1: engine 'http://h:99999'"),
        (
            "[[engine]]\nurl = 'http://h:1'\nkind = 'tgi'",
            "engine 1: key 'kind' is 'tgi'; allowed: '' or 'vllm' or 'sglang'",
        ),
        ("[[engine]]\nurl = 'http://h:1'\npath = 'metrics'", "engine 1: key 'path' is 'metrics'; allowed: a path that"),
        ("[[engine]]\nurl = 'http://h:1'\npath = '/a b'", "engine 1: key 'path' is '/a b'; allowed: a path that"),
        ('[[engine]]\nurl = "http://h:1"\npath = "/a\\r"', "engine 1: key 'path' is '/a\\r'; allowed: a path that"),
        ("[[engine]]\nurl = 'http://h:1/a b'", "engine 1: engine 'http://h:1/a b': only ASCII without blanks"),
        ("[[engine]]\nurl = 'http://h:1'\nlog = 'docker:'", "engine 1: key 'log' is 'docker:'; allowed: docker:NAME"),
        ("[[log]]\nsource = 'docker:'", "log 1: key 'source' is 'docker:'; allowed: docker:NAME"),
        ("[[log]]\nsource = 'journal:a b'", "log 1: key 'source' is 'journal:a b'; allowed: journal:UNIT"),
        ("[[log]]\nsource = 'k8s:pod'", "log 1: key 'source' is 'k8s:pod'; allowed: k8s:NAMESPACE/POD"),
        ('[[log]]\nsource = "docker:x\\n"', "log 1: key 'source' is 'docker:x\\n'; allowed: docker:NAME"),
        ("[[alertmanager]]\nurl = 'http://h:1/a b'", "alertmanager 1: only ASCII without blanks in an address"),
        ("[serve]\nhosts = ['a b']", "serve: key 'hosts' is ['a b']; allowed: a list of host names or addresses"),
        ("[serve]\nhosts = ['a:80']", "serve: key 'hosts' is ['a:80']; allowed: a list of host names or addresses"),
        ("[serve]\nhosts = ['']", "serve: key 'hosts' is ['']; allowed: a list of host names or addresses"),
        ("[serve]\nrunbook_url = 'javascript:x'", "serve: key 'runbook_url' is 'javascript:x'; allowed: an address"),
        ("[serve]\nrunbook_url = 'https://h/#x'", "serve: key 'runbook_url' is 'https://h/#x'; allowed: an address"),
        ('host = "a\\u0000"', "key 'host' is 'a\\x00'; allowed: a string"),
        ("[[engine]]\nurl = 'http://h:1'\ntoken = 'x'", "engine 1: unknown key 'token'; allowed: url, kind"),
        ("[[log]]\nserver = 'h:1'", "log 1: key 'source' is missing"),
        ("interval = [", "not TOML: "),
        (b"\xff\xfe", "not TOML: "),
    ],
)
def test_a_wrong_file_is_refused_with_file_key_and_what_is_allowed(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load(path)
    assert str(error.value).startswith(f"{path}: {message}")
    assert "\n" not in str(error.value)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    assert load(write(tmp_path, b"\xef\xbb\xbfinterval = 2\n")).interval == 2.0


def test_a_server_may_be_asked_under_names_and_addresses(tmp_path):
    text = "[serve]\nhosts = ['node-07.example', 'node_7', '10.0.0.7', 'fd00::7']\nrunbook_url = 'https://w.example/r'"
    serve = load(write(tmp_path, text)).serve
    assert serve.hosts == ("node-07.example", "node_7", "10.0.0.7", "fd00::7")
    assert serve.runbook_url == "https://w.example/r"


def test_an_unreadable_file_says_so(tmp_path):
    with pytest.raises(ConfigError, match="No such file or directory"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("text", "url", "path"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000", "/metrics"),
        ("http://h:8000/", "http://h:8000", "/metrics"),
        ("https://h/prefix/metrics", "https://h", "/prefix/metrics"),
        ("http://[::1]:8000", "http://[::1]:8000", "/metrics"),
    ],
)
def test_an_engine_address_may_be_short(text, url, path):
    engine = engine_from_url(text)
    assert (engine.url, engine.path) == (url, path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://",
        "http://h:port",
        "file:///etc/passwd",
        "http://user:secret@h:1",
        "http://user:secret@h:port",
        "ftp://user:secret@h:1",
        "http://user:secret@h 1",
    ],
)
def test_a_wrong_engine_address_is_refused_without_repeating_a_password(text):
    with pytest.raises(ConfigError) as error:
        engine_from_url(text)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("source", ['""', '"  "', "3", '"a\\u0000b"'])
def test_a_log_without_a_source_is_refused(tmp_path, source):
    with pytest.raises(ConfigError, match=r"log 1: key 'source' is .*; allowed: a file, '-', 'journal:UNIT'"):
        load(write(tmp_path, f"[[log]]\nsource = {source}"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.mkdir(), "Is a directory"),
        (os.mkfifo, "is no regular file"),
        (lambda path: path.write_bytes(b"#" * ((1 << 20) + 1)), "is over 1 MiB"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_at_once(tmp_path, make, words):
    path = tmp_path / "x.toml"
    make(path)
    with pytest.raises(ConfigError, match=words):
        load(path)


def test_endless_and_impossible_files_are_refused_at_once():
    with pytest.raises(ConfigError, match="is no regular file"):
        load("/dev/zero")
    with pytest.raises(ConfigError, match="null"):
        load("a\0b")
