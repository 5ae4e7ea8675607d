"""The server over real sockets: what it answers, what it refuses, and what it survives."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from unit.exporter.conftest import START, USERS, columns_of, make_certificate, parts, received

from gpuwatch.config import ConfigError
from gpuwatch.exporter import listen
from gpuwatch.exporter.server import Limits
from gpuwatch.exporter.snapshot_json import decode
from gpuwatch.snapshot import Snapshot

GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def trusting(certificate, client=None):
    context = ssl.create_default_context(cafile=str(certificate))
    if client is not None:
        context.load_cert_chain(*client)
    return context


# What is where


def test_metrics_are_the_text_format_by_default(serve):
    site = serve()
    status, headers, body = site.get()
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert body == site.exposition.page("text")
    assert headers["Content-Length"] == str(len(body))


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        # What Prometheus 2.42, 2.55 and 3.2 send, a browser, curl, and a client that wants neither.
        (PROMETHEUS_2, "application/openmetrics-text"),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.3",
            "application/openmetrics-text",
        ),
        ("text/plain;version=0.0.4;q=0.9,application/openmetrics-text;q=0.5", "text/plain"),
        ("application/openmetrics-text;q=0", "text/plain"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "text/plain"),
        ("*/*", "text/plain"),
        ("application/openmetrics-text;q=nonsense", "text/plain"),
    ],
)
def test_openmetrics_is_for_those_who_ask_for_it(serve, accept, kind):
    status, headers, body = serve().get(Accept=accept)
    assert (status, headers["Content-Type"].partition(";")[0]) == (200, kind)
    assert body.endswith(b"# EOF\n") == (kind == "application/openmetrics-text")


@pytest.mark.parametrize(
    ("encodings", "zipped"), [("gzip", True), ("deflate, gzip;q=0.5", True), ("gzip;q=0", False), ("br", False)]
)
def test_gzip_is_for_those_who_take_it(serve, encodings, zipped):
    site = serve()
    _, headers, body = site.get(Accept_Encoding=encodings)
    assert ("Content-Encoding" in headers) == zipped
    assert headers["Vary"] == "Accept-Encoding"
    assert (gzip.decompress(body) if zipped else body) == site.exposition.page("text")


def test_head_is_the_same_without_a_body(serve):
    site = serve()
    status, headers, body = parts(site.talk(GET.replace(b"GET", b"HEAD")))
    assert (status, headers["Content-Length"], body) == (200, str(len(site.exposition.page("text"))), b"")


def test_healthy_and_ready_follow_the_pipeline_and_so_do_the_values(serve):
    site = serve()
    assert site.get("/-/healthy")[0] == site.get("/-/ready")[0] == 200
    site.daemon.is_ready = False
    assert site.get("/-/healthy")[0] == 200
    for path in ("/-/ready", "/metrics", "/api/v1/snapshot"):
        status, _, body = site.get(path)
        assert (status, b"nothing was read yet" in body) == (503, True), path
    site.daemon.said = "the pipeline is stuck: the last tick 60 s ago"
    for path in ("/-/healthy", "/-/ready", "/metrics", "/api/v1/snapshot"):
        status, _, body = site.get(path)
        assert (status, b"the pipeline is stuck" in body) == (503, True), path


def test_the_first_page_lists_the_others_and_an_unknown_one_says_which_there_are(serve):
    site = serve()
    status, headers, body = site.get("/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b'href="/api/v1/snapshot"' in body
    status, _, body = site.get("/metric")
    assert (status, b"/metrics" in body) == (404, True)


def test_the_snapshot_is_json_and_its_parameters_reach_the_daemon(serve):
    site = serve()
    status, headers, body = site.get("/api/v1/snapshot?rules=1&since=1700000000001")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert decode(body) == Snapshot(START, START, "node", "live", 1.0)
    site.get("/api/v1/snapshot?time=1700000000000&rules=0")
    assert site.daemon.asked == [(None, True, START + 1), (START, False, None)]


def test_a_snapshot_that_cannot_be_given_says_why(serve):
    site = serve()
    site.daemon.answer = LookupError("nothing is kept of that time; the oldest is 900 s away")
    status, _, body = site.get("/api/v1/snapshot?time=1")
    assert (status, json.loads(body)) == (404, {"error": "nothing is kept of that time; the oldest is 900 s away"})
    status, _, body = site.get("/api/v1/snapshot?time=yesterday")
    assert (status, json.loads(body)) == (
        400,
        {"error": "time is 'yesterday'; allowed: milliseconds since the epoch"},
    )


def test_an_error_in_the_daemon_is_an_answer_and_the_next_request_works(serve, caplog):
    site = serve()
    site.daemon.answer = RuntimeError("oops")
    status, _, body = site.get("/api/v1/snapshot")
    assert (status, b"oops" in body) == (500, False)
    assert "a request failed: /api/v1/snapshot" in caplog.text
    assert site.get()[0] == 200


def test_an_answer_that_never_comes_is_given_up(serve):
    site = serve(Limits(answer=0.2))
    site.daemon.answer = None
    status, _, body = site.get("/api/v1/snapshot")
    assert (status, body) == (503, b"no answer within 0.2 s\n")


# Requests that are refused


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 400),
        (b"GET /metrics HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET  /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", 400),
        (b"{}\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost : localhost\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: a\nY: b\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET ftp://localhost/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /m\xc3\xa9trics HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 101 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"b" * 20_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 20_000 + b"\r\n", 431),
    ],
)
def test_a_request_that_can_be_misread_is_refused_and_the_connection_closed(serve, request_bytes, status):
    site = serve()
    answer = parts(site.talk(request_bytes))
    assert answer[0] == status
    assert answer[1]["Connection"] == "close"
    assert site.get()[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:19400", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:9", 200),
        ("127.9.9.9", 200),
        ("[::1]:19400", 200),
        ("my.localhost", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("10.0.0.7", 421),
        ("127.0.0.1.nip.io", 421),
        ("", 400),
        ("a b", 400),
        ("localhost:99999", 400),
        ("[::1", 400),
        ("localhost/../", 400),
        ("user@localhost", 400),
    ],
)
def test_on_loopback_only_names_of_this_machine_are_answered(serve, host, status):
    request = f"GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    assert parts(serve().talk(request.encode()))[0] == status


def test_an_absolute_address_counts_more_than_the_host_field(serve):
    site = serve()
    request = b"GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert parts(site.talk(request))[0] == 421
    request = b"GET http://localhost:1/metrics?x=1 HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert parts(site.talk(request))[0] == 200


def test_configured_names_are_answered_too(serve):
    site = serve(names=("Node-07.example",))
    request = "GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n"
    assert parts(site.talk(request.format("node-07.example:443").encode()))[0] == 200
    assert parts(site.talk(request.format("node-08.example").encode()))[0] == 421


def test_http_1_0_needs_no_host_and_closes(serve):
    status, headers, _ = parts(serve().talk(b"GET /metrics HTTP/1.0\r\n\r\n"))
    assert (status, headers["Connection"]) == (200, "close")


# Connections


def test_requests_follow_each_other_on_one_connection(serve):
    site = serve()
    with site.connect() as connection:
        connection.sendall(GET.replace(b"Connection: close\r\n", b"") * 2 + GET)
        answers = received(connection)
    assert answers.count(b"HTTP/1.1 200 OK") == 3
    assert answers.count(b"Connection: keep-alive") == 2


def test_200_scrapes_at_once_all_get_the_page(serve):
    site = serve()
    want = site.exposition.page("text")
    ready = threading.Barrier(200)

    def scrape(_):
        ready.wait(30)
        return site.get()

    with ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(scrape, range(200)))
    assert [status for status, _, _ in answers] == [200] * 200
    assert all(body == want for _, _, body in answers)


def test_a_request_that_drips_is_cut_off_while_others_are_served(serve):
    site = serve(Limits(head=2.0))
    slow = [site.connect() for _ in range(20)]
    begun = time.monotonic()
    for connection in slow:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: loc")
    assert site.get()[0] == 200
    assert time.monotonic() - begun < 2.0
    for connection in slow:
        with connection:
            assert parts(received(connection))[0] == 408
    assert time.monotonic() - begun < 20


def test_a_connection_that_says_nothing_is_closed(serve):
    site = serve(Limits(head=0.2))
    with site.connect() as connection:
        assert received(connection) == b""


def test_an_idle_connection_is_closed_after_its_time(serve):
    site = serve(Limits(idle=0.2))
    with site.connect() as connection:
        connection.sendall(GET.replace(b"Connection: close\r\n", b""))
        assert received(connection).count(b"HTTP/1.1 200 OK") == 1


def test_a_client_that_does_not_read_is_dropped(serve):
    site = serve(Limits(write=0.3))
    site.exposition.update(columns_of(*["vllm-0.32.0-two-ranks.txt"] * 20))
    with site.connect() as connection:
        connection.sendall(GET.replace(b"Connection: close\r\n", b"") * 50)
        until(lambda: len(site.server._connections) == 1)
        until(lambda: not site.server._connections)
    assert site.get()[0] == 200


def test_an_idle_connection_makes_room_for_a_new_one_and_a_busy_one_does_not(serve):
    site = serve(Limits(connections=2, silent=60))
    with site.connect() as idle, site.connect() as busy:
        idle.sendall(GET.replace(b"Connection: close\r\n", b""))
        assert idle.recv(15) == b"HTTP/1.1 200 OK"
        busy.sendall(b"GET ")
        deadline = time.monotonic() + 5
        while len(site.server._connections) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert site.get()[0] == 200  # took the place of the idle one
        received(idle)
        with site.connect() as second:
            second.sendall(b"GET ")
            while len(site.server._connections) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert site.get()[0] == 503


def test_connections_that_ask_nothing_make_room_for_one_that_does(serve):
    site = serve(Limits(connections=2, silent=0.2))
    with site.connect() as quiet, site.connect() as dripping:
        dripping.sendall(b"GET /metr")
        until(lambda: len(site.server._connections) == 2)
        time.sleep(0.25)
        assert site.get()[0] == 200  # took the place of the older one
        assert received(quiet) == b""
        dripping.sendall(GET.removeprefix(b"GET /metr"))
        assert parts(received(dripping))[0] == 200


def test_stop_ends_open_connections_at_once(serve):
    site = serve()
    connections = [site.connect() for _ in range(10)]
    connections[0].sendall(GET.replace(b"Connection: close\r\n", b""))
    assert connections[0].recv(15) == b"HTTP/1.1 200 OK"
    begun = time.monotonic()
    site.server.stop()
    assert time.monotonic() - begun < 10
    for connection in connections:
        with connection:
            received(connection)
    with pytest.raises(ConnectionRefusedError):
        site.connect()


def test_stop_before_start_gives_the_port_back():
    from gpuwatch.exporter.server import Server  # noqa: PLC0415  # only here

    server = Server("127.0.0.1:0", lambda request: None)
    port = server.address.rpartition(":")[2]
    server.stop()
    listen.bind(f"127.0.0.1:{port}").close()


# The address


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        (":19400", ("", 19400)),
        ("[::1]:80", ("::1", 80)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_addresses(text, want):
    assert listen.parse(text) == want


@pytest.mark.parametrize(
    "text", ["", "localhost", "::1:80", "host:", "host:port", "host:65536", "host:-1", "host:\u0661"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match=r"allowed: HOST:PORT"):
        listen.parse(text)


def test_a_taken_port_is_one_line_that_says_so(serve):
    site = serve()
    with pytest.raises(ConfigError) as error:
        listen.bind(site.server.address)
    assert str(error.value) == (
        f"listen {site.server.address}: another program listens there; choose another port with --listen"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("192.0.2.1:0", "listen 192.0.2.1:0: is no address of this machine"),
        ("no..host:0", "listen no..host:0: the name 'no..host' cannot be resolved"),
    ],
)
def test_an_address_that_cannot_be_bound_says_why(text, message):
    with pytest.raises(ConfigError) as error:
        listen.bind(text)
    assert str(error.value) == message


def test_a_port_without_a_host_is_open_to_all_interfaces_and_says_so():
    listener = listen.bind(":0")
    try:
        assert not listen.is_local(listener)
        port = listener.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    finally:
        listener.close()


# Users and certificates


@pytest.fixture
def users_file(tmp_path):
    path = tmp_path / "web.yml"
    path.write_text("basic_auth_users:\n" + "".join(f"  {name}: {hashed}\n" for name, hashed in USERS.items()))
    return path


def test_only_right_passwords_are_let_in(serve, users_file):
    site = serve(web_config=str(users_file))
    status, headers, _ = site.get()
    assert (status, headers["WWW-Authenticate"]) == (401, 'Basic realm="gpuwatch", charset="UTF-8"')
    for path in ("/metrics", "/-/healthy", "/api/v1/snapshot", "/", "/nothing"):
        assert site.get(path)[0] == 401
        assert site.get(path, Authorization=basic("alice", "wrong"))[0] == 401
    assert site.get(Authorization=basic("alice", "secret"))[0] == 200
    assert site.get(Authorization=basic("bob", "s3cret: ü"))[0] == 200
    for header in (
        basic("bob", "secret"), basic("nobody", "secret"), basic("", ""), basic("alice", "secret" * 20),
        basic("alice", "secret\0"), "Basic !!!", "Bearer secret",
        "Basic", basic("alice", "secret").replace("ic ", "ics "),
    ):  # fmt: skip
        assert site.get(Authorization=header)[0] == 401, header


def test_a_password_that_was_right_is_not_hashed_again(serve, users_file, monkeypatch):
    site = serve(web_config=str(users_file))
    assert site.get(Authorization=basic("alice", "secret"))[0] == 200
    checked = []
    real = site.server._passwords._check
    monkeypatch.setattr(site.server._passwords, "_check", lambda *given: checked.append(1) or real(*given))
    assert [site.get(Authorization=basic("alice", "secret"))[0] for _ in range(3)] == [200] * 3
    assert checked == []
    assert site.get(Authorization=basic("alice", "secret2"))[0] == 401
    assert checked == [1]


def test_two_authorization_fields_are_refused(serve, users_file):
    site = serve(web_config=str(users_file))
    request = (
        GET[:-2] + f"Authorization: {basic('a', 'b')}\r\nAuthorization: {basic('alice', 'secret')}\r\n\r\n".encode()
    )
    assert parts(site.talk(request))[0] == 400


def test_tls_serves_those_who_trust_the_certificate(serve, tls_folder, tmp_path):
    web = tmp_path / "web.yml"
    web.write_text(f"tls_server_config:\n  cert_file: {tls_folder}/server.pem\n  key_file: {tls_folder}/server.key\n")
    site = serve(web_config=str(web))
    assert site.server.url.startswith("https://127.0.0.1:")
    assert site.get(context=trusting(tls_folder / "server.pem"))[0] == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        site.get(context=trusting(tls_folder / "other.pem"))
    assert site.talk(GET) == b""  # plain HTTP on a TLS port is closed
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(tls_folder / "server.pem")
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert site.get(context=old)[0] == 200


def test_a_handshake_that_is_not_finished_is_given_up_while_others_are_served(serve, tls_folder, tmp_path):
    web = tmp_path / "web.yml"
    web.write_text(f"tls_server_config:\n  cert_file: {tls_folder}/server.pem\n  key_file: {tls_folder}/server.key\n")
    site = serve(Limits(handshake=0.5), web_config=str(web))
    with site.connect() as silent:
        assert site.get(context=trusting(tls_folder / "server.pem"))[0] == 200
        begun = time.monotonic()
        assert received(silent) == b""
        assert time.monotonic() - begun < 20


def test_client_certificates_are_asked_for_and_their_names_checked(serve, tls_folder, tmp_path):
    web = tmp_path / "web.yml"
    text = (
        f"tls_server_config:\n  cert_file: {tls_folder}/server.pem\n  key_file: {tls_folder}/server.key\n"
        f"  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: {tls_folder}/client.pem\n"
    )
    web.write_text(text)
    client = tls_folder / "client.pem", tls_folder / "client.key"
    site = serve(web_config=str(web))
    assert not site.server.open_to_anybody
    assert site.get(context=trusting(tls_folder / "server.pem", client))[0] == 200
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        site.get(context=trusting(tls_folder / "server.pem"))
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        site.get(context=trusting(tls_folder / "server.pem", (tls_folder / "other.pem", tls_folder / "other.key")))
    web.write_text(text + "  client_allowed_sans: [prometheus.example]\n")
    assert serve(web_config=str(web)).get(context=trusting(tls_folder / "server.pem", client))[0] == 200
    web.write_text(text + "  client_allowed_sans: [somebody.example]\n")
    assert serve(web_config=str(web)).get(context=trusting(tls_folder / "server.pem", client))[0] == 403


def test_a_rate_limit_and_headers_of_the_web_configuration(serve, tmp_path):
    web = tmp_path / "web.yml"
    web.write_text("rate_limit: {interval: 1h, burst: 3}\nhttp_server_config: {headers: {X-Frame-Options: deny}}\n")
    site = serve(web_config=str(web))
    answers = [site.get() for _ in range(5)]
    assert [status for status, _, _ in answers] == [200, 200, 200, 429, 429]
    assert all(headers["X-Frame-Options"] == "deny" for _, headers, _ in answers)


def test_a_new_web_configuration_is_taken_when_it_is_good_and_reported_once_when_not(
    serve, tls_folder, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("gpuwatch.exporter.server.WATCH_SECONDS", 0.05)
    pair = make_certificate(tmp_path, "mine")
    web = tmp_path / "web.yml"
    web.write_text("tls_server_config:\n  cert_file: mine.pem\n  key_file: mine.key\n")
    site = serve(web_config=str(web))
    context = trusting(pair[0])
    keep = site.connect(context)
    keep.sendall(GET.replace(b"Connection: close\r\n", b""))
    assert keep.recv(15) == b"HTTP/1.1 200 OK"

    pair[0].write_text("damaged")
    until(lambda: "mine.pem" in caplog.text)
    assert site.get(context=context)[0] == 200  # the old one is still in force
    time.sleep(0.3)
    assert caplog.text.count("stays in force") == 1
    assert f"{web}: {pair[0]}: holds no certificate in PEM form" in caplog.text

    pair[0].write_bytes((tls_folder / "server.pem").read_bytes())
    pair[1].write_bytes((tls_folder / "server.key").read_bytes())
    until(lambda: site_answers(site, trusting(tls_folder / "server.pem")))
    keep.sendall(GET)  # a connection that was open keeps its certificate
    with keep:
        assert received(keep).count(b"HTTP/1.1 200 OK") == 1

    web.write_text("basic_auth_users: {alice: plain}\n")
    until(lambda: "no bcrypt hash" in caplog.text)
    assert site.get(context=trusting(tls_folder / "server.pem"))[0] == 200


def test_a_web_configuration_is_read_again_when_a_file_that_only_the_refused_one_names_is_mended(
    serve, tls_folder, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("gpuwatch.exporter.server.WATCH_SECONDS", 0.05)
    web = tmp_path / "web.yml"
    web.write_text("http_server_config: {headers: {X-Frame-Options: deny}}\n")
    site = serve(web_config=str(web))
    (tmp_path / "next.pem").write_text("damaged")
    (tmp_path / "next.key").write_bytes((tls_folder / "server.key").read_bytes())
    web.write_text("tls_server_config:\n  cert_file: next.pem\n  key_file: next.key\n")
    until(lambda: "stays in force" in caplog.text)
    assert site.get()[0] == 200
    (tmp_path / "next.pem").write_bytes((tls_folder / "server.pem").read_bytes())
    until(lambda: site_answers(site, trusting(tls_folder / "server.pem")))


def test_no_connection_is_lost_while_the_configuration_is_replaced_again_and_again(serve):
    site = serve()
    ended = threading.Event()

    def replace():
        while not ended.wait(0.001):
            site.server.use(site.server.prepare(), ())

    replacing = threading.Thread(target=replace)
    replacing.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: site.get()[0], range(400)))
    finally:
        ended.set()
        replacing.join()
    assert answers == [200] * 400


def test_a_login_that_takes_too_long_to_check_is_given_up(serve, users_file, monkeypatch):
    site = serve(Limits(answer=0.2), web_config=str(users_file))
    release = threading.Event()
    monkeypatch.setattr(site.server._passwords, "check", lambda *_: release.wait(20))
    try:
        status, _, body = site.get(Authorization=basic("alice", "secret"))
    finally:
        release.set()
    assert (status, body) == (503, b"no answer within 0.2 s\n")


def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "never happened"
        time.sleep(0.02)


def site_answers(site, context):
    try:
        return site.get(context=context)[0] == 200
    except ssl.SSLError:
        return False
