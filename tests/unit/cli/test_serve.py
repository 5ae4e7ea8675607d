"""The daemon as a process: started, scraped, reloaded, ended, started again."""

from __future__ import annotations

import json
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from unit.cli.test_cli import PAGES, ROOT, gpuwatch

from gpuwatch.cli import main

PROMTOOL = ROOT / ".cache" / "prometheus" / "usr" / "bin" / "promtool"
ALONE = 'gpus = false\ndiscovery = false\nkernel_log = "off"\ninterval = 0.2\n'
MINE = """groups:
- name: mine
  rules:
  - alert: MineFires
    expr: vector(1)
    labels: {severity: warning}
    annotations: {summary: it fires, description: always}
"""
SOON = 12.0
"""Seconds for an end: 2 at most, and as many again for a machine that does much else."""


class Serving:
    """A running `gpuwatch serve`."""

    def __init__(self, folder, config=ALONE, *options, limit=None, code=None):
        self.folder = folder
        self.config = folder / "gpuwatch.toml"
        self.config.write_text(config)
        self.lines = []
        arguments = ["serve", "--config", str(self.config), "--listen", "127.0.0.1:0", *map(str, options)]
        if "--state" not in options:
            arguments += ["--state", str(folder / "state.json")]
        command = [sys.executable, "-m", "gpuwatch"] if code is None else [sys.executable, "-c", code]
        self.process = subprocess.Popen(
            [*command, *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.reader = threading.Thread(target=self.listen, daemon=True)
        self.reader.start()
        if limit:
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        self.url = self.until(lambda: re.search(r"serving on (\S+)", self.said()))[1]

    def listen(self):
        for line in self.process.stderr:
            self.lines.append(line)

    def said(self):
        return "".join(self.lines)

    def until(self, condition, seconds=60):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = condition()
            if found:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        return pytest.fail(f"never happened; exit code {self.process.poll()}; stderr: {self.said()}")

    def get(self, path="/metrics"):
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return answer.read().decode()

    def ready(self):
        def ask():
            with suppress(urllib.error.HTTPError):
                return self.get("/-/ready")
            return ""

        return self.until(ask)

    def snapshot(self):
        return json.loads(self.get("/api/v1/snapshot"))

    def end(self, number=signal.SIGTERM):
        """Send a signal; return (exit code, seconds until the end)."""
        begun = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(20)
        took = time.monotonic() - begun
        self.close()
        return self.process.returncode, took

    def close(self):
        self.reader.join(10)
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a daemon; all are ended at the end."""
    started = []

    def make(*given, **options):
        started.append(Serving(tmp_path, *given, **options))
        return started[-1]

    yield make
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait(10)
        one.close()


@pytest.fixture
def engine():
    """An engine whose page can be changed; one that accepts and never answers when the page is None."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        page = (PAGES / "vllm-0.32.0-storm.txt").read_bytes()

        def do_GET(self):
            body = type(self).page
            if body is None:
                over.wait(30)
                return
            found = self.path == "/metrics"
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(body if found else b"")

        def log_message(self, *args):
            pass

    class Httpd(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request, client_address):
            pass

    httpd = Httpd(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    Handler.url = f"http://127.0.0.1:{httpd.server_port}"
    yield Handler
    over.set()
    httpd.shutdown()
    httpd.server_close()


def test_it_serves_the_series_of_an_engine_and_its_own_and_ends_at_once(start, engine):
    daemon = start(ALONE, "--engine", engine.url)
    daemon.ready()
    page = daemon.until(lambda: "gpuwatch_engine_requests_waiting{" in daemon.get() and daemon.get())
    server = engine.url.removeprefix("http://")
    for name in ("source_up", "source_age_seconds", "source_failures_total", "source_dropped_total"):
        assert re.search(rf'^gpuwatch_{name}{{.*target="{server}".*}} ', page, re.MULTILINE), name
    for name in (
        "tick_seconds",
        "build_info",
        "process_cpu_seconds_total",
        "process_resident_bytes",
        "rule_failures_total",
    ):
        assert f"\ngpuwatch_{name}{{" in page, name
    if PROMTOOL.exists():
        done = subprocess.run([PROMTOOL, "check", "metrics"], input=page.encode(), capture_output=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, b"")
    code, seconds = daemon.end()
    assert code == 0
    assert seconds < SOON
    assert daemon.said() == f"gpuwatch: serving on {daemon.url}\n"


def test_ctrl_c_is_exit_code_130(start):
    daemon = start()
    daemon.ready()
    code, seconds = daemon.end(signal.SIGINT)
    assert (code, seconds < SOON) == (130, True)


def test_signals_that_the_kernel_hands_to_another_thread_are_followed(start):
    # The kernel passes over a thread that blocks a signal. Threads inherit what is blocked, so one comes before.
    code = (
        "import signal, sys, threading\n"
        "from gpuwatch.cli import main\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    daemon = start(code=code)
    for number in range(1, 4):
        daemon.process.send_signal(signal.SIGHUP)
        daemon.until(lambda number=number: daemon.said().count("the configuration was read again") == number)
    assert daemon.end()[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_right_after_the_start_ends_it(start, number):
    daemons = [start(ALONE, "--state", "off") for _ in range(2)]
    for daemon in daemons:
        daemon.process.send_signal(signal.SIGHUP)
        daemon.process.send_signal(number)
    assert [daemon.process.wait(60) for daemon in daemons] == [130 if number == signal.SIGINT else 0] * 2


def test_it_ends_within_two_seconds_although_an_engine_and_a_client_hang(start, engine):
    engine.page = None
    daemon = start(ALONE, "--engine", engine.url)
    daemon.ready()
    host, _, port = daemon.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n")
        code, seconds = daemon.end()
    assert code == 0
    assert seconds < SOON


def test_neither_the_screen_nor_optional_libraries_are_loaded(start):
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sorted(sys.modules)))\n"
        "from gpuwatch.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    daemon = start(code=code)
    daemon.ready()
    daemon.get()
    daemon.snapshot()
    daemon.process.terminate()
    modules = set(daemon.process.stdout.read().split())
    daemon.process.wait(20)
    assert "gpuwatch.exporter.server" in modules
    unwanted = {"textual", "rich", "prometheus_client", "opentelemetry", "bcrypt", "requests", "ssl", "hashlib"}
    assert unwanted & modules == set()


def test_a_taken_port_is_one_line_and_exit_code_2(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code = main(["serve", "--listen", address, "--state", "off"])
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert printed.err == (
        f"gpuwatch serve: listen {address}: another program listens there; choose another port with --listen\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--listen", ""], "--listen is empty"),
        (["--web-config", ""], "--web-config is empty"),
        (["--listen", "nowhere"], "listen 'nowhere': allowed: HOST:PORT, [IPv6]:PORT or :PORT"),
        (["--web-config", "/no/web.yml"], "/no/web.yml: cannot be read: No such file or directory"),
        (["--record", "/no/such/x.rec"], "/no/such/x.rec: No such file or directory"),
        (["--alertmanager", "ftp://x"], "allowed: http://HOST:PORT or https://HOST:PORT"),
        (["--otlp", "ftp://x"], "otlp 'ftp://x': allowed: http://HOST:PORT or https://HOST:PORT"),
        (["--engine", "http://a:1", "--engine", "http://a:1/"], "a:1 is named more than once"),
        (["--interval", "0"], "key 'interval' is 0.0; allowed: a number from 0.2 to 60"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(options, message, capsys):
    code = main(["serve", "--state", "off", "--listen", "127.0.0.1:0", *options])
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert message in printed.err
    assert printed.err.startswith("gpuwatch serve: ")
    assert printed.err.count("\n") == 1


def test_a_reload_follows_other_engines_and_rules_and_keeps_everything_when_it_is_wrong(start, engine, tmp_path):
    rules = tmp_path / "mine.yml"
    rules.write_text(MINE)
    daemon = start()
    daemon.ready()
    server = engine.url.removeprefix("http://")

    daemon.config.write_text(f'{ALONE}rules = ["{rules}"]\n[[engine]]\nurl = "{engine.url}"\n')
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until(lambda: "the configuration was read again" in daemon.said())
    daemon.until(lambda: f'server="{server}"' in daemon.get())
    daemon.until(lambda: [found for found in daemon.snapshot()["findings"] if found["id"] == "MineFires"])

    for text, message in (
        ("interval = 0\n", f"{daemon.config}: key 'interval' is 0; allowed: a number from 0.2 to 60"),
        ("nonsense", f"{daemon.config}: not TOML"),
        (
            '[[engine]]\nurl = "http://a:1"\ntoken_env = "NOT_THERE_X"\n',
            "the variable NOT_THERE_X of token_env is not set",
        ),
        ('rules = ["/no/such.yml"]\n', f"{daemon.config}: key 'rules': /no/such.yml does not exist"),
    ):
        before = daemon.said()
        daemon.config.write_text(text)
        daemon.process.send_signal(signal.SIGHUP)
        daemon.until(lambda before=before: daemon.said() != before)
        line = daemon.said().removeprefix(before)
        assert message in line
        assert line.endswith("; the configuration before it stays in force\n")
        assert line.count("\n") == 1
    assert f'server="{server}"' in daemon.get()
    assert "MineFires" in {found["id"] for found in daemon.snapshot()["findings"]}

    daemon.config.write_text(ALONE.replace("0.2", "0.3"))
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until(lambda: "interval: takes effect at the next start" in daemon.said())
    daemon.until(lambda: f'server="{server}"' not in daemon.get())
    states = {found["id"]: found["state"] for found in daemon.snapshot()["findings"]}
    assert states.get("MineFires", "resolved") == "resolved"


def test_failed_deliveries_are_counted_on_the_page_until_nothing_is_sent_any_more(start, tmp_path):
    rules = tmp_path / "mine.yml"
    rules.write_text(MINE)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
    alone = f'{ALONE}rules = ["{rules}"]\n'
    daemon = start(f'{alone}[[alertmanager]]\nurl = "{nobody}"\n')
    daemon.ready()
    daemon.until(
        lambda: re.search(
            rf'^gpuwatch_alertmanager_failures_total{{alertmanager="{nobody}",host="[^"]+"}} [1-9]',
            daemon.get(),
            re.MULTILINE,
        )
    )
    assert re.search(r"^gpuwatch_alertmanager_alerts_sent_total\{.*\} 0(\.0)?$", daemon.get(), re.MULTILINE)
    daemon.config.write_text(alone)
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until(lambda: "gpuwatch_alertmanager" not in daemon.get())


def test_what_waits_for_the_next_start_is_said_at_every_reload_and_checked(start, tmp_path):
    (tmp_path / "web.yml").write_text("basic_auth_users: {}\n")
    (tmp_path / "broken.yml").write_text("tls_server_config: {cert_file: no.pem, key_file: no.key}\n")
    daemon = start()
    daemon.ready()

    def reload(serve):
        before = daemon.said()
        daemon.config.write_text(f"{ALONE}[serve]\n{serve}\n")
        daemon.process.send_signal(signal.SIGHUP)
        return daemon.until(lambda: daemon.said().removeprefix(before).partition("\n")[0])

    waits = "gpuwatch: serve.web_config: takes effect at the next start"
    for _ in range(2):
        assert reload(f'web_config = "{tmp_path / "web.yml"}"') == waits
    for text, message in (
        (f'web_config = "{tmp_path / "none.yml"}"', "none.yml: cannot be read"),
        (f'web_config = "{tmp_path / "broken.yml"}"', "no.pem"),
        ('otlp = "ftp://x"', "otlp 'ftp://x': allowed: http"),
    ):
        said = reload(text)
        assert message in said
        assert said.endswith("; the configuration before it stays in force")
    assert reload("") == "gpuwatch: the configuration was read again"


def test_a_finding_keeps_its_start_over_a_restart_and_after_a_kill(start, tmp_path):
    rules = tmp_path / "mine.yml"
    rules.write_text(MINE)
    config = f'{ALONE}rules = ["{rules}"]\n'

    def since(daemon):
        daemon.ready()
        return daemon.until(lambda: [f["since"] for f in daemon.snapshot()["findings"] if f["id"] == "MineFires"])[0]

    daemon = start(config)
    first = since(daemon)
    assert 'gpuwatch_finding_info{cause="always",' in daemon.until(
        lambda: "finding_info" in daemon.get() and daemon.get()
    )
    daemon.until((tmp_path / "state.json").exists)
    daemon.end()
    again = start(config)
    assert since(again) == first
    again.process.kill()
    again.process.wait(10)
    third = start(config)
    assert since(third) == first
    third.end()
    (tmp_path / "state.json").write_text("{")
    damaged = start(config)
    assert since(damaged) > first


def test_a_full_disk_stops_recording_and_state_with_a_line_each_and_nothing_else(start, tmp_path):
    rules = tmp_path / "mine.yml"
    rules.write_text(MINE)
    daemon = start(f'{ALONE}rules = ["{rules}"]\n', "--record", tmp_path / "run.rec", limit=200)
    daemon.ready()
    daemon.until(lambda: daemon.said().count("\n") >= 3)
    time.sleep(0.5)
    assert "gpuwatch_tick_seconds" in daemon.get()
    told = [line for line in daemon.said().splitlines() if "serving on" not in line]
    assert sorted(told) == sorted(
        [
            f"gpuwatch: {tmp_path / 'run.rec'}: File too large; recording stopped",
            f"gpuwatch: {tmp_path / 'state.json'}: File too large; the state is not saved",
        ]
    )
    assert daemon.end()[0] == 0


def test_a_disk_that_is_full_from_the_start_costs_the_recording_and_not_the_daemon(start, tmp_path):
    full = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16));"
        "from gpuwatch.cli import main; sys.exit(main())"
    )
    daemon = start(ALONE, "--state", "off", "--record", tmp_path / "run.rec", code=full)
    daemon.ready()
    daemon.until(lambda: daemon.said().count("\n") >= 2)
    told = [line for line in daemon.said().splitlines() if "serving on" not in line]
    assert told == [f"gpuwatch: {tmp_path / 'run.rec'}: File too large; recording stopped"]
    assert daemon.snapshot()["recording"]["error"] == f"{tmp_path / 'run.rec'}: File too large; recording stopped"
    assert daemon.end()[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["gpuwatch.toml"]


def test_an_open_address_without_a_password_is_said(tmp_path):
    daemon = Serving(tmp_path, ALONE, "--listen", "0.0.0.0:0")
    try:
        daemon.until(lambda: "everybody who reaches this address reads metrics" in daemon.said())
    finally:
        daemon.end()


def test_check_attach_prints_the_findings_of_the_daemon(start, engine, tmp_path):
    rules = tmp_path / "mine.yml"
    rules.write_text(MINE)
    daemon = start(f'{ALONE}rules = ["{rules}"]\n', "--engine", engine.url)
    daemon.ready()
    daemon.until(lambda: "engine_requests_waiting" in daemon.get())
    daemon.until(lambda: [found for found in daemon.snapshot()["findings"] if found["id"] == "MineFires"])
    done = gpuwatch("check", "--attach", daemon.url, "--json", "--fail-on", "warning")
    report = json.loads(done.stdout)
    theirs = daemon.snapshot()["findings"]
    assert (done.returncode, done.stderr) == (1, "")
    assert report["findings"] == theirs
    assert {item["kind"]: item["engine"] for item in report["inputs"]}["engine"] == "vllm"
    assert gpuwatch("check", "--attach", daemon.url, "--fail-on", "never", "--quiet").returncode == 0


def test_check_attach_without_a_daemon_says_so_and_judges_nothing(capsys):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    assert main(["check", "--attach", url]) == 3
    printed = capsys.readouterr()
    assert printed.err == (f"gpuwatch check: connection refused: nothing listens at {url.removeprefix('http://')}\n")
    assert printed.out.splitlines()[-1] == (
        f"nothing was judged: connection refused: nothing listens at {url.removeprefix('http://')}"
    )
    assert main(["check", "--attach", "http://user:secret@127.0.0.1:1"]) == 2
    printed = capsys.readouterr()
    assert "no user or password in the address" in printed.err
    assert "secret" not in printed.err


@pytest.mark.parametrize(("url", "sent"), [("{}", True), ("", True), ("http://other:19400", False)])
def test_the_login_of_attach_is_used_for_its_own_address_only(url, sent, tmp_path, capsys):
    headers = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            headers.append(dict(self.headers))
            self.send_error(404)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    (tmp_path / "password").write_text("secret\n")
    config = tmp_path / "gpuwatch.toml"
    login = f'user = "u"\npassword_file = "{tmp_path / "password"}"\n'
    config.write_text(f"[attach]\n{login}" + (f'url = "{url.format(address)}"\n' if url else ""))
    try:
        assert main(["check", "--config", str(config), "--attach", address, "--quiet"]) == 3
    finally:
        server.shutdown()
        server.server_close()
    capsys.readouterr()
    assert headers
    assert all(("Authorization" in sent_headers) == sent for sent_headers in headers)


@pytest.mark.parametrize("option", ["engine", "log", "record", "prometheus"])
def test_attach_and_what_watches_itself_exclude_each_other(option, capsys):
    assert main(["check", "--attach", "http://127.0.0.1:1", f"--{option}", "http://a:1"]) == 2
    assert "--attach" in capsys.readouterr().err
