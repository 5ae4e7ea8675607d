"""Logins, certificates and limits of requests to an HTTP API."""

from __future__ import annotations

import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpuwatch.config import ConfigError, EndpointConfig
from gpuwatch.model import Reason, SourceError
from gpuwatch.sources import api_client
from gpuwatch.sources.api_client import ApiClient


class Server:
    """Answers everything with 200 and keeps what it was asked; `redirect` sends one elsewhere first."""

    def __init__(self, tls=None):
        self.asked, self.redirect, self.status, self.body = [], "", 307, b"{}"
        self.posted = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append((self.path, dict(self.headers)))
                self.send_response(outer.status if outer.redirect else 200)
                if outer.redirect:
                    self.send_header("Location", outer.redirect)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def do_POST(self):
                outer.posted.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.do_GET()

            def log_message(self, *_):
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = False

            def handle_error(self, request, client_address):
                pass

        self._http = Quiet(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True)
        self.port = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self):
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5)


@pytest.fixture
def server():
    running = Server()
    yield running
    running.close()


@pytest.fixture
def client_of():
    made = []

    def make(url, **config):
        made.append(ApiClient.of(EndpointConfig(url, **{"timeout": 5.0, **config}), "GPUWATCH_TEST"))
        return made[-1]

    yield make
    for client in made:
        client.close()


