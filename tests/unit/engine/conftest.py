"""Real servers on the loopback interface, well-behaved and not, and pages for them."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "fixtures" / "pages"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
TINY = (
    "# TYPE vllm:num_requests_running gauge\n"
    'vllm:num_requests_running{engine="0",model_name="m"} 2.0\n'
    "# TYPE vllm:kv_cache_usage_perc gauge\n"
    'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5\n'
    "# TYPE vllm:generation_tokens_total counter\n"
    'vllm:generation_tokens_total{engine="0",model_name="m"} 100.0\n'
)


def page(name):
    return (PAGES / name).read_bytes()


@pytest.fixture
def fixture_page():
    return page


class Site:
    """What the well-behaved server serves. `routes` maps paths to (status, headers, body); `asked` logs requests."""

    def __init__(self):
        self.routes = {}
        self.asked = []
        self.url = ""

    def serve(self, path, body, status=200, kind=TEXT, **headers):
        body = body.encode() if isinstance(body, str) else body
        self.routes[path] = (status, {"Content-Type": kind, **headers}, body)

    def count(self, path):
        return sum(asked == path for asked, _ in self.asked)


def _handler(site):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            site.asked.append((self.path, dict(self.headers)))
            status, headers, body = site.routes.get(self.path, (404, {}, b"not here"))
            with suppress(OSError):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *args):
            pass

    return Handler


def _start(site, context=None):
    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request, client_address):
            pass  # clients that hang up are the point of some tests

    server = Server(("127.0.0.1", 0), _handler(site))
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    site.url = f"http{'s' if context else ''}://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return server


@pytest.fixture
def site():
    site = Site()
    site.serve("/metrics", TINY)
    server = _start(site)
    yield site
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A self-signed certificate for 127.0.0.1: (certificate file, key file)."""
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


@pytest.fixture
def tls_site(certificate):
    site = Site()
    site.serve("/metrics", TINY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server = _start(site, context)
    yield site
    server.shutdown()
    server.server_close()


class RawServer:
    """A server that hands each accepted socket to a function, which may answer as badly as it likes."""

    def __init__(self, talk):
        self.over = threading.Event()
        self.connections = 0
        self._talk = talk
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._open = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with suppress(OSError), connection:
            self._talk(connection, self)

    def close(self):
        self.over.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


@pytest.fixture
def raw_server():
    servers = []

    def start(talk):
        servers.append(RawServer(talk))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
