"""The engine source against real servers on the loopback interface, most of them bad ones."""

import base64
import gzip
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from gpuwatch.clock import ManualClock, SystemClock
from gpuwatch.model import Reason, SourceError, label, name_of, series
from gpuwatch.sources.engine.connect import proxies_for
from gpuwatch.sources.engine.http import Client, explain_failure, tls_hint
from gpuwatch.sources.engine.source import EngineSource, EngineTarget

TINY = (
    'vllm:num_requests_running{engine="0",model_name="m"} 2.0\n'
    'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5\n'
    'vllm:generation_tokens_total{engine="0",model_name="m"} 100.0\n'
)
SECRET = "sk-very-secret-key"


@pytest.fixture
def source():
    opened = []

    def start(url, clock=None, **options):
        options.setdefault("timeout", 2.0)
        opened.append(EngineSource(EngineTarget(url, **options), "h", clock or SystemClock()))
        return opened[-1]

    yield start
    for engine in opened:
        engine.close()


def value(batch, name, **labels):
    for key, number in zip(batch.keys, batch.values, strict=True):
        if name_of(key) == "gpuwatch_engine_" + name and all(label(key, k) == v for k, v in labels.items()):
            return number
    return None


def facts(batch):
    return {fact.key: fact.value for fact in batch.facts}


def failed(batch, reason, *parts):
    assert not batch.up
    assert batch.reason is reason, batch.detail
    assert batch.keys == ()
    assert all(part in batch.detail for part in parts), batch.detail
    assert "\n" not in batch.detail
    assert "Traceback" not in batch.detail


