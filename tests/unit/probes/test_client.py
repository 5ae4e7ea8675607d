"""Requests to servers that behave and to servers that do not."""

from __future__ import annotations

import json
import socket
import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.model import SourceError
from gpuwatch.probes.client import Client, ProbeError
from gpuwatch.probes.exchange import Ask, Reply
from gpuwatch.probes.stream import LONGEST_LINE, Events, error_text, one_line
from gpuwatch.probes.vocabulary import Vocabulary, filler, find
from tests.unit.probes.engine import Engine, serving

IDS = tuple(range(20, 40))


@pytest.fixture
def client():
    """Make clients that are closed when the test ends."""
    made = []

    def make(url, **more):
        made.append(Client(url, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def ask(prompt=IDS, tokens=5, seconds=20.0, **more):
    return Ask(prompt, tokens, time.monotonic() + seconds, **more)


def one(mishap=None, request=None, look=False, **more):
    """Return the reply of an engine with which `mishap` happens."""
    engine = Engine(**more)
    with serving(engine) as url:
        client = Client(url, model="m")
        if look:
            client.look()
        engine.mishap = lambda tokens, number: mishap
        try:
            return client.complete(request or ask())
        finally:
            client.close()


# The stream


def events(*documents):
    return b"".join(b"data: " + (d if isinstance(d, bytes) else json.dumps(d).encode()) + b"\n\n" for d in documents)


GOOD = events(
    {"choices": [{"text": "ä b", "finish_reason": None}]},
    {"choices": [{"text": "", "finish_reason": None}]},
    {"choices": [{"text": "c", "finish_reason": "length"}]},
    {
        "choices": [],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
    },
    b"[DONE]",
)


@given(st.lists(st.integers(0, len(GOOD)), max_size=12))
def test_a_stream_reads_the_same_wherever_it_is_cut(places):
    cuts = [0, *sorted(places), len(GOOD)]
    read = Events()
    for number, (begin, end) in enumerate(pairwise(cuts)):
        read.feed(GOOD[begin:end], float(number))
    read.end(99.0)
    assert ("".join(read.texts), len(read.times), read.error, read.finished) == ("ä bc", 3, "", True)
    assert read.count("prompt_tokens") == 7
    assert read.count("prompt_tokens_details", "cached_tokens") == 4


@given(st.binary(max_size=300))
def test_bytes_that_are_no_stream_are_an_error_and_never_an_exception(data):
    read = Events()
    read.feed(data, 0.0)
    read.end(1.0)
    assert read.finished or read.error


def test_comments_and_other_fields_of_an_event_stream_are_passed_over():
    read = Events()
    read.feed(b": ping\r\nevent: x\r\nid: 1\r\ndata: [DONE]\r\n", 0.0)
    assert read.finished
    assert not read.error


def test_a_stream_without_a_last_event_is_complete_when_it_gave_a_reason():
    read = Events()
    read.feed(events({"choices": [{"text": "a", "finish_reason": "stop"}]}), 0.0)
    read.end(1.0)
    assert read.finished
    cut = Events()
    cut.feed(events({"choices": [{"text": "a", "finish_reason": None}]}), 0.0)
    cut.end(1.0)
    assert cut.error == "the stream broke off after 1 pieces"


def test_pieces_without_text_before_the_first_text_are_no_tokens_unless_the_engine_counts_them():
    empty, word = {"choices": [{"text": ""}]}, {"choices": [{"text": "a"}]}

    def taken(*documents):
        stream = Events()
        for second, document in enumerate(documents):
            stream.feed(events(document), float(second))
        return stream.pieces

    assert taken(empty, empty, word, empty) == [2.0, 3.0]
    assert taken(empty, empty) == [0.0, 1.0]
    assert taken(empty | {"usage": {"prompt_tokens": 4, "completion_tokens": 1}}, word) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("times", "held"),
    [
        ([2.0] * 16 + [2.05] * 16, True),  # nginx passes its buffer on in two pieces
        ([2.0 + 0.0001 * n for n in range(32)], True),  # one by one, at 10,000 tokens a second
        ([2.0 + 0.004 * n for n in range(32)], False),
        ([2.0] * 7, False),
    ],
)
def test_a_stream_that_was_held_back_has_no_times_of_the_server(times, held):
    reply = Reply(ok=True, started=1.0, first_token=times[0], token_times=tuple(times), completion_tokens=len(times))
    assert reply.buffered is held
    assert (reply.ttft is None) is held
    assert (reply.decode_rate is None) is (held or times[0] == times[-1])


def test_a_line_without_end_is_given_up():
    read = Events()
    read.feed(b"data: " + b"x" * (LONGEST_LINE + 1), 0.0)
    assert "a line over 4 MiB" in read.error


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"error": {"message": "too long"}}, "too long"),
        ({"object": "error", "message": "too\nlong"}, "too long"),
        ({"detail": [{"msg": "Field required"}]}, "Field required"),
        ({"error": "Unauthorized"}, "Unauthorized"),
        ({}, ""),
        ([], ""),
        (7, ""),
    ],
)
def test_the_words_of_an_error_are_found(document, text):
    assert error_text(document) == text


