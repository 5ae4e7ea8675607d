"""What is wrong with a server's certificate, as both of our HTTP clients say it, over real TLS."""

from __future__ import annotations

import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpuwatch.model import Reason, SourceError
from gpuwatch.sources.api_client import ApiClient
from gpuwatch.sources.engine.http import Client

AUTHORITY = """
[ca]
default_ca = d
[d]
database = index.txt
serial = serial
new_certs_dir = .
default_md = sha256
policy = p
[p]
commonName = supplied
[x]
subjectAltName = {names}
"""


def issue(folder, names, start, end):
    """A self-signed certificate for `names` that is valid from `start` to `end` (YYYYMMDDHHMMSSZ)."""

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    (folder / "index.txt").touch()
    (folder / "serial").write_text("01\n")
    (folder / "ca.cnf").write_text(AUTHORITY.format(names=names))
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    openssl("req", "-new", *curve, "-nodes", "-subj", "/CN=s", "-keyout", "s.key", "-out", "s.csr")
    openssl(
        "ca", "-batch", "-selfsign", "-config", "ca.cnf", "-keyfile", "s.key", "-in", "s.csr", "-extensions", "x",
        "-startdate", start, "-enddate", end, "-notext", "-out", "s.pem",
    )  # fmt: skip


@pytest.fixture
def server(tmp_path):
    """Return a function that starts a server with a certificate and returns its port; it answers nothing."""
    running = []

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, request, client_address):
            pass  # the clients hang up

    def start(names, start="20240101000000Z", end="20980101000000Z"):
        issue(tmp_path, names, start, end)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "s.pem", tmp_path / "s.key")
        running.append(Quiet(("127.0.0.1", 0), BaseHTTPRequestHandler))
        running[-1].socket = context.wrap_socket(running[-1].socket, server_side=True)
        threading.Thread(target=running[-1].serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return running[-1].server_address[1]

    yield start
    for one in running:
        one.shutdown()
        one.server_close()


def by_the_source(url, trusted):
    client = Client(verify=trusted)
    try:
        client.get(url + "/x", timeout=20.0, limit=100, accept="*/*")
    finally:
        client.close()


def by_the_api_client(url, trusted):
    client = ApiClient(url, 20.0, verify=trusted)
    try:
        client.ask("/x")
    finally:
        client.close()


ANOTHER_NAME = "ask by a name that it holds, or give it this one"


@pytest.mark.parametrize("ask", [by_the_source, by_the_api_client])
@pytest.mark.parametrize(
    ("host", "given", "why"),
    [
        (
            "127.0.0.1",
            ("IP:127.0.0.1", "20250101000000Z", "20250201000000Z"),
            "has expired: the server needs a new one",
        ),
        (
            "127.0.0.1",
            ("IP:127.0.0.1", "20970101000000Z", "20980101000000Z"),
            "is not valid yet: is this machine's clock right?",
        ),
        ("127.0.0.1", ("DNS:other.example",), f"is not for 127.0.0.1: {ANOTHER_NAME}"),
        ("localhost", ("DNS:other.example,IP:127.0.0.1",), f"is not for localhost: {ANOTHER_NAME}"),
    ],
    ids=["expired", "not valid yet", "another address", "another name"],
)
def test_what_is_wrong_with_a_trusted_certificate_is_said(server, ask, host, given, why, tmp_path):  # noqa: PLR0917  # fixtures and parameters
    url = f"https://{host}:{server(*given)}"
    with pytest.raises(SourceError) as error:
        ask(url, str(tmp_path / "s.pem"))
    assert str(error.value) == f"the certificate of {url}/x {why}"
    assert error.value.reason is Reason.FAILED


@pytest.mark.parametrize("ask", [by_the_source, by_the_api_client])
def test_a_certificate_of_an_unknown_issuer_is_a_matter_of_trust(server, ask):
    url = f"https://127.0.0.1:{server('IP:127.0.0.1')}"
    with pytest.raises(SourceError) as error:
        ask(url, True)  # noqa: FBT003  # what is trusted, as the clients take it
    assert str(error.value) == f"the certificate of {url}/x is not trusted (give ca_file, or verify = false)"
