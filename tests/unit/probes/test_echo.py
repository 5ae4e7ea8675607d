"""What a server says, without the key and the prompt that it repeats; the limit that it names."""

from __future__ import annotations

import hashlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.probes import context, prefix
from gpuwatch.probes.client import Client, ProbeError
from gpuwatch.probes.context import ContextOptions
from gpuwatch.probes.echo import without
from gpuwatch.probes.exchange import Ask
from gpuwatch.probes.named_limit import named, shortened
from gpuwatch.probes.prefix import PrefixOptions
from gpuwatch.probes.run import Run
from tests.unit.probes.engine import Engine, serving
from tests.unit.probes.scripted import PrefixCache, Scripted, running

KEY = "SEKRETKEY99"
OWN = "SECRETSYSTEM speaks for the bank of Falkenberg.\nNever name the vault of Muenster, account 99887766."


@pytest.mark.parametrize(
    "text",
    [
        f"Authentication Error. Received={KEY}, expected to start with sk-",
        f"Incorrect API key provided: Bearer {KEY}.",
        f"bad header 'Bearer%20{KEY}'",
        "Received API Key = SEKRETK..., which is not known",
        f"Key Hash (Token) ={hashlib.sha256(KEY.encode()).hexdigest()}. Unable to find it",
        "Incorrect API key provided: SE*******99",
    ],
)
def test_a_key_is_cut_out_whole_and_in_part(text):
    said = without(text, KEY, (1, 2, 3))
    assert "<redacted>" in said
    for part in ("SEKRET", "KEY99", "SE***", hashlib.sha256(KEY.encode()).hexdigest()[:8]):
        assert part not in said


@pytest.mark.parametrize(
    "text",
    [
        f"policy: {OWN}",
        f"[{{'loc': 'body', 'input': {{'model': 'm', 'prompt': '{OWN[:60]}'}}}}]",
        f"not allowed near: {OWN[13:42]}",
        f"not allowed near: {json.dumps(OWN)}",
        "blocked term SECRETSYSTEM by policy of account 99887766",
        "blocked term 'falkenberg' by policy",
        "blocked &lt;SECRETSYSTEM speaks&gt;",
    ],
)
def test_a_prompt_is_cut_out_whole_and_in_part(text):
    said = without(text, "", OWN).casefold()
    assert "<redacted>" in said
    for part in ("secretsystem", "falkenberg", "vault", "muenster", "99887766"):
        assert part not in said


def test_a_prompt_without_spaces_between_its_words_is_cut_out():
    said = without("内容不合规 秘密文件的内容 拒绝", "", "请总结这份秘密文件的内容。")
    assert said == "内容不合规 <redacted> 拒绝"
    assert "caf" not in without("bad: caf\\u00e9 f\\u00fcr alle Leute", "", "Ein Café für alle Leute in der Stadt")


def test_token_ids_are_cut_out():
    ids = tuple(range(100, 400, 7))
    assert "107" not in without(f"Value error, input_ids {list(ids)[:20]} is bad", "", ids)


@pytest.mark.parametrize(
    "text",
    [
        "HTTP 400: This model's maximum context length is 4096 tokens. However, you requested 8 output tokens.",
        "HTTP 422: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 8184 `inputs` tokens",
        "the stream broke off after 2 pieces",
        "HTTP 502",
    ],
)
def test_the_servers_own_words_stay(text):
    prompt = "What is the length of this model? However, the prompt may hold 'inputs', its tokens and output."
    assert without(text, "token-abc123", prompt) == text
    assert without(text, "", tuple(range(50))) == text


@given(st.text(max_size=80), st.text(max_size=80), st.text("abc1-", max_size=20))
def test_cutting_never_fails(text, prompt, key):
    assert isinstance(without(text, key, prompt), str)


def test_what_a_long_message_names_at_its_end_is_kept():
    text = shortened("HTTP 400: " + "wrapped " * 100 + "maximum context length is 4096 tokens. " + "more " * 100, 300)
    assert len(text) <= 300
    assert text.startswith("HTTP 400: wrapped")
    assert named(text).tokens == 4096


@pytest.mark.parametrize(
    ("text", "tokens", "counts"),
    [
        ("is longer than the maximum model length of 4096. Make sure", 4096, "request"),
        ("The input (8184 tokens) is longer than the model's context length (5000 tokens).", 5000, "request"),
        ("request (8184 tokens) exceeds the available context size (4096 tokens), try increasing it", 4096, "request"),
        ("Input length (8184 tokens) exceeds the maximum allowed length (5000 tokens)", 5000, "pool"),
        ("prompt is too long: 208310 tokens > 200000 maximum", 200_000, "prompt"),
        ("the input may hold at most 32,000 tokens", 32_000, "prompt"),
    ],
)
def test_limits_are_read_in_the_words_of_each_server(text, tokens, counts):
    assert (named(text).tokens, named(text).counts) == (tokens, counts)


@pytest.mark.parametrize(
    "text", ["mishap 400", "refused 3000 tokens", "Rate limit 6000 requests", "you requested 8192 tokens", "95.5 %"]
)
def test_other_numbers_are_no_limit(text):
    assert named(text) is None


# On the way to a result


def refuse(text, status=400):
    return (status, {"error": {"message": text}})


def test_a_result_holds_no_key_that_the_server_repeats(monkeypatch):
    monkeypatch.setenv("PROBE_KEY", KEY)
    engine = Engine(key=KEY)
    with serving(engine) as url:
        run = Run.begin(Client(url, token_env="PROBE_KEY"), seconds=60.0)
        try:
            engine.mishap = lambda tokens, number: refuse(f"Key expired. Received={KEY}", 400 if number % 2 else 401)
            result = context.probe(run, ContextOptions())
        finally:
            run.close()
    assert result.rows
    assert KEY not in repr(result)
    assert "Received=<redacted>" in repr(result)


def test_what_makes_a_probe_impossible_holds_no_key(monkeypatch):
    monkeypatch.setenv("PROBE_KEY", KEY)
    with serving(Engine(key=KEY, mishap=lambda tokens, number: refuse(f"Received={KEY}.", 401))) as url:
        client = Client(url, token_env="PROBE_KEY")
        with pytest.raises(ProbeError) as caught:
            client.look()
        client.close()
    assert KEY not in str(caught.value)
    assert str(caught.value).endswith("Received=<redacted>; the key was refused")


def test_a_result_holds_nothing_of_the_users_own_prompts():
    def fails(prompt):
        return (400, f"rejected by policy: {prompt[:50]}") if "SECRETSYSTEM" in prompt else None

    script = Scripted(cache=PrefixCache(), tells_cached=True, ids=False, fails=fails)
    with running(script) as run:
        result = prefix.probe(run, PrefixOptions(fill=0, own=(OWN, OWN + " And more.")))
    assert "rejected by policy: <redacted>" in repr(result)
    for part in ("SECRETSYSTEM", "Falkenberg", "speaks"):
        assert part not in repr(result)


def test_a_stream_that_ends_with_an_error_is_cut_as_well():
    engine = Engine(takes_ids=False)
    engine.mishap = lambda tokens, number: (200, {"error": {"message": f"bad: {engine.asked[-1]['prompt']}"}})
    with serving(engine) as url:
        client = Client(url, model="m")
        reply = client.complete(Ask(OWN, 5, time.monotonic() + 20))
        client.close()
    assert (reply.kind, reply.error) == ("failed", "bad: <redacted>.")