def answer(body, head="HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n", length=None):
    body = body.encode() if isinstance(body, str) else body
    return f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def read_request(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(4096)
        if not part:
            raise OSError
        data += part
    return data.decode()


def say_nothing(connection, server):
    server.over.wait()


# What a good server gives


def test_one_get_per_poll_and_the_same_keys_object_while_nothing_changes(site, fixture_page, source):
    site.serve("/metrics", fixture_page("vllm-0.32.0-storm.txt"))
    site.serve("/version", json.dumps({"version": "0.32.0"}), kind="application/json")
    site.serve("/v1/models", json.dumps({"data": [{"id": "tiny", "max_model_len": 4096}]}), kind="application/json")
    clock = ManualClock(5000)
    engine = source(site.url, clock)
    first = engine.poll()
    clock.advance(1)
    second = engine.poll()
    third = engine.poll()
    assert (first.target, first.time, second.time) == (f"engine:{site.url[7:]}", 5000, 6000)
    assert first.up
    assert second.keys is first.keys is third.keys
    assert value(first, "requests_waiting") == 5.0
    assert value(first, "config_max_model_len_tokens") == 4096.0
    assert value(first, "info", version="0.32.0") == 1.0
    assert facts(first) == {"engine": "vllm", "version": "0.32.0", "served_model_name": "tiny", "max_model_len": 4096}
    assert second.facts == ()
    assert site.count("/metrics") == 3
    assert (site.count("/version"), site.count("/v1/models")) == (1, 1)
    assert {label(key, "server") for key in first.keys} == {site.url[7:]}
    headers = site.asked[0][1]
    assert (headers["Accept"], headers["Accept-Encoding"]) == ("text/plain; version=0.0.4", "gzip")
    assert "Authorization" not in headers


def test_what_the_server_does_not_tell_is_a_fact_and_no_failure(site, source):
    batch = source(site.url).poll()
    assert batch.up
    assert value(batch, "requests_running") == 2.0
    assert facts(batch)["engine_not_told"] == "/version: HTTP 404; /v1/models: HTTP 404"


def test_sglang_is_asked_under_its_new_and_its_old_path(site, fixture_page, source):
    site.serve("/metrics", fixture_page("sglang-0.4.6.txt"))
    document = {"version": "0.4.6.post5", "tp_size": 2, "api_key": SECRET, "max_total_num_tokens": 20000}
    site.serve("/get_server_info", json.dumps(document), kind="application/json")
    batch = source(site.url).poll()
    assert [path for path, _ in site.asked] == ["/metrics", "/server_info", "/get_server_info", "/v1/models"]
    assert value(batch, "config_tensor_parallel_size", engine_kind="sglang") == 2.0
    assert value(batch, "kv_cache_tokens") == 20000.0
    assert SECRET not in repr(batch)


def test_missing_series_of_the_version_are_absent_with_a_reason(site, source):
    site.serve("/version", json.dumps({"version": "0.32.0"}))
    engine = source(site.url)
    assert engine.coverage is None
    absent = {name_of(entry.labels): entry for entry in engine.poll().absent}
    assert str(engine.coverage).startswith(
        "vLLM 0.32.0: 3 of 27 known metrics present; missing: num_requests_waiting, "
    )
    assert absent["gpuwatch_engine_preemptions_total"].reason is Reason.NEVER_SEEN
    assert "vllm:num_preemptions_total" in absent["gpuwatch_engine_preemptions_total"].detail
    assert absent["gpuwatch_engine_requests_swapped"].reason is Reason.NOT_SUPPORTED


def test_token_goes_with_every_request_and_into_no_text(site, tmp_path, source):
    file = tmp_path / "token"
    file.write_text(SECRET + "\n")
    for options in ({"token": SECRET}, {"token_file": str(file)}):
        site.asked.clear()
        batch = source(site.url, **options).poll()
        assert {headers.get("Authorization") for _, headers in site.asked} == {f"Bearer {SECRET}"}
        assert SECRET not in repr(batch)
        assert SECRET not in repr(EngineTarget(site.url, token=SECRET))


def test_a_renewed_token_file_is_used_at_the_next_poll(site, tmp_path, source):
    file = tmp_path / "token"
    file.write_text("one")
    engine = source(site.url, token_file=str(file))
    engine.poll()
    file.write_text("two")
    engine.poll()
    assert site.asked[-1][1]["Authorization"] == "Bearer two"


def test_a_missing_token_file_is_said(site, tmp_path, source):
    failed(source(site.url, token_file=str(tmp_path / "no")).poll(), Reason.NOT_FOUND, "token_file", "does not exist")


@pytest.mark.parametrize(
    "token", ["sk-very\nX-Other: 1", "sk-very secret", "sk-véry", "sk-\x00very", "sk-very\r\nsecret"]
)
def test_a_token_that_no_header_can_carry_is_said_without_showing_it(token, site, tmp_path, source):
    file = tmp_path / "token"
    file.write_text(token + "\n", encoding="utf-8", newline="")
    for options, where in (({"token": token}, "the token is"), ({"token_file": str(file)}, f"token_file {file} is")):
        batch = source(site.url, **options).poll()
        failed(batch, Reason.UNAUTHORIZED, where, "line break", "HTTP header")
        assert "sk-" not in batch.detail
    assert site.asked == []


def test_a_token_with_a_line_break_at_its_end_is_used_without_it(site, source):
    assert source(site.url, token="sk-1\n").poll().up
    assert site.asked[0][1]["Authorization"] == "Bearer sk-1"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.mkdir(), "no regular file"),
        (os.mkfifo, "no regular file"),
        (lambda path: path.write_text("\n"), "is empty"),
        (lambda path: path.write_text("x" * 20_000), "over 16 KiB"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "cannot be read: UnicodeDecodeError"),
    ],
)
def test_a_token_file_that_is_none_is_said(make, words, site, tmp_path, source):
    make(tmp_path / "token")
    batch = source(site.url, token_file=str(tmp_path / "token")).poll()
    assert not batch.up
    assert words in batch.detail


def test_a_wrong_content_type_is_accepted_when_the_text_is_metrics(site, fixture_page, source):
    site.serve("/metrics", fixture_page("vllm-0.31.0-storm.txt"), kind="text/html")
    assert value(source(site.url).poll(), "requests_running") == 3.0


def test_gzip_is_read(site, fixture_page, source):
    site.serve("/metrics", gzip.compress(fixture_page("vllm-0.31.0-storm.txt")), Content_Encoding="gzip")
    assert value(source(site.url).poll(), "requests_running") == 3.0


def test_other_path_and_a_url_that_names_the_page(site, source):
    site.serve("/engine/1/stats", site.routes["/metrics"][2])
    assert source(site.url + "/engine/1", path="/stats").poll().up
    assert source(site.url + "/engine/1/stats", path="/stats").poll().up


@pytest.mark.parametrize(
    ("url", "page", "server"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000/metrics", "127.0.0.1:8000"),
        ("http://gpu-7", "http://gpu-7/metrics", "gpu-7:80"),
        ("https://x.example/v/", "https://x.example/v/metrics", "x.example:443"),
        ("http://h:1/metrics", "http://h:1/metrics", "h:1"),
        ("http://[::1]:8000", "http://[::1]:8000/metrics", "[::1]:8000"),
    ],
)
def test_addresses(url, page, server):
    target = EngineTarget(url)
    assert (target.page_url, target.server) == (page, server)