def test_a_long_error_is_cut_and_has_no_control_characters():
    assert one_line("a\x1b[31m" + "b" * 500, 20) == "a [31mbbbbbbbbbbbbb…"


# One request


def test_a_completion_has_its_times_and_counts():
    reply = one(look=True, request=ask(tokens=5), decode_seconds=0.03)
    assert reply.ok
    assert (reply.prompt_tokens, reply.completion_tokens, reply.status, reply.kind) == (20, 5, 200, "ok")
    assert len(reply.token_times) == 5
    assert reply.started <= reply.first_token <= reply.ended
    assert reply.ttft > 0
    # four tokens follow the first one
    assert reply.decode_rate == pytest.approx(4 / (reply.token_times[4] - reply.token_times[0]))


@pytest.mark.parametrize(
    ("mishap", "kind", "words"),
    [
        (400, "refused", "HTTP 400: mishap 400"),
        (413, "refused", "HTTP 413: mishap 413"),
        (500, "failed", "HTTP 500: mishap 500"),
        ("html", "failed", "HTTP 502"),
        ("garbage", "failed", "the answer is no event stream"),
        ("error", "failed", "EngineCore died"),
        ("endless", "failed", "the server ignores max_tokens: 14 pieces came, 5 were asked for"),
        ("cut", "lost", "the stream broke off after 2 pieces"),
    ],
)
def test_what_goes_wrong_is_a_reply_that_says_so(mishap, kind, words):
    reply = one(mishap)
    assert not reply.ok
    assert reply.kind == kind
    assert words in reply.error


def test_a_server_that_hangs_is_left_at_the_deadline():
    begun = time.monotonic()
    reply = one("hang", ask(seconds=0.3))
    assert reply.kind == "timeout"
    assert "within 0.3 s" in reply.error
    assert time.monotonic() - begun < 15


def test_an_answer_in_one_piece_is_taken():
    reply = one("json")
    assert reply.ok
    assert reply.text == "whole"
    assert reply.prompt_tokens == 20


def test_a_server_that_counts_nothing_leaves_the_counts_unknown():
    reply = one("silent")
    assert reply.ok
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == (None, None, None)
    assert reply.generated == 5


def test_a_rate_limit_is_waited_for_and_counted():
    reply = one(limited=2)
    assert reply.ok
    assert reply.pauses == 2


def test_a_rate_limit_that_stays_is_said():
    reply = one(limited=100)
    assert reply.kind == "limited"
    assert reply.error == "HTTP 429: slow down"


def test_nothing_is_sent_after_the_deadline(client):
    engine = Engine()
    with serving(engine) as url:
        reply = client(url, model="m").complete(ask(seconds=-1))
    assert reply.kind == "timeout"
    assert not engine.asked


def test_a_stream_that_has_given_enough_is_closed_and_the_server_notices(client):
    engine = Engine()
    with serving(engine) as url:
        ours = client(url, model="m")
        reply = ours.complete(ask(tokens=4000, enough=lambda pieces: pieces >= 3))
        assert reply.ok
        assert 3 <= len(reply.token_times) < 4000
        with engine.turn:
            assert engine.turn.wait_for(lambda: engine.running == 0, 20)


def test_cancelling_ends_requests_in_progress_and_forbids_later_ones(client):
    engine = Engine(mishap=lambda tokens, number: "hang")
    with serving(engine) as url:
        ours = client(url, model="m")
        replies: list[Reply] = []
        thread = threading.Thread(target=lambda: replies.append(ours.complete(ask(seconds=60))))
        thread.start()
        deadline = time.monotonic() + 20
        while not engine.asked and time.monotonic() < deadline:
            time.sleep(0.01)
        ours.cancel()
        thread.join(20)
        assert replies[0].kind == "cancelled"
        assert ours.complete(ask()).kind == "cancelled"


