"""Certificates, series of real pages, and a running server to be asked over raw sockets."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
from concurrent.futures import Future
from pathlib import Path

import pytest

from gpuwatch.engines.catalog import detect
from gpuwatch.engines.derive import compile_page
from gpuwatch.engines.info import EngineInfo
from gpuwatch.exporter.app import Application
from gpuwatch.exporter.exposition import Exposition
from gpuwatch.exporter.server import Limits, Server
from gpuwatch.model import series
from gpuwatch.snapshot import Snapshot
from gpuwatch.sources.engine.exposition import ExpositionParser
from gpuwatch.store import Store

PAGES = Path(__file__).parents[2] / "fixtures" / "pages"
START = 1_700_000_000_000
# Passwords "secret" and "s3cret: ü", hashed with `htpasswd -nbBC 4` (cost 4, so that tests are fast).
USERS = {
    "alice": "$2y$04$MhOalX6HoB.8X3kqR/WsYuYLDYCE8oD5JoIgWhkoRQFW7Vtb9xQdu",
    "bob": "$2y$04$lCvBuThsJKd9RGgioo6XBuE2OPDCxGvO8vZALOfZuJ7ttgf8BD.my",
}


def columns_of(*pages, time=START):
    """The newest columns of a store that holds the series of real engine pages and a few of a GPU."""
    store = Store()
    for number, name in enumerate(pages):
        page = ExpositionParser().parse((PAGES / name).read_bytes())
        info = EngineInfo(detect(page.layout.names()).kind)
        compiled = compile_page(page.layout.keys, page.layout.names(), info, "node", f"127.0.0.1:{8000 + number}")
        keys, values = compiled.plan.apply(page.values)
        store.append(f"engine:{number}", time, keys, values.tolist())
    gpu = {"host": "node", "uuid": "GPU-1", "gpu": "0"}
    keys = (
        series("gpuwatch_gpu_memory_used_bytes", **gpu),
        series("gpuwatch_gpu_energy_joules_total", **gpu),
        series("gpuwatch_gpu_info", name='NVIDIA "H100"\\80\nGB é', **gpu),
        series("ALERTS", alertname="X", alertstate="firing"),
        series("job:recorded:sum", host="node"),
    )
    store.append("nvml", time, keys, [79_456_894_976.0, 0.1 + 0.2, 1.0, 1.0, 2.0])
    return store.columns(time)


def openssl(*arguments, cwd):
    subprocess.run(["openssl", *map(str, arguments)], cwd=cwd, check=True, capture_output=True)


def make_certificate(folder, name, *, subject="127.0.0.1", sans="IP:127.0.0.1,DNS:localhost", curve="prime256v1"):
    """A self-signed certificate: (certificate file, key file)."""
    files = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["req", "-x509", "-newkey", "ec", "-pkeyopt", f"ec_paramgen_curve:{curve}", "-nodes", "-days", "2"]
    command += ["-subj", f"/CN={subject}", "-addext", f"subjectAltName={sans}"]
    openssl(*command, "-out", files[0], "-keyout", files[1], cwd=folder)
    return files


@pytest.fixture(scope="session")
def tls_folder(tmp_path_factory):
    """server.pem/.key, other.pem/.key, client.pem/.key, expired.pem/.key."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("server", "other"):
        make_certificate(folder, name)
    make_certificate(folder, "client", subject="prometheus", sans="DNS:prometheus.example")
    make_certificate(folder, "expired")
    (folder / "index.txt").touch()
    (folder / "serial").write_text("01\n")
    (folder / "ca.cnf").write_text(
        "[ca]\ndefault_ca = d\n[d]\ndatabase = index.txt\nserial = serial\nnew_certs_dir = .\ndefault_md = sha256\n"
        "policy = p\nunique_subject = no\n[p]\ncommonName = supplied\n"
    )
    openssl("req", "-new", "-key", "expired.key", "-subj", "/CN=127.0.0.1", "-out", "expired.csr", cwd=folder)
    openssl(
        "ca", "-batch", "-selfsign", "-config", "ca.cnf", "-keyfile", "expired.key", "-in", "expired.csr",
        "-startdate", "20200101000000Z", "-enddate", "20210203040500Z", "-notext", "-out", "expired.pem", cwd=folder,
    )  # fmt: skip
    return folder


class StubDaemon:
    """Answers what the application asks of a daemon, as the test says."""

    def __init__(self):
        self.said = ""
        self.is_ready = True
        self.asked = []
        self.answer = Snapshot(START, START, "node", "live", 1.0)

    def trouble(self):
        return self.said

    def ready(self):
        return self.is_ready

    def ask_snapshot(self, *, time, rules, since):
        self.asked.append((time, rules, since))
        future = Future()
        if isinstance(self.answer, Exception):
            future.set_exception(self.answer)
        elif self.answer is not None:
            future.set_result(self.answer)
        return future


class Site:
    """A running server, and ways to talk to it."""

    def __init__(self, limits=None, **options):
        self.exposition = Exposition()
        self.exposition.update(columns_of("vllm-0.32.0-storm.txt"))
        self.daemon = StubDaemon()
        self.server = Server(
            "127.0.0.1:0", Application(self.exposition, self.daemon), limits=limits or Limits(), **options
        )
        self.server.start()
        host, _, port = self.server.address.rpartition(":")
        self.place = host, int(port)

    def connect(self, context=None, timeout=10):
        raw = socket.create_connection(self.place, timeout=timeout)
        return raw if context is None else context.wrap_socket(raw, server_hostname="127.0.0.1")

    def talk(self, data, context=None, *, more=b"", timeout=10):
        """Send bytes and return everything that comes back until the server closes."""
        with self.connect(context, timeout) as connection:
            connection.sendall(data)
            if more:
                connection.sendall(more)
            return received(connection)

    def get(self, path="/metrics", context=None, **headers):
        """Return (status, headers, body) of a GET on a connection of its own."""
        lines = [f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return parts(self.talk(("\r\n".join(lines) + "\r\n\r\n").encode(), context))


def received(connection):
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except (ConnectionResetError, ssl.SSLEOFError):
        pass
    return data


def parts(answer):
    """Return (status, headers, body) of an answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    match = re.fullmatch(r"HTTP/1\.1 (\d{3}) .*", first)
    assert match, answer[:200]
    return int(match[1]), dict(line.split(": ", 1) for line in lines), body


@pytest.fixture
def serve():
    """Return a function that starts a server; all are stopped at the end."""
    started = []

    def start(limits=None, **options):
        started.append(Site(limits, **options))
        return started[-1]

    yield start
    for site in started:
        site.server.stop()