@pytest.mark.parametrize("url", ["", "http://", "ftp://h:1", "http://h:99999", "http://a b:1", "http://h:port"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ValueError, match="no address of an engine; expected http://HOST:PORT"):
        EngineTarget(url)


def test_a_password_in_a_refused_address_is_not_shown():
    with pytest.raises(ValueError, match="no address") as caught:
        EngineTarget(f"ftp://user:{SECRET}@h:1")
    assert SECRET not in str(caught.value)


def test_proxies_of_the_environment_are_never_used_for_this_machine(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert [proxies_for(f"http://{host}:8000") for host in ("127.0.0.1", "[::1]", "localhost", "127.9.9.9")] == [{}] * 4
    assert proxies_for("http://gpu-7.example:8000") == {"http": "http://127.0.0.1:9"}


def test_addresses_and_networks_of_no_proxy_are_asked_directly(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "10.0.0.0/8, .inner.example,host.example:8000")
    direct = ("10.1.2.3:8000", "a.inner.example", "host.example:8000")
    through = ("11.1.2.3:8000", "inner2.example", "host.example:9000")
    assert [proxies_for(f"http://{server}") for server in direct] == [{}] * 3
    assert [proxies_for(f"http://{server}") for server in through] == [{"http": "http://127.0.0.1:9"}] * 3


def test_a_proxy_gets_the_whole_address_and_its_password_and_the_engine_only_its_own(raw_server):
    asked = []

    def proxy(connection, server):
        asked.append(read_request(connection))
        connection.sendall(answer("x 1\n"))

    address = raw_server(proxy).url.replace("http://", "http://me:p%40ss@")
    client = Client(proxies={"http": address})
    got = client.get("http://gpu-7.example:8000/metrics?a=b", timeout=2, limit=100, accept="text/plain", token=SECRET)
    client.close()
    assert got.body == b"x 1\n"
    lines = asked[0].splitlines()
    assert lines[0] == "GET http://gpu-7.example:8000/metrics?a=b HTTP/1.1"
    assert "Host: gpu-7.example:8000" in lines
    assert "Proxy-Authorization: Basic bWU6cEBzcw==" in lines
    assert f"Authorization: Bearer {SECRET}" in lines


def test_https_goes_through_a_tunnel_of_the_proxy(raw_server, tls_site, certificate):
    asked = []

    def tunnel(connection, server):
        asked.append(read_request(connection))
        with socket.create_connection(("127.0.0.1", int(tls_site.url.rpartition(":")[2]))) as inner:
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=pass_on, args=(inner, connection), daemon=True)
            back.start()
            pass_on(connection, inner)
            back.join(20)

    client = Client(verify=str(certificate[0]), proxies={"https": raw_server(tunnel).url})
    got = client.get(tls_site.url + "/metrics", timeout=3, limit=10_000, accept="text/plain", token=SECRET)
    client.close()
    assert got.status == 200
    assert asked[0].startswith(f"CONNECT {tls_site.url[8:]} HTTP/1.")
    assert SECRET not in asked[0]


def pass_on(reader, writer):
    with suppress(OSError):
        while data := reader.recv(65536):
            writer.sendall(data)
        writer.shutdown(socket.SHUT_WR)


def test_a_proxy_of_another_kind_is_refused():
    client = Client(proxies={"http": "socks5://127.0.0.1:9"})
    with pytest.raises(SourceError, match="proxy of the kind socks5:// is not supported"):
        client.get("http://gpu-7.example:8000/metrics", timeout=1, limit=100, accept="text/plain")


def test_a_password_in_the_address_is_sent_and_not_shown(site, source):
    batch = source(site.url.replace("http://", f"http://me:{SECRET}@")).poll()
    sent = base64.b64decode(site.asked[0][1]["Authorization"].removeprefix("Basic ")).decode()
    assert sent == f"me:{SECRET}"
    assert batch.up
    assert SECRET not in repr(batch)


def test_the_end_of_an_earlier_request_does_not_end_the_next(raw_server, source):
    def slow(connection, server):
        for pause in (0.0, 0.4):
            read_request(connection)
            server.over.wait(pause)
            connection.sendall(answer("x 1\n"))

    client = Client()
    url = raw_server(slow).url
    client.get(url, timeout=0.3, limit=100, accept="text/plain")
    assert client.get(url, timeout=2, limit=100, accept="text/plain").status == 200
    client.close()


# TLS


def test_a_missing_certificate_file_is_said(tls_site, source):
    failed(source(tls_site.url, ca_file="/no/such.pem").poll(), Reason.NOT_FOUND, "ca_file /no/such.pem")


def test_tls_with_the_right_certificate_file_and_without_verification(tls_site, certificate, source):
    assert source(tls_site.url, ca_file=str(certificate[0])).poll().up
    assert source(tls_site.url, verify=False).poll().up


def test_https_works_where_the_standard_library_was_imported_without_tls(tls_site, certificate):
    code = (
        "import sys\n"
        "from gpuwatch.footprint import stay_small\n"
        "stay_small('asyncio')\n"
        "import asyncio.base_events, http.client\n"
        "assert 'ssl' not in sys.modules and asyncio.base_events.ssl is None\n"
        "from gpuwatch.sources.engine.http import Client\n"
        "from gpuwatch.model import SourceError\n"
        "url, good = sys.argv[1:]\n"
        "def get(verify):\n"
        "    return Client(verify=verify).get(url, timeout=20, limit=100_000, accept='text/plain')\n"
        "assert get(good).status == 200\n"
        "try:\n"
        "    get(True)\n"
        "except SourceError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-c", code, tls_site.url + "/metrics", str(certificate[0])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "is not trusted" in done.stdout


def test_tls_with_an_untrusted_certificate_is_refused(tls_site, source):
    failed(source(tls_site.url).poll(), Reason.FAILED, "certificate", "not trusted", "ca_file")


def test_https_to_a_plain_server_is_said(site, source):
    failed(source(site.url.replace("http", "https")).poll(), Reason.FAILED, "does not speak TLS", "http://")


def test_http_to_a_tls_server_is_said(tls_site, source):
    failed(source(tls_site.url.replace("https", "http")).poll(), Reason.FAILED, "is it https://?")


@pytest.mark.parametrize(
    "said",
    [
        b"Client sent an HTTP request to an HTTPS server.\n",
        b"<html><head><title>400 The plain HTTP request was sent to HTTPS port</title></head></html>",
        b"Instead use the HTTPS scheme to access this URL, please.<br />",
    ],
    ids=["Go", "nginx", "Apache"],
)
def test_a_server_that_answers_plain_http_on_its_tls_port_is_understood(said):
    assert tls_hint(400, said) == "; is it https://?"
    assert tls_hint(404, said) == tls_hint(400, b"bad request") == ""


def test_a_server_that_answered_before_is_not_asked_for_https():
    closed = ConnectionResetError()
    assert str(explain_failure(closed, "http://a:1/m", 1.0)).endswith("without an answer; is it https://?")
    assert str(explain_failure(closed, "http://a:1/m", 1.0, answered=True)).endswith("without an answer")
    assert str(explain_failure(closed, "https://a:1/m", 1.0)).endswith("without an answer")


# Servers that do not answer, or not completely


def test_nothing_listens(source):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    failed(source(f"127.0.0.1:{port}").poll(), Reason.UNREACHABLE, "connection refused", f"127.0.0.1:{port}")


def test_a_name_that_does_not_exist(source):
    failed(source("http://no-such-host.invalid:1").poll(), Reason.UNREACHABLE, "no-such-host.invalid")


AMPLE = 15.0  # on a busy machine; what these tests wait for never comes


def within(seconds, engine):
    begun = time.monotonic()
    batch = engine.poll()
    assert time.monotonic() - begun < seconds
    return batch


def test_a_server_that_says_nothing(raw_server, source):
    server = raw_server(say_nothing)
    failed(within(AMPLE, source(server.url, timeout=0.3)), Reason.TIMEOUT, "within 0.3 s")


@pytest.mark.parametrize("part", ["headers", "body", "chunks"])
def test_a_slow_drip_ends_at_the_deadline_wherever_it_is(part, raw_server, source):
    starts = {
        "headers": b"HTTP/1.1 200 OK\r\nX-Slow: ",
        "body": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100000\r\n\r\n",
        "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    }

    def drip(connection, server):
        read_request(connection)
        connection.sendall(starts[part])
        while not server.over.wait(0.05):
            connection.sendall(b"1\r\nx\r\n" if part == "chunks" else b"x")

    server = raw_server(drip)
    failed(within(AMPLE, source(server.url, timeout=0.4)), Reason.TIMEOUT, "no complete answer", "0.4 s")


def test_a_tls_handshake_that_never_ends(raw_server, source):
    def drip(connection, server):
        connection.sendall(b"\x16\x03\x03\x40\x00")  # a record of 16 KiB, byte by byte
        while not server.over.wait(0.05):
            connection.sendall(b"\x02")

    server = raw_server(drip)
    failed(within(AMPLE, source(server.url.replace("http", "https"), timeout=0.4)), Reason.TIMEOUT, "0.4 s")


@pytest.mark.parametrize(
    ("answer_bytes", "part"),
    [
        (answer("vllm:num_requests_running 1\n", length=5000), "cut short"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\nvllm:num_req", "cut short"),
        (b"HTTP/1.1 200 OK\r\n\r\nvllm:num_requests_running 1\nvllm:num_requests_wai", "in the middle of a line"),
        (b"", "closed the connection"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "closed the connection"),
    ],
    ids=["length", "chunked", "no-length", "no-answer", "not-http"],
)
def test_an_answer_that_is_cut_off(answer_bytes, part, raw_server, source):
    def cut(connection, server):
        read_request(connection)
        connection.sendall(answer_bytes)
        connection.shutdown(socket.SHUT_WR)  # half-closed: the server still reads
        server.over.wait(0.5)

    server = raw_server(cut)
    failed(within(AMPLE, source(server.url)), Reason.FAILED, part)


def test_headers_that_are_cut_off_are_an_empty_page_and_print_nothing(raw_server, source, caplog, capfd):
    def cut(connection, server):
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nConte")

    failed(source(raw_server(cut).url).poll(), Reason.NOT_METRICS, "is empty")
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_a_connection_that_is_reset(raw_server, source):
    def reset(connection, server):
        read_request(connection)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    failed(source(raw_server(reset).url).poll(), Reason.FAILED, "closed the connection")


def test_an_idle_connection_that_the_server_closed_is_opened_again_without_a_failed_poll(
    raw_server, fixture_page, source
):
    page = fixture_page("vllm-0.31.0-storm.txt")

    def once(connection, server):
        for served in ("/metrics", "/version", "/v1/models"):
            asked = read_request(connection)
            connection.sendall(answer(page if served in asked and served == "/metrics" else "{}"))
        read_request(connection)  # the next poll comes, and finds the connection closed

    server = raw_server(once)
    engine = source(server.url)
    assert engine.poll().up
    assert engine.poll().up
    assert server.connections == 2


def test_close_from_another_thread_ends_a_poll(raw_server, source):
    server = raw_server(say_nothing)
    engine = source(server.url, timeout=30.0)
    batches = []
    reader = threading.Thread(target=lambda: batches.append(engine.poll()))
    reader.start()
    while not server.connections:
        time.sleep(0.01)
    time.sleep(0.05)
    engine.close()
    engine.close()
    reader.join(20)
    assert not reader.is_alive()
    assert not batches[0].up


# Servers that answer something else


@pytest.mark.parametrize(
    ("body", "kind", "part"),
    [
        ("", "text/plain", "is empty"),
        ("\n \n", "text/plain", "is empty"),
        ("<!DOCTYPE html>\n<html><body>hello</body></html>\n", "text/html", "web page (HTML)"),
        ("<html>\nvllm:num_requests_running 1\n</html>\n", "text/plain", "web page (HTML)"),
        (b"\x7fELF\x00\x01\x02\n" * 50, "application/octet-stream", "binary data"),
        ('{"detail":"Not Found"}\n', "application/json", "JSON"),
        ("just some words\nand more\n", "text/plain", "no line of"),
        ("# HELP only comments\n", "text/plain", "no line of"),
        (bytes(range(1, 256)) * 20 + b"\n", "text/plain", "no line of"),
        ("process_cpu_seconds_total 3\npython_info 1\n", "text/plain", "no vLLM or SGLang metric"),
    ],
)
def test_a_page_that_is_no_engine_s(body, kind, part, site, source):
    site.serve("/metrics", body, kind=kind)
    failed(source(site.url).poll(), Reason.NOT_METRICS, part)


def test_a_page_of_20_mb_is_not_read_to_its_end(site, raw_server, source):
    line = b'vllm:num_requests_running{model_name="m"} 1\n'
    site.serve("/metrics", line * (20_000_000 // len(line)))
    failed(source(site.url, timeout=5.0).poll(), Reason.TOO_LARGE, "over 16 MiB")
    sent = []

    def endless(connection, server):
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        with suppress(OSError):
            while not server.over.is_set():
                connection.sendall(line * 100)
                sent.append(len(line) * 100)

    failed(source(raw_server(endless).url, max_bytes=100_000).poll(), Reason.TOO_LARGE, "over 100000 bytes")
    time.sleep(0.05)
    total = sum(sent)
    time.sleep(0.1)
    assert sum(sent) == total  # the connection is closed, not just left


def test_a_gzip_bomb_stops_at_the_limit(site, source):
    site.serve("/metrics", gzip.compress(b"x" * 30_000_000), Content_Encoding="gzip")
    failed(source(site.url).poll(), Reason.TOO_LARGE, "over 16 MiB")


def test_more_lines_than_any_engine_has_are_refused(site, source):
    site.serve("/metrics", b"\n" * 600_000 + b"x 1\n")
    failed(source(site.url).poll(), Reason.TOO_LARGE, "500,000 lines")


def test_gzip_that_is_none(site, source):
    site.serve("/metrics", b"vllm:num_requests_running 1\n", Content_Encoding="gzip")
    failed(source(site.url).poll(), Reason.NOT_METRICS, "not gzip")


def test_gzip_that_is_cut_off(site, fixture_page, source):
    packed = gzip.compress(fixture_page("vllm-0.31.0-storm.txt"))
    site.serve("/metrics", packed[: len(packed) // 2], Content_Encoding="gzip")
    failed(source(site.url).poll(), Reason.FAILED, "cut short")


def test_an_encoding_that_was_not_asked_for(site, source):
    site.serve("/metrics", b"\x0b\x02", Content_Encoding="br")
    failed(source(site.url).poll(), Reason.NOT_METRICS, "'br'", "gzip is read")


@pytest.mark.parametrize(
    ("status", "reason", "parts"),
    [
        (401, Reason.UNAUTHORIZED, ["HTTP 401", "token_file"]),
        (403, Reason.UNAUTHORIZED, ["HTTP 403"]),
        (404, Reason.NOT_FOUND, ["no /metrics at", "--enable-metrics"]),
        (500, Reason.FAILED, ["HTTP 500"]),
        (503, Reason.FAILED, ["HTTP 503"]),
    ],
)
def test_a_status_that_is_not_200(status, reason, parts, site, source):
    site.serve("/metrics", "sorry\n", status=status)
    failed(source(site.url).poll(), reason, *parts)


def test_a_refused_token_is_said_without_showing_it(site, source):
    site.serve("/metrics", "no\n", status=401)
    batch = source(site.url, token=SECRET).poll()
    failed(batch, Reason.UNAUTHORIZED, "the token was refused")
    assert SECRET not in repr(batch)


def test_redirects_are_followed_a_few_times_only(site, source):
    site.serve("/a", "", status=307, Location="/metrics")
    assert source(site.url, path="/a").poll().up
    site.serve("/metrics", "", status=302, Location="/metrics")
    failed(source(site.url).poll(), Reason.FAILED, "redirects more than 3 times")


def test_a_redirect_to_another_host_does_not_take_the_token_along(site, raw_server, source):
    asked = []

    def listen(connection, server):
        asked.append(read_request(connection))
        connection.sendall(answer("x 1\n"))

    other = raw_server(listen).url.replace("127.0.0.1", "localhost")
    site.serve("/metrics", "", status=302, Location=other + "/metrics")
    source(site.url, token=SECRET).poll()
    assert asked
    assert SECRET not in asked[0]


def test_an_error_after_a_redirect_names_the_host_that_failed(site, source):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    site.serve("/metrics", "", status=302, Location=f"http://localhost:{port}/metrics")
    failed(source(site.url).poll(), Reason.UNREACHABLE, f"nothing listens at localhost:{port}")


def test_a_redirect_to_something_that_is_not_http(site, source):
    site.serve("/metrics", "", status=302, Location="file:///etc/passwd")
    failed(source(site.url).poll(), Reason.FAILED, "cannot be read")


# Pages that change


def page(running=1, generated=100, start=1000.5, extra=""):
    return (
        f"process_start_time_seconds {start}\n"
        f'vllm:num_requests_running{{engine="0",model_name="m"}} {running}\n'
        f'vllm:generation_tokens_total{{engine="0",model_name="m"}} {generated}\n{extra}'
    )


def test_recovers_from_a_failure_with_the_same_keys(site, source):
    engine = source(site.url)
    first = engine.poll()
    good = site.routes["/metrics"]
    site.serve("/metrics", "starting", status=503)
    failed(engine.poll(), Reason.FAILED, "503")
    site.routes["/metrics"] = good
    assert engine.poll().keys is first.keys


def test_a_new_start_time_is_a_restart_and_the_server_is_asked_again(site, source):
    clock = ManualClock(1_000_000)
    site.serve("/metrics", page(generated=500))
    site.serve("/version", json.dumps({"version": "0.31.0"}))
    engine = source(site.url, clock)
    assert "engine_restarted" not in facts(engine.poll())
    site.serve("/metrics", page(generated=3, start=2000.25))
    site.serve("/version", json.dumps({"version": "0.32.0"}))
    clock.advance(1)
    batch = engine.poll()
    assert facts(batch)["engine_restarted"] == "process_start_time_seconds changed from 1000.50 to 2000.25"
    assert next(fact for fact in batch.facts if fact.key == "engine_restarted").time == 1_001_000
    assert value(batch, "info", version="0.32.0") == 1.0
    assert site.count("/version") == 2
    assert engine.poll().facts == ()


def test_a_counter_that_falls_is_a_restart_where_the_page_has_no_start_time(site, source):
    def without_start(generated):
        return page(generated=generated).partition("\n")[2]

    site.serve("/metrics", without_start(500))
    engine = source(site.url)
    engine.poll()
    site.serve("/metrics", without_start(7))
    assert facts(engine.poll())["engine_restarted"] == "gpuwatch_engine_generation_tokens_total fell from 500 to 7"
    site.serve("/metrics", without_start(8))
    assert "engine_restarted" not in facts(engine.poll())


def test_a_restart_behind_a_changed_layout_is_seen_too(site, source):
    site.serve("/metrics", page(generated=500).partition("\n")[2])
    engine = source(site.url)
    engine.poll()
    more = 'vllm:num_requests_waiting{engine="0",model_name="m"} 0\n'
    site.serve("/metrics", page(generated=7, extra=more).partition("\n")[2])
    assert "engine_restarted" in facts(engine.poll())


def test_two_processes_behind_one_port_are_not_endless_restarts(site, source):
    engine = source(site.url)
    told = []
    for turn in range(6):
        site.serve("/metrics", page(generated=500 if turn % 2 else 20, start=1000.0 + turn % 2))
        told += facts(engine.poll())
    assert told.count("engine_restarted") == 1
    assert told.count("engine_answers_alternate") == 1


def test_metrics_renamed_while_we_watch_are_found_under_their_new_names(site, fixture_page, source):
    site.serve("/metrics", fixture_page("vllm-0.10.2-storm.txt"))
    engine = source(site.url)
    before = engine.poll()
    site.serve("/metrics", fixture_page("vllm-0.31.0-storm.txt"))
    after = engine.poll()
    assert value(before, "kv_cache_usage_ratio") == value(after, "kv_cache_usage_ratio") == 0.8974358974358975
    assert value(before, "asleep") is None
    assert value(after, "asleep") == 0.0
    assert value(after, "requests_waiting") == 13.0


def test_series_that_do_not_concern_us_change_the_page_but_not_our_keys(site, source):
    site.serve("/metrics", page())
    engine = source(site.url)
    first = engine.poll()
    site.serve("/metrics", page(extra='http_requests_total{handler="/v1/completions"} 1\n'))
    assert engine.poll().keys is first.keys


def test_another_engine_on_the_same_port_is_recognised(site, fixture_page, source):
    site.serve("/metrics", fixture_page("vllm-0.31.0-storm.txt"))
    engine = source(site.url)
    engine.poll()
    site.serve("/metrics", fixture_page("sglang-0.4.6.txt"))
    batch = engine.poll()
    assert {label(key, "engine_kind") for key in batch.keys} == {"sglang"}
    assert engine.info.kind == "sglang"


def test_a_page_that_is_none_of_metrics_is_told_as_a_fact_until_it_is_one(site, source):
    site.serve("/metrics", b"<!DOCTYPE html><title>Sign in</title>\n")
    engine = source(site.url)
    assert "is a web page (HTML), not metrics" in facts(engine.poll())["page.other"]
    assert "page.other" not in facts(engine.poll())
    # Metrics of Python alone are a metrics page: there the engine's own are switched off.
    site.serve("/metrics", b"python_info 1.0\n")
    batch = engine.poll()
    assert batch.reason is Reason.NOT_METRICS
    assert facts(batch)["page.other"] == ""


def test_unreadable_lines_are_counted_as_a_fact_when_their_number_changes(site, source):
    site.serve("/metrics", page(extra="this line is broken\n"))
    engine = source(site.url)
    batch = engine.poll()
    assert batch.up
    assert facts(batch)["engine_page_unreadable_lines"] == 1
    assert "engine_page_unreadable_lines" not in facts(engine.poll())


def test_a_server_too_slow_to_say_who_it_is_delays_the_first_poll_by_the_timeout_at_most(raw_server, source):
    body = page()
    waited = []

    def talk(connection, server):
        while True:
            if "/metrics" in read_request(connection):
                connection.sendall(answer(body))
            else:
                waited.append(connection)
                server.over.wait()

    clock = SystemClock()
    engine = source(raw_server(talk).url, clock, timeout=0.4)
    batch = within(AMPLE, engine)
    assert batch.up
    assert value(batch, "requests_running") == 1.0
    assert "within" in facts(batch)["engine_not_told"]
    first = len(waited)
    assert first
    assert engine.poll().up
    assert len(waited) == first  # the next polls do not ask again


def test_a_server_that_was_too_slow_is_asked_again_after_a_pause(site, source):
    clock = ManualClock()
    site.serve("/metrics", page())
    site.serve("/version", "busy", status=503)
    engine = source(site.url, clock)
    engine.poll()
    engine.poll()
    assert site.count("/version") == 1
    site.serve("/version", json.dumps({"version": "0.32.0"}))
    clock.advance(5)
    batch = engine.poll()
    assert value(batch, "info", version="0.32.0") == 1.0
    clock.advance(500)
    engine.poll()
    assert site.count("/version") == 2


def test_labels_of_ours_are_on_every_series(site, source):
    batch = source(site.url, server="gpu-7:8000").poll()
    assert {(label(key, "host"), label(key, "server")) for key in batch.keys} == {("h", "gpu-7:8000")}
    running = series(
        "gpuwatch_engine_requests_running",
        host="h",
        server="gpu-7:8000",
        engine_kind="vllm",
        model_name="m",
        dp_rank="0",
    )
    assert running in batch.keys


def test_a_reading_that_is_no_number_is_absent_with_a_reason_and_the_rest_is_kept(site, fixture_page, source):
    reader = source(site.url)
    body = fixture_page("vllm-0.32.0-storm.txt")
    site.serve("/metrics", body)
    whole = reader.poll()
    site.serve("/metrics", re.sub(rb"(?m)^(vllm:kv_cache_usage_perc\{[^}]*\}) .*$", rb"\1 NaN", body))
    broken = reader.poll()
    assert broken.up
    lost = {"gpuwatch_engine_kv_cache_usage_ratio", "gpuwatch_engine_kv_cache_free_tokens"}
    assert {name_of(key) for key in set(whole.keys) - set(broken.keys)} == lost
    said = {name_of(one.labels): one for one in broken.absent if one not in whole.absent}
    assert said.keys() == lost
    assert all(one.reason is Reason.FAILED and "NaN" in one.detail for one in said.values())
    site.serve("/metrics", body)
    assert reader.poll().absent == whole.absent


def test_a_start_time_that_is_no_number_is_not_an_endless_restart(site, source):
    site.serve("/metrics", TINY + "process_start_time_seconds NaN\n")
    reader = source(site.url)
    reader.poll()
    assert "engine_restarted" not in facts(reader.poll())


def test_a_pool_size_beyond_every_number_is_absent_and_the_rest_is_kept(site, source):
    info = 'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="' + "9" * 400 + '"} 1.0\n'
    site.serve("/metrics", TINY + info)
    batch = source(site.url).poll()
    assert batch.up, batch.detail
    assert value(batch, "requests_running") == 2
    assert value(batch, "kv_block_size_tokens") == 16
    assert value(batch, "kv_cache_blocks") is None


def test_thousands_of_models_on_one_page_are_cut_and_said(site, source):
    line = 'vllm:request_success_total{{engine="0",finished_reason="stop",model_name="m{0}"}} {0}\n'
    site.serve("/metrics", TINY + "".join(line.format(number) for number in range(16_000)))
    batch = source(site.url).poll()
    assert batch.up
    assert len(batch.keys) == 15_000
    # With the 3 series of the one model that runs and the info series there are 16,004.
    assert value(batch, "requests_running", model_name="m") == 2
    assert batch.detail.startswith("1,005 series of this page are left out; at most 15,000 are kept")
    assert batch.dropped == 1005