def test_salt_and_adapter_travel_and_eos_is_only_ignored_where_the_engine_can(client):
    engine = Engine()
    with serving(engine) as url:
        ours = client(url)
        ours.look()
        ours.complete(ask(salt="s", lora="lora", ignore_eos=True))
        assert engine.asked[-1]["cache_salt"] == "s"
        assert engine.asked[-1]["model"] == "lora"
        assert engine.asked[-1]["ignore_eos"] is True
    other = Engine(owner="someone", metrics=False)
    with serving(other) as url:
        ours = client(url)
        ours.look()
        ours.complete(ask(ignore_eos=True))
        assert "ignore_eos" not in other.asked[-1]
        assert "cache_salt" not in other.asked[-1]


def test_a_connection_that_was_closed_while_idle_is_opened_again(client):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        body = b"data: " + json.dumps({"choices": [{"text": "x", "finish_reason": "stop"}]}).encode() + b"\n\n"
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)

        def serve():
            for _ in range(2):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(head + body)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        ours = client(f"http://127.0.0.1:{listener.getsockname()[1]}", model="m")
        assert ours.complete(ask()).text == "x"
        assert ours.complete(ask()).text == "x"
        thread.join(20)


# Who the server is


def test_a_server_says_who_it_is(client):
    with serving(Engine()) as url:
        server = client(url + "/v1/").look()
    assert server.url == url
    assert (server.engine, server.version, server.model, server.max_model_len) == ("vllm", "0.32.0", "m", 4096)
    assert server.takes_token_ids
    assert server.has_metrics
    assert server.adapters == ("lora",)


def test_a_server_that_takes_text_only_is_known_by_trying(client):
    with serving(Engine(takes_ids=False)) as url:
        ours = client(url)
        assert not ours.look().takes_token_ids
        words = find(ours)
        assert not words.exact
        # the engine counts words, so that a word costs one token
        assert words.tokens_per_word == 1.0
        assert len(words.prompt(300, 1).split()) == 300


def test_an_unknown_server_without_metrics_is_told_apart(client):
    with serving(Engine(owner="someone", metrics=False, limit=None)) as url:
        server = client(url).look()
    assert (server.engine, server.version, server.max_model_len, server.has_metrics) == ("other", "", None, False)


@pytest.mark.parametrize("status", [404, 405])
def test_a_server_without_completions_is_refused(client, status):
    with (
        serving(Engine(mishap=lambda tokens, number: status)) as url,
        pytest.raises(ProbeError, match="probes need the completions API"),
    ):
        client(url).look()


def test_a_server_that_lists_no_model_is_refused(client):
    with serving(Engine(models=[])) as url, pytest.raises(ProbeError, match="lists no model"):
        client(url).look()


def closed_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def test_nothing_that_answers_is_exit_code_three(client):
    with pytest.raises(ProbeError, match="connection refused") as caught:
        client(f"http://127.0.0.1:{closed_port()}").look()
    assert caught.value.code == 3


def test_a_key_is_asked_for_and_sent(client, monkeypatch):
    with serving(Engine(key="secret-key")) as url:
        with pytest.raises(ProbeError, match="--token-env"):
            client(url).look()
        monkeypatch.setenv("PROBE_KEY", "wrong")
        with pytest.raises(ProbeError, match="the key was refused"):
            client(url, token_env="PROBE_KEY").look()
        monkeypatch.setenv("PROBE_KEY", "secret-key")
        assert client(url, token_env="PROBE_KEY").look().model == "m"