def test_a_login_of_netrc_never_replaces_the_configured_one(server, client_of, tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login other password other\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("GPUWATCH_TEST_TOKEN", "mine")
    client_of(f"http://127.0.0.1:{server.port}").ask("/x")
    monkeypatch.delenv("GPUWATCH_TEST_TOKEN")
    client_of(f"http://127.0.0.1:{server.port}").ask("/x")
    assert server.asked[0][1]["Authorization"] == "Bearer mine"
    assert "Authorization" not in server.asked[1][1]


def test_a_token_does_not_follow_a_redirect_to_another_server(server, client_of, monkeypatch):
    monkeypatch.setenv("GPUWATCH_TEST_TOKEN", "mine")
    other = Server()
    try:
        server.redirect = f"http://localhost:{other.port}/y"
        client_of(f"http://127.0.0.1:{server.port}").ask("/x")
        ((path, headers),) = other.asked
        assert path == "/y"
        assert "Authorization" not in headers
    finally:
        other.close()


def test_no_header_that_was_given_follows_a_redirect_to_another_server(server, client_of):
    other = Server()
    try:
        server.redirect = f"http://localhost:{other.port}/y"
        client_of(f"http://127.0.0.1:{server.port}", headers={"X-Api-Key": "secret"}).ask("/x", {"query": "up"})
        ((_, headers),) = other.asked
        assert "X-Api-Key" not in headers
        assert other.posted == [b"query=up"]
        assert server.asked[0][1]["X-Api-Key"] == "secret"
    finally:
        other.close()


def test_a_redirect_on_the_same_server_keeps_the_login_and_ignores_netrc(server, client_of, tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login other password other\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("GPUWATCH_TEST_TOKEN", "mine")
    client = client_of(f"http://127.0.0.1:{server.port}", headers={"X-Api-Key": "secret"})
    server.redirect = "/y"
    with pytest.raises(SourceError):  # it redirects for ever
        client.ask("/x")
    assert {(path, sent["Authorization"], sent["X-Api-Key"]) for path, sent in server.asked} == {
        ("/x", "Bearer mine", "secret"),
        ("/y", "Bearer mine", "secret"),
    }


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_redirect_that_loses_what_was_sent_names_the_address_to_give(server, client_of, status):
    server.status, server.redirect = status, "http://user:secret@prometheus.example/api?token=secret"
    address = f"http://127.0.0.1:{server.port}"
    with pytest.raises(SourceError) as caught:
        client_of(address).ask("/api", {"query": "up"})
    assert caught.value.reason is Reason.FAILED
    assert str(caught.value) == (
        f"{address}/api redirects with {status} to http://prometheus.example/api, which loses what was sent; "
        "give the address that it points to"
    )
    assert [path for path, _ in server.asked] == ["/api"]


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_question_without_a_form_follows_every_redirect(server, client_of, status):
    other = Server()
    try:
        server.status, server.redirect = status, f"http://127.0.0.1:{other.port}/y"
        assert client_of(f"http://127.0.0.1:{server.port}").ask("/x").status == 200
        assert [path for path, _ in other.asked] == ["/y"]
    finally:
        other.close()


def test_user_and_password_may_come_from_variables(server, client_of, monkeypatch):
    monkeypatch.setenv("GPUWATCH_TEST_USER", "u")
    monkeypatch.setenv("GPUWATCH_TEST_PASSWORD", "p:ä")
    client_of(f"http://127.0.0.1:{server.port}").ask("/x")
    assert server.asked[0][1]["Authorization"] == "Basic dTpwOsOk"  # u:p:ä in UTF-8


def test_a_secret_that_goes_missing_later_is_a_clear_failure(server, client_of, tmp_path):
    (tmp_path / "token").write_text("t")
    client = client_of(f"http://127.0.0.1:{server.port}", token_file=str(tmp_path / "token"))
    client.ask("/x")
    (tmp_path / "token").unlink()
    with pytest.raises(SourceError, match="token: No such file") as caught:
        client.ask("/x")
    assert caught.value.reason is Reason.UNAUTHORIZED


@pytest.mark.parametrize("content", ["", "two\nlines", "\x00"])
def test_a_secret_is_one_line(server, client_of, tmp_path, content):
    (tmp_path / "token").write_text(content)
    with pytest.raises(ConfigError, match="one line with the secret"):
        client_of("http://127.0.0.1:1", token_file=str(tmp_path / "token"))


def test_an_answer_that_is_too_large_is_not_read_to_its_end(server, client_of, monkeypatch):
    monkeypatch.setattr(api_client, "MOST_BYTES", 100_000)
    server.body = b"x" * 300_000
    with pytest.raises(SourceError, match="over") as caught:
        client_of(f"http://127.0.0.1:{server.port}").ask("/x")
    assert caught.value.reason is Reason.TOO_LARGE


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


@pytest.fixture
def secure(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    running = Server(context)
    yield running
    running.close()


def test_a_certificate_that_is_not_trusted_says_what_to_do(secure, client_of):
    with pytest.raises(SourceError, match=r"is not trusted \(give ca_file, or verify = false\)"):
        client_of(f"https://localhost:{secure.port}").ask("/x")


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")  # pytest resets what the module has switched off
def test_a_certificate_is_trusted_by_its_file_or_not_checked_at_all(secure, client_of, certificate):
    url = f"https://localhost:{secure.port}"
    assert client_of(url, ca_file=str(certificate / "cert.pem")).ask("/x").status == 200
    assert client_of(url, verify=False).ask("/x").status == 200


def test_http_to_a_server_that_speaks_tls_is_one_line(secure, client_of):
    with pytest.raises(SourceError) as caught:
        client_of(f"http://localhost:{secure.port}").ask("/x")
    assert "\n" not in str(caught.value)


def test_our_own_certificate_is_shown_where_it_is_asked_for(certificate, client_of):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    context.load_verify_locations(certificate / "cert.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    server = Server(context)
    try:
        url, trusted = f"https://localhost:{server.port}", str(certificate / "cert.pem")
        own = {"cert_file": trusted, "key_file": str(certificate / "key.pem")}
        assert client_of(url, ca_file=trusted, **own).ask("/x").status == 200
        with pytest.raises(SourceError):
            client_of(url, ca_file=trusted).ask("/x")
    finally:
        server.close()


def test_an_error_after_a_redirect_names_the_host_that_failed(server, client_of):
    other = Server()
    other.close()
    server.redirect = f"http://localhost:{other.port}/y"
    client = client_of(f"http://127.0.0.1:{server.port}")
    with pytest.raises(SourceError, match=rf"nothing listens at localhost:{other.port}$"):
        client.ask("/x")
    with pytest.raises(SourceError, match=rf"nothing listens at localhost:{other.port}$"):
        client.ask("/x", json=[])


def test_an_answer_says_which_address_gave_it(server, client_of):
    other = Server()
    client = client_of(f"http://127.0.0.1:{server.port}")
    assert client.ask("/x").url == f"http://127.0.0.1:{server.port}/x"
    server.redirect = f"http://127.0.0.1:{other.port}/y"
    assert client.ask("/x").url == f"http://127.0.0.1:{other.port}/y"
    other.close()
