"""Is the advertised length real: servers of which it is known."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest

from gpuwatch.model import Fact, LogEvent
from gpuwatch.probes import context
from gpuwatch.probes.client import Client
from gpuwatch.probes.context import BEYOND, OUTPUT, ContextOptions
from gpuwatch.probes.named_limit import requested
from gpuwatch.probes.run import GONE, OUT_OF_TIME, Run
from tests.unit.probes.engine import Engine, serving


@contextmanager
def running(engine, keep=None):
    with serving(engine, keep) as url:
        run = Run.begin(Client(url), seconds=120.0)
        try:
            yield run
        finally:
            run.close()


def probed(engine, options=None):
    with running(engine) as run:
        return context.probe(run, options or ContextOptions())


def outcomes(result):
    return {row["request"]: row["outcome"] for row in result.rows}


def test_a_real_length_is_accepted_whole_and_one_beyond_it_refused():
    engine = Engine()
    result = probed(engine, ContextOptions(facts={"model.context": Fact("model.context", 8192, "config.json")}))
    assert result.complete
    assert not result.findings
    assert outcomes(result) == {"half": "whole", "full length": "whole", "over the limit": "refused"}
    assert [row["sent_tokens"] for row in result.rows] == [(4096 - OUTPUT) // 2, 4096 - OUTPUT, 4096 + BEYOND]
    text = " ".join(result.conclusion)
    assert "within the 8,192 tokens" in text
    assert "refused with an error, as it has to be" in text


def test_a_pool_smaller_than_the_context_is_caught_and_the_full_length_not_sent():
    engine = Engine(blocks=20, block=128)
    result = probed(engine)
    assert [finding.id for finding in result.findings] == ["max_model_len_exceeds_kv"]
    assert max(len(body["prompt"]) for body in engine.asked if len(body["prompt"]) <= 4096) == 19 * 128 - OUTPUT
    assert outcomes(result)["as long as fits"] == "whole"
    assert "the length of 4,096 is not real" in " ".join(result.conclusion)


def test_a_pool_that_only_the_log_tells_is_used():
    facts = {
        "kv.tokens": Fact("kv.tokens", 2560, "vllm.log", 7),
        "kv.block_size": Fact("kv.block_size", 128, "vllm.log"),
    }
    result = probed(Engine(metrics=False), ContextOptions(facts=facts))
    assert [finding.id for finding in result.findings] == ["max_model_len_exceeds_kv"]


@pytest.mark.parametrize("mishap", ["half", "nothing"])
def test_prompts_that_are_cut_or_ignored_without_an_error_are_found(mishap):
    engine = Engine(mishap=lambda tokens, number: mishap if tokens > 3000 else None)
    result = probed(engine)
    finding = next(finding for finding in result.findings if finding.id == "silent_truncation")
    assert finding.severity == "warning"
    assert finding.evidence
    assert any("2,044 tokens is counted whole" in item.text for item in finding.evidence)
    assert set(outcomes(result).values()) == {"whole", "cut" if mishap == "half" else "ignored"}


def changes(result):
    (finding,) = [finding for finding in result.findings if finding.id == "silent_truncation"]
    return [(each.flag, each.current, each.proposed) for each in finding.advice], finding.advice[0].text


@pytest.mark.parametrize(("mishap", "look"), [("half", "truncate_prompt_tokens"), ("nothing", "engine's log")])
def test_a_stated_limit_that_holds_the_request_is_not_named_as_what_cut_it(mishap, look):
    flags, text = changes(probed(Engine(mishap=lambda tokens, number: mishap if tokens > 3000 else None)))
    assert flags == [("", None, None)] * 2
    assert "the stated 4,096 tokens hold the 4,096 of this request" in text  # 4,088 and 8 to answer
    assert look in text


def test_a_cut_beyond_the_stated_limit_only_asks_for_a_longer_limit():
    flags, _ = changes(probed(Engine(mishap=lambda tokens, number: "half" if tokens > 4096 else None)))
    assert flags[0] == ("--max-model-len", "4096", str(4096 + BEYOND + OUTPUT))


def test_a_cut_by_a_server_that_states_no_limit_names_the_context_that_it_runs_with():
    def mishap(tokens, number):
        return "half" if tokens > 4096 else None

    engine = Engine(owner="library", metrics=False, limit=None, takes_ids=False, blocks=4000, mishap=mishap)
    flags, text = changes(probed(engine))
    assert flags[0] == ("num_ctx", None, str(8192 + OUTPUT))  # of 2,048, 8,192 and 32,768 the first that is cut
    assert "OLLAMA_CONTEXT_LENGTH" in text


def test_a_server_that_ignores_max_tokens_accepts_without_a_count():
    result = probed(Engine(mishap=lambda tokens, number: "endless"))
    assert outcomes(result)["full length"] == "not counted"
    assert "max_tokens is ignored" in " ".join(result.conclusion)
    assert not result.findings


def test_a_rate_limit_that_passes_is_said():
    engine = Engine()
    with running(engine) as run:
        engine.limited = 2
        result = context.probe(run, ContextOptions())
    assert result.complete
    assert "2 requests were sent back by a rate limit" in " ".join(result.conclusion)


def test_text_prompts_show_a_cut_too():
    engine = Engine(takes_ids=False, mishap=lambda tokens, number: "half" if tokens > 3000 else None)
    result = probed(engine)
    assert outcomes(result)["half"] == "whole"
    assert outcomes(result)["full length"] == "cut"
    assert [finding.id for finding in result.findings] == ["silent_truncation"]


def test_a_server_that_counts_nothing_is_not_judged():
    result = probed(Engine(mishap=lambda tokens, number: "silent"))
    assert outcomes(result)["full length"] == "not counted"
    assert not result.findings
    text = " ".join(result.conclusion)
    assert "about 4,160 tokens (over the limit): accepted" in text
    assert "so a cut cannot be seen, nor whether it was over the limit." in text
    assert "all lengths are guesses" in text


def test_a_request_that_the_end_of_the_probe_cut_off_is_no_answer_and_no_broken_stream():
    engine = Engine(mishap=lambda tokens, number: "hang" if tokens > 1000 else None)
    with running(engine) as run:
        run.deadline = time.monotonic() + 0.5
        result = context.probe(run, ContextOptions())
    assert (result.complete, result.stopped_because) == (False, OUT_OF_TIME)
    assert "broke off" not in str(result)


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        ("However, you requested 4101 tokens (4069 in the messages, 32 in the completion).", 4101),
        ("You requested a total of 4,101 tokens: 4069 tokens from the input messages and 32", 4101),
        ("However, your request has 5000 input tokens. Please reduce the length", 5008),
        ("'max_tokens' is too large: 8. (8 > 4096 - 4090) and your request has 4090 input tokens", 4098),
        ("The input (5000 tokens) is longer than the model's context length (4096 tokens).", 5008),
        ("Input length (5000 tokens) exceeds the maximum allowed length (4095 tokens).", 5008),
        ("your prompt contains at least 4097 input tokens, which exceeds this limit", 4105),
        ("you requested 8 output tokens and your prompt contains 4090 input tokens, for a total of 4098 tokens.", 4098),
        ("you requested 8 output tokens and your prompt contains at least 4089 input tokens, for a total of at", 4097),
        ("You passed 4097 input tokens and requested 8 output tokens. However, the model's context", 4105),
        ("The decoder prompt (length 4096) plus the number of requested output tokens (at least 1)", 4104),
        ("your prompt contains 99999 characters (the upper bound for 4088 input tokens).", None),
        ("However, you requested 8 output tokens, which is too many.", None),
        ("This model's maximum context length is 4096 tokens.", None),
    ],
)
def test_the_size_of_a_request_of_8_tokens_to_answer_is_read_from_its_refusal(words, tokens):
    assert requested(f"HTTP 400: {words}", 8) == tokens


def test_a_stated_length_that_is_refused_is_said():
    result = probed(Engine(mishap=lambda tokens, number: 400 if tokens > 3000 else None))
    assert outcomes(result)["full length"] == "refused"
    assert "4,088 tokens (full length): refused: HTTP 400" in " ".join(result.conclusion)
    assert "The length of 4,096 is not real: refused at 4,088." in result.conclusion
    (finding,) = result.findings
    assert finding.id == "context_refused"
    # half of 4,088, and 8, is only what was accepted: the limit lies between, and no value is proposed for it
    assert "within 2,052 tokens, which was accepted, until the limit is known" in finding.advice[0].text
    assert [(each.flag, each.proposed) for each in finding.advice] == [("", None), ("", None)]


def test_the_limit_that_a_refusal_names_is_the_real_one():
    stated = [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]
    result = probed(Engine(limit=1500, models=stated))
    assert "The length of 4,096 is not real: refused at 2,044." in result.conclusion
    (finding,) = result.findings
    assert (finding.advice[1].flag, finding.advice[1].current, finding.advice[1].proposed) == (
        "--max-model-len",
        "4096",
        "1500",
    )
    assert "maximum context length is 1500 tokens" in finding.evidence[1].text


def refusing(*answer, above=3000):
    return lambda tokens, number: answer if tokens > above else None


def named(text):
    return refusing(400, {"error": {"message": text, "code": 400}})


@pytest.mark.parametrize(
    ("text", "real"),
    [
        ("The prompt (total length 4088) is too long to fit into the model (context length 3500). Make sure", "3500"),
        (
            "Requested token count exceeds the model's maximum context length of 3,500 tokens. You requested 4096",
            "3500",
        ),
        (
            "The prompt is too long to fit into the model (context length 2048).",
            "2048",
        ),  # a prompt of 2,044 and 8 passed
        ("`inputs` tokens + `max_new_tokens` must be <= 3500. Given: 4088 `inputs` tokens and 8", "3500"),
        ("litellm.ContextWindowExceededError: " + "x " * 300 + "maximum context length is 3500 tokens.", "3500"),
        ("`inputs` must have less than 3500 tokens. Given: 4088", None),  # of the prompt alone: no value for the flag
        ("This model's maximum context length is 2000 tokens.", None),  # 2,052 were accepted: it names something else
        ("maximum context length is 9000 tokens", None),
    ],
)
def test_only_a_limit_that_the_refusal_names_becomes_a_value(text, real):
    result = probed(Engine(mishap=named(text)))
    (finding,) = result.findings
    assert finding.advice[1].proposed == real
    assert finding.advice[1].flag == ("--max-model-len" if real else "")
    said = "By the words of its refusal the server takes 3,500 tokens" in " ".join(result.conclusion)
    assert said == ("3500" in text or "3,500" in text)
    assert ("keep a request with its answer within" in finding.advice[0].text) == ("`inputs` must" not in text)


def test_the_longest_prompt_that_sglang_names_is_one_of_its_pool():
    text = "Input length (4088 tokens) exceeds the maximum allowed length (3500 tokens). Use a shorter input."
    (finding,) = probed(Engine(owner="sglang", metrics=False, mishap=named(text))).findings
    assert finding.advice[0].text == "keep a prompt within 3,500 tokens"
    assert [each.flag for each in finding.advice] == ["", "--mem-fraction-static"]


def test_a_limit_beside_the_message_is_read_where_the_server_states_none():
    error = {"code": 400, "message": "the request exceeds the available context size", "n_ctx": 4096}
    engine = Engine(limit=None, blocks=4000, owner="x", metrics=False, mishap=refusing(400, {"error": error}))
    result = probed(engine)
    assert "By the words of its refusal the server takes 4,096 tokens, prompt and answer together." in result.conclusion


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_login_says_nothing_about_the_length(status):
    result = probed(Engine(mishap=refusing(status, {"error": {"message": "key expired"}})))
    assert outcomes(result) == {"half": "whole", "full length": "login"}
    assert not result.findings
    assert (result.complete, result.stopped_because) == (
        False,
        f"the request of 4,088 tokens: HTTP {status}: key expired",
    )
    text = " ".join(result.conclusion)
    assert "is not real" not in text
    assert "the login was refused, which says nothing about the length" in text


def test_a_body_that_is_too_large_is_about_bytes():
    engine = Engine(mishap=refusing(413, b"<html><body>413 Request Entity Too Large</body></html>", "text/html"))
    result = probed(engine)
    (finding,) = result.findings
    assert "the size of the body in bytes" in finding.cause
    assert "its message says" not in finding.cause
    advice = finding.advice[0]
    assert (advice.flag, advice.current) == ("client_max_body_size", None)
    body = len(str(next(each["prompt"] for each in engine.asked if len(each["prompt"]) == 4088)).replace(" ", ""))
    assert body / 1024 < int(advice.proposed.removesuffix("k")) < (body + 2048) / 1024 * 4096 / 4088
    assert finding.evidence[1].text.endswith("to answer: HTTP 413")


def test_a_usage_of_zeros_is_no_count():
    result = probed(Engine(mishap=lambda tokens, number: "zeros" if tokens > 1000 else None))
    assert outcomes(result) == {"half": "not counted", "full length": "not counted", "over the limit": "refused"}
    assert not result.findings


def test_sentences_end_with_one_full_stop():
    result = probed(Engine(mishap=named("Too long. Use --allow-auto-truncate.")))
    assert not [sentence for sentence in result.conclusion if ".." in sentence]


def test_a_length_beyond_the_model_is_called_accepted_only_where_it_was():
    facts = {"model.context": Fact("model.context", 2048, "config.json")}
    refused = probed(Engine(mishap=lambda tokens, number: 400 if tokens > 1500 else None), ContextOptions(facts=facts))
    accepted = probed(Engine(), ContextOptions(facts=facts))
    texts = [
        next(finding.evidence[0].text for finding in result.findings if finding.id == "rope_context")
        for result in (refused, accepted)
    ]
    assert texts == ["the server states a limit of 4,096 tokens", "a request of 4,096 tokens was accepted"]


def test_a_length_beyond_what_the_model_was_made_for_is_a_finding_with_the_log_line():
    facts = {"model.context": Fact("model.context", 2048, "config.json")}
    line = LogEvent("rope_beyond_native", "User-specified max_model_len (4096) is greater", "vllm.log", 12, 0)
    result = probed(Engine(), ContextOptions(facts=facts, events=(line,)))
    finding = next(finding for finding in result.findings if finding.id == "rope_context")
    assert finding.advice[0].proposed == "2048"
    assert finding.evidence[-1].line == 12
    assert "beyond the 2,048 tokens" in " ".join(result.conclusion)
    assert ("log_rope_beyond_native", "vllm.log:12", "") in result.facts


def test_without_the_models_files_nothing_is_said_about_its_positions():
    result = probed(Engine())
    assert result.fact("native_context") is None
    assert "is not known; --model-config FILE or --log FILE tells it" in " ".join(result.conclusion)


def test_a_server_that_states_no_limit_is_tried_at_usual_lengths():
    result = probed(Engine(limit=None, blocks=4000, owner="someone", metrics=False))
    assert [row["sent_tokens"] for row in result.rows] == [2048, 8192, 32_768]
    assert "does not state its limit" in result.conclusion[0]


def test_usual_lengths_that_can_never_fit_into_the_pool_are_not_sent():
    engine = Engine(limit=None, blocks=400)  # 399 usable blocks of 16: 6,384 tokens
    result = probed(engine)
    assert [(row["request"], row["sent_tokens"]) for row in result.rows] == [
        ("length 1", 2048), ("as long as fits", 6384 - OUTPUT),
    ]  # fmt: skip
    assert max(len(body["prompt"]) for body in engine.asked) == 6376
    assert "room for 6,384 tokens: longer prompts can never fit, and were not sent" in " ".join(result.conclusion)


def test_nothing_is_sent_after_a_server_error_unless_it_is_wished():
    engine = Engine(mishap=lambda tokens, number: 500 if tokens > 1000 else None)
    result = probed(engine)
    assert (outcomes(result), result.complete) == ({"half": "failed"}, False)
    assert result.stopped_because == (
        "the request of 2,044 tokens: HTTP 500: mishap 500; nothing more is sent, so that the server survives"
    )
    assert result.fact("answered") is False
    result = probed(engine, ContextOptions(to_the_end=True))
    assert outcomes(result) == {"half": "failed", "full length": "failed", "over the limit": "failed"}
    assert (result.complete, result.fact("answered")) == (True, False)


def test_a_refusal_is_an_answer_about_the_length():
    result = probed(Engine(mishap=lambda tokens, number: 400 if tokens > 1000 else None))
    assert (result.complete, result.fact("answered")) == (True, True)


def test_a_length_can_be_named():
    result = probed(Engine(), ContextOptions(length=1000))
    assert [row["sent_tokens"] for row in result.rows] == [(1000 - OUTPUT) // 2, 1000 - OUTPUT]


def test_a_server_that_dies_leaves_what_was_measured():
    engine, keep = Engine(), []
    with running(engine, keep) as run:

        def die(tokens, number):
            if tokens < 3000:
                return None
            keep[0].stop()
            return "cut"

        engine.mishap = die
        result = context.probe(run, ContextOptions())
    assert not result.complete
    assert result.stopped_because == GONE
    assert outcomes(result) == {"half": "whole", "full length": "lost"}