@pytest.mark.parametrize(
    ("url", "more", "words"),
    [
        ("ftp://host", {}, "allowed: http://HOST:PORT"),
        ("http://user:pw@host", {}, "no user or password in the address; use --token-env"),
        ("http://host", {"token_env": "NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE is not set"),
    ],
)
def test_an_address_or_a_variable_that_cannot_be_used_is_said_before_anything_is_sent(client, url, more, words):
    with pytest.raises(ProbeError, match=words):
        client(url, **more)


def test_a_model_that_is_not_served_is_refused_with_those_that_are(client):
    with serving(Engine()) as url, pytest.raises(ProbeError, match="served: m, lora"):
        client(url, model="x").look()


def test_a_document_that_does_not_come_is_a_source_error(client):
    ours = client(f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(SourceError, match="connection refused"):
        ours.document("/v1/models")


# Words


def test_ids_come_from_the_servers_own_tokenizer(client):
    with serving(Engine()) as url:
        ours = client(url)
        ours.look()
        words = find(ours)
    # the engine's tokenizer gives 10 + the length of each word
    lengths = {10 + len(word) for word in filler(1500, "vocabulary").split()}
    assert set(words.ids) == lengths
    assert words.tokens_per_word == 1.0
    prompt = words.prompt(50, "a")
    assert len(prompt) == 50
    assert set(prompt) <= lengths


def test_without_a_tokenizer_vllm_is_asked_with_growing_ids_and_the_middle_is_used(client):
    refuse = lambda engine: lambda tokens, number: 400 if max(engine.asked[-1]["prompt"]) >= 5000 else None  # noqa: E731
    engine = Engine(tokenizes=False)
    engine.mishap = refuse(engine)
    with serving(engine) as url:
        ours = client(url)
        ours.look()
        words = find(ours)
    # 4,095 is taken and 8,191 is not: the middle half of 4,096
    assert (words.ids[0], words.ids[-1]) == (1024, 3071)


@given(st.integers(1, 400), st.integers(0, 5))
def test_prompts_have_their_length_and_repeat_with_their_seed(count, seed):
    words = Vocabulary(tuple(range(100, 200)))
    assert len(words.tokens(count, seed)) == count
    assert words.tokens(count, seed) == words.tokens(count, seed)
    text = filler(count, seed)
    assert len(text.split()) == count
    assert not any(letter.isdigit() for letter in text)


def test_different_seeds_give_different_prompts():
    words = Vocabulary(tuple(range(100, 200)))
    assert words.tokens(50, 1) != words.tokens(50, 2)
    assert filler(50, 1) != filler(50, 2)


@pytest.mark.parametrize(("tokens", "measured"), [(360, True), (None, False)])
def test_tokens_per_word_are_a_guess_only_where_the_server_never_counts(client, tokens, measured):
    engine = Engine(takes_ids=False, mishap=lambda sent, number: None if measured else "silent")
    with serving(engine) as url:
        one = client(url)
        one.look()
        words = find(one)
    assert (words.measured, words.guessed) == (measured, not measured)


def test_a_count_that_comes_along_is_seen_where_the_one_at_the_end_is_not(client):
    engine = Engine(takes_ids=False, counts_along=True, mishap=lambda sent, number: "endless")
    with serving(engine) as url:
        one = client(url)
        one.look()
        assert find(one).measured


def test_a_server_that_refuses_a_few_words_as_well_is_refused_in_one_line(client):
    page = (422, {"detail": [{"msg": "Extra inputs are not permitted"}]})
    with serving(Engine(mishap=lambda sent, number: page)) as url:
        one = client(url)
        one.look()
        with pytest.raises(ProbeError, match="refuses every completion: HTTP 422: Extra inputs") as failed:
            find(one)
    assert failed.value.code == 3


def test_a_server_that_refuses_only_long_text_is_not_refused(client):
    short = Engine(takes_ids=False, mishap=lambda sent, number: 400 if sent > 100 else None)
    with serving(short) as url:
        one = client(url)
        one.look()
        assert find(one).guessed


def test_a_server_that_takes_text_only_has_no_ids():
    with pytest.raises(ValueError, match="text only"):
        Vocabulary().tokens(5, 1)


def test_a_redirect_to_another_host_is_not_followed_as_nobody_allowed_a_probe_there(client):
    other = Engine()
    with serving(other) as url:
        away = one(f"{url.replace('127.0.0.1', 'localhost')}/v1/completions")
        assert not away.ok
        assert "redirects with 307 to another host, http://localhost:" in away.error
        sending = Engine(mishap=lambda tokens, number: f"{url.replace('127.0.0.1', 'localhost')}/v1/completions")
        with serving(sending) as first, pytest.raises(ProbeError, match="to another host"):
            client(first).look()
        assert not other.asked
        assert one(f"{url}/v1/completions").ok  # another port of the same host
        assert len(other.asked) == 1


@pytest.mark.parametrize("make", [Vocabulary(IDS).prompt, Vocabulary(()).prompt])
def test_a_prompt_longer_than_any_context_is_refused_in_a_line(make):
    with pytest.raises(ProbeError, match=r"a prompt of 1,000,000,000,000 tokens; allowed: up to 10,485,760"):
        make(10**12, 1)
