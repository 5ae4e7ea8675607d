"""The probes that test recall, against a server whose recall is known."""

from __future__ import annotations

import itertools
import json
import re
import threading

import pytest

from gpuwatch.probes import digits, digits_verdict, needle, order
from gpuwatch.probes.client import ProbeError
from gpuwatch.probes.digits import DigitsOptions
from gpuwatch.probes.digits_verdict import Pairs, quantised, read_baseline
from gpuwatch.probes.limits import Pool
from gpuwatch.probes.needle import NeedleOptions
from gpuwatch.probes.order import OrderOptions
from gpuwatch.probes.questions import answer_tokens, left_out, usable_lengths
from gpuwatch.probes.statistics import Share
from tests.unit.probes.scripted import MODEL, PrefixCache, Scripted, asked, count, facts, perfect, running

LENGTHS = (300, 600)
NEEDLE = NeedleOptions(lengths=LENGTHS, depths=(0.0, 0.5, 1.0), trials=4)
ORDER = OrderOptions(lengths=(400,), trials=8)
DIGITS = DigitsOptions(digits=(8, 16), trials=10, tokens=500)


def cells(result):
    return {(row["length_tokens"], row["depth_percent"]): (row["right"], row["of"]) for row in result.rows}


def nonsense(prompt):
    return "server tokens answers requests" * 3


# needle


def test_a_model_without_fault_passes_in_every_cell():
    with running(Scripted()) as run:
        result = needle.probe(run, NEEDLE)
    assert cells(result) == {(length, depth): (4, 4) for length in LENGTHS for depth in (0, 50, 100)}
    assert result.fact("verdict") == "passes"
    assert result.fact("recall") == 1.0
    assert result.fact("recall_low") == pytest.approx(24 / (24 + 3.8415), abs=1e-4)  # n / (n + z²)
    assert result.fact("reads_up_to") == 600
    assert result.complete
    assert not result.findings
    assert result.drawing[1].split() == ["0", "%", "██", "100", "██", "100"]


def test_prompts_have_about_the_length_that_was_asked_for_as_the_server_counts():
    with running(Scripted()) as run:
        result = needle.probe(run, NEEDLE)
    for row in result.rows:
        assert row["prompt_tokens"] == pytest.approx(row["length_tokens"], rel=0.05)


def test_a_model_of_noise_fails_and_the_control_says_that_length_is_not_the_matter():
    with running(Scripted(nonsense)) as run:
        result = needle.probe(run, NEEDLE)
    assert result.fact("verdict") == "fails"
    assert result.fact("recall") == 0.0
    assert result.fact("recall_without_filler") == 0.0
    assert result.fact("reads_up_to") is None
    assert {row["no_number"] for row in result.rows} == {4}
    assert any("fails the task itself" in sentence for sentence in result.conclusion)


def test_a_hole_in_the_middle_is_found_at_its_depth():
    def answer(prompt):
        name, _ = asked(prompt)
        depth = next(depth for depth, known, _ in facts(prompt) if known == name)
        long = count(prompt) > 450
        return nonsense(prompt) if long and 0.3 < depth < 0.7 else perfect(prompt)

    with running(Scripted(answer)) as run:
        result = needle.probe(run, NEEDLE)
    found = cells(result)
    assert found.pop((600, 50)) == (0, 4)
    assert set(found.values()) == {(4, 4)}
    assert result.fact("verdict") == "partly"
    assert result.fact("reads_up_to") == 300
    assert any("up to 300 tokens" in sentence and "8 of 12" in sentence for sentence in result.conclusion)
    assert result.advice[0].flag == "--max-model-len"


def test_another_fact_of_the_text_is_no_recall_and_is_counted_apart():
    def answer(prompt):
        name, _ = asked(prompt)
        return next(number for _, known, number in facts(prompt) if known != name)

    with running(Scripted(answer)) as run:
        result = needle.probe(run, NEEDLE)
    assert result.fact("verdict") == "fails"
    assert {(row["right"], row["other_number"]) for row in result.rows} == {(0, 4)}


@pytest.mark.parametrize("known", [0.25, 0.75])
def test_a_known_share_of_recall_is_measured_within_its_interval(known):
    def answer(prompt):
        name, _ = asked(prompt)
        number = next(number for _, other, number in facts(prompt) if other == name)
        return perfect(prompt) if int(number) % 100 < known * 100 else nonsense(prompt)

    with running(Scripted(answer)) as run:
        result = needle.probe(run, NeedleOptions(lengths=(300,), depths=(0.0, 1.0), trials=60, concurrency=8))
    assert result.fact("answers") == 120
    assert result.fact("recall_low") < known < result.fact("recall_high")
    assert result.fact("recall_high") - result.fact("recall_low") < 0.2


def test_prompts_that_are_cut_are_found_by_the_tokens_that_the_server_counts():
    with running(Scripted(reads=1500)) as run:
        result = needle.probe(run, NeedleOptions(lengths=(600, 3000), depths=(0.0, 1.0), trials=2))
    assert [finding.id for finding in result.findings] == ["silent_truncation"]
    assert result.findings[0].evidence[0].value == 1500
    assert cells(result) == {(600, 0): (2, 2), (600, 100): (2, 2), (3000, 0): (0, 2), (3000, 100): (2, 2)}
    assert result.advice == result.findings[0].advice  # recall is not blamed for what was cut off
    assert [each.flag for each in result.advice] == ["", ""]
    assert "truncate_prompt_tokens" in result.advice[0].text
    assert "what it missed there says nothing about it" in " ".join(result.conclusion)


def test_a_refused_length_is_no_failed_recall():
    with running(Scripted(fails=lambda prompt: 400 if count(prompt) > 450 else None)) as run:
        result = needle.probe(run, NEEDLE)
    rows = {row["length_tokens"]: row for row in result.rows}
    assert (rows[600]["of"], rows[600]["recall_ratio"], rows[600]["failed"]) == (0, None, 4)
    assert result.fact("verdict") == "not complete"
    assert result.fact("reads_up_to") == 300
    assert (
        result.conclusion[0]
        == "The model finds the fact at every length that was answered: 12 of 12 (100 %, 76 to 100 %)."
    )
    assert result.conclusion[1].startswith("No question was answered at 600 tokens")
    assert any("12 of 32 requests got no answer (12 refused)" in sentence for sentence in result.conclusion)


def test_a_server_that_counts_nothing_is_asked_with_estimated_lengths_and_that_is_said():
    with running(Scripted(counts=False)) as run:
        result = needle.probe(run, NEEDLE)
    assert result.fact("verdict") == "passes"
    assert result.fact("tokens_counted_by_server") is False
    assert {row["prompt_tokens"] for row in result.rows} == {None}
    assert any("counts no prompt tokens" in sentence for sentence in result.conclusion)


def test_a_probe_that_is_interrupted_keeps_what_it_has():
    script = Scripted()
    with running(script) as run:

        def answer(prompt):
            if len(script.prompts) > 20:
                run.cancelled.set()
            return perfect(prompt)

        script.answer = answer
        result = needle.probe(run, NEEDLE)
    assert (result.complete, result.stopped_because) == (False, "interrupted")
    assert 0 < result.fact("answers") < 24


def test_a_server_that_goes_away_leaves_what_was_measured():
    script = Scripted()
    script.fails = lambda prompt: "dies" if len(script.prompts) > 20 else None
    with running(script) as run:
        result = needle.probe(run, NEEDLE)
    assert (result.complete, result.stopped_because) == (False, "the server is gone")
    assert 0 < result.fact("answers") < 24
    assert result.fact("recall") == 1.0


def test_garbage_instead_of_a_stream_is_no_answer():
    script = Scripted()
    script.fails = lambda prompt: "garbage" if len(script.prompts) > 12 else None
    with running(script) as run:
        result = needle.probe(run, NEEDLE)
    assert result.fact("recall") in (None, 1.0)
    assert sum(row["failed"] for row in result.rows) > 0
    assert any("got no answer" in sentence and "no event stream" in sentence for sentence in result.conclusion)


def test_a_server_that_answers_nothing_at_all_is_said_in_its_words():
    with running(Scripted(fails=lambda prompt: 500 if isinstance(prompt, str) else None)) as run:
        for each, options in ((needle, NEEDLE), (order, ORDER), (digits, DIGITS)):
            with pytest.raises(ProbeError, match="HTTP 500: refused"):
                each.probe(run, options)


def test_an_answer_that_goes_on_and_on_is_judged_by_its_beginning():
    script = Scripted()
    script.fails = lambda prompt: "endless" if isinstance(prompt, str) and len(script.prompts) > 4 else None
    with running(script) as run:
        result = digits.probe(run, DigitsOptions((8,), 5, 500))
    assert [(row["exact"], row["of"]) for row in result.rows] == [(5, 5)]


@pytest.mark.parametrize(("module", "options"), [(needle, NEEDLE), (order, ORDER), (digits, DIGITS)])
def test_a_server_that_ignores_max_tokens_from_the_first_request_on_is_measured(module, options):
    script = Scripted(fails=lambda prompt: "endless" if isinstance(prompt, str) else None)
    with running(script) as run:
        result = module.probe(run, options)
    right = [(row.get("right", row.get("exact")), row["of"]) for row in result.rows]
    assert right
    assert all(hits == asked > 0 for hits, asked in right)
    if module is needle:
        assert "The server ignores max_tokens" in " ".join(result.conclusion)
        assert "counts no prompt tokens" not in " ".join(result.conclusion)


def test_a_longer_prompt_that_is_refused_does_not_make_lengths_estimates():
    # 72 sentences have more than 700 tokens: that one is refused, and shorter ones tell the tokens of a sentence.
    with running(Scripted(fails=lambda prompt: 400 if count(prompt) > 500 else None)) as run:
        result = needle.probe(run, NeedleOptions(lengths=(300, 1024), depths=(0.0, 1.0), trials=2))
    assert result.fact("tokens_counted_by_server") is True
    rows = {row["length_tokens"]: row for row in result.rows}
    assert rows[300]["prompt_tokens"] == pytest.approx(300, rel=0.05)
    assert "estimates" not in " ".join(result.conclusion)
    (found,) = result.findings  # the server states 8,192
    assert found.id == "context_refused"
    assert "The server states 8,192 tokens, but refuses 1,0" in found.cause  # about 1,024, and 48 to answer
    assert "HTTP 400" in found.evidence[1].text
    assert [each.proposed for each in found.advice] == [None, None]  # the shorter length tried is not the limit


def test_a_limit_that_refused_questions_name_is_proposed_and_a_refused_login_is_none():
    def fails(words):
        return lambda prompt: words if count(prompt) > 700 else None

    options = NeedleOptions(lengths=(300, 1024), depths=(0.0,), trials=2)
    with running(Scripted(fails=fails((400, "This model's maximum context length is 700 tokens.")))) as run:
        (found,) = needle.probe(run, options).findings
    assert (found.advice[1].flag, found.advice[1].proposed) == ("--max-model-len", "700")
    with running(Scripted(fails=fails((403, "expired")))) as run:
        result = needle.probe(run, options)
    assert not result.findings
    assert "2 login" in " ".join(result.conclusion)


@pytest.mark.parametrize(("module", "options"), [(needle, NEEDLE), (order, ORDER), (digits, DIGITS)])
def test_answers_that_end_within_their_reasoning_are_said_to_do_so(module, options):
    with running(Scripted(lambda prompt: " <think> Let me see")) as run:
        thinks = module.probe(run, options)
    with running(Scripted(lambda prompt: f"<think> 1234567 </think>{perfect(prompt)}")) as run:
        answers = module.probe(run, options)
    asked = sum(row["of"] for row in thinks.rows) + (8 if module is needle else 0)  # and twice 4 without filler
    assert f"{asked} of {asked} answers end within their reasoning" in " ".join(thinks.conclusion)
    assert "reasoning" not in " ".join(answers.conclusion)
    assert answers.fact("verdict") in ("passes", "respects order")


def test_an_order_at_a_refused_length_is_said_to_be_refused():
    with running(Scripted(fails=lambda prompt: 400 if count(prompt) > 500 else None)) as run:
        result = order.probe(run, OrderOptions(lengths=(300, 1024), trials=2))
    assert [found.id for found in result.findings] == ["context_refused"]


def test_a_length_beyond_what_is_stated_is_no_finding():
    with running(Scripted(fails=lambda prompt: 400 if count(prompt) > 500 else None, limit=None)) as run:
        result = needle.probe(run, NeedleOptions(lengths=(300, 1024), depths=(0.0,), trials=1))
    assert not result.findings


def test_no_text_of_a_prompt_or_an_answer_is_in_a_result():
    script = Scripted()
    with running(script) as run:
        results = [needle.probe(run, NEEDLE), order.probe(run, ORDER), digits.probe(run, DIGITS)]
    texts = [body["prompt"] for body in script.prompts if isinstance(body["prompt"], str)]
    secret = {part for text in texts for _, name, number in facts(text) for part in (name, number)}
    assert len(secret) > 100
    for result in results:
        shown = json.dumps([result.facts, result.rows, result.conclusion, result.drawing])
        assert not [part for part in secret if part in shown]
        assert "access number" not in shown


def test_lengths_double_up_to_what_the_server_takes_with_an_answer():
    # 4,096 less 3 % spare is 3,973; less 48 tokens for the answer.
    assert usable_lengths((), 4096) == (1024, 2048, 3925)
    assert usable_lengths((), 512) == (448,)
    assert usable_lengths((), None) == (1024, 2048, 4096, 7898)
    assert usable_lengths((3000, 500, 9000), 4096) == (500, 3000)
    with pytest.raises(ProbeError, match="--lengths: the server takes 4,096 tokens"):
        usable_lengths((9000,), 4096)


def test_lengths_that_the_kv_pool_has_no_room_for_are_left_out_and_named():
    pool = Pool(2048, 16, 127)  # 127 blocks of 16: 2,032 tokens; less 3 % are 1,971, less 48 for the answer
    assert usable_lengths((), 8192, pool) == (1024, 1923)
    assert usable_lengths((), None, pool) == (1024, 1923)
    assert usable_lengths((500, 3000), 8192, pool) == (500,)
    assert left_out((), 8192, pool, (1024, 1923)) == (
        "Left out, because the KV pool has room for 2,032 tokens only: everything from 1,924 to 7,898.",
    )
    assert left_out((500, 3000, 9000), 8192, pool, (500,)) == (
        "Left out, because the server takes less: 9,000.",
        "Left out, because the KV pool has room for 2,032 tokens only: 3,000.",
    )
    assert left_out((), 8192, Pool(20_000, 16, 1249), (1024, 2048, 4096, 7898)) == ()
    with pytest.raises(ProbeError, match=r"--lengths: the KV pool has room for 2,032 tokens; allowed: up to 1,923"):
        usable_lengths((3000,), 8192, pool)


@pytest.mark.parametrize("module", [needle, order])
def test_a_small_pool_caps_the_lengths_of_a_probe(module):
    options = NeedleOptions((300, 4000), (0.5,), 2) if module is needle else OrderOptions((300, 4000), 2)
    with running(Scripted(cache=PrefixCache(blocks=64))) as run:
        result = module.probe(run, options)
    assert {row["length_tokens"] for row in result.rows} == {300}
    assert any("room for 1,008 tokens only: 4,000" in sentence for sentence in result.conclusion)


def test_digits_refuse_a_text_that_the_pool_has_no_room_for():
    with running(Scripted(cache=PrefixCache(blocks=64))) as run, pytest.raises(ProbeError, match="room for 1,008"):
        digits.probe(run, DigitsOptions((8,), 2, 4000))


def test_an_order_is_not_respected_at_lengths_without_an_answer():
    with running(Scripted(fails=lambda prompt: 400 if count(prompt) > 450 else None)) as run:
        result = order.probe(run, OrderOptions(lengths=(300, 600), trials=8))
    assert result.fact("verdict") == "not complete"
    assert "at every length that was answered" in result.conclusion[0]
    assert "600 tokens" in result.conclusion[1]


def test_digits_without_an_answer_do_not_pass_and_lengths_differ_only_where_that_is_shown():
    share = {8: Share(20, 20), 16: Share(0, 0)}
    assert digits_verdict.verdict(share) == "not complete"
    # Wilson intervals: 15 of 20 is 53-89 %, 19 of 20 is 76-99 %, 5 of 20 is 11-47 %
    assert digits_verdict.lengths_differ({8: Share(19, 20), 16: Share(15, 20)}) == "; the lengths are not told apart"
    assert digits_verdict.lengths_differ({8: Share(19, 20), 16: Share(5, 20)}).startswith("; the lengths differ")
    assert digits_verdict.lengths_differ({8: Share(15, 20)}) == ""


# order


@pytest.mark.parametrize(
    ("pick", "verdict", "first", "last"),
    [
        (perfect, "respects order", 1.0, 1.0),
        (lambda prompt: facts(prompt)[-1][2], "prefers the last", 0.0, 1.0),
        (lambda prompt: facts(prompt)[0][2], "prefers the first", 1.0, 0.0),
        (nonsense, "does not recall", 0.0, 0.0),
        (lambda prompt: facts(prompt)[int(facts(prompt)[0][2]) % 2][2], "ignores order", None, None),
    ],
    ids=["without fault", "recency", "primacy", "noise", "either"],
)
def test_order_tells_reading_from_a_leaning(pick, verdict, first, last):
    with running(Scripted(pick)) as run:
        result = order.probe(run, ORDER)
    assert result.fact("verdict") == verdict
    assert result.fact("answers") == 32
    if first is not None:
        assert (result.fact("right_asked_for_first"), result.fact("right_asked_for_last")) == (first, last)
    assert ("fails" in result.conclusion[0]) is (verdict != "respects order")


@pytest.mark.parametrize(("trials", "verdict"), [(1, "not measured"), (2, "respects order")])
def test_few_right_answers_that_a_coin_gives_as_well_are_no_order(trials, verdict):
    with running(Scripted()) as run:
        result = order.probe(run, OrderOptions(lengths=(400,), trials=trials))
    # 4 right answers of 4 have a chance of 1 in 16 without reading, 8 of 8 of 1 in 256.
    assert (result.fact("answers"), result.fact("verdict")) == (4 * trials, verdict)


def test_order_that_is_lost_over_a_distance_is_told_from_order_close_together():
    def answer(prompt):
        (early, _, _), (late, _, number) = facts(prompt)
        return perfect(prompt) if late - early < 0.5 else number

    with running(Scripted(answer)) as run:
        result = order.probe(run, ORDER)
    assert result.fact("right") == 0.75
    assert any("The distance is the matter" in sentence for sentence in result.conclusion)


def test_both_questions_are_about_the_same_text():
    script = Scripted()
    with running(script) as run:
        order.probe(run, OrderOptions(lengths=(400,), trials=1))
    texts = [body["prompt"].split("\n\n")[1] for body in script.prompts if isinstance(body["prompt"], str)][-4:]
    assert len(set(texts)) == 2


# digits


def dropping(keep):
    """A model that gives a wrong last digit where `keep` of the number is not true."""

    def answer(prompt):
        number = re.search(r"[0-9]+", perfect(prompt))[0]
        return number if keep(number) else number[:-1] + str((int(number[-1]) + 1) % 10)

    return answer


def test_exact_recall_passes():
    with running(Scripted(kv_dtype="fp8_e4m3")) as run:
        result = digits.probe(run, DIGITS)
    assert [(row["digits"], row["exact"], row["of"]) for row in result.rows] == [(8, 10, 10), (16, 10, 10)]
    assert [row["outcomes"] for row in result.rows] == ["1" * 10] * 2
    assert (result.fact("verdict"), result.fact("kv_dtype")) == ("passes", "fp8_e4m3")
    assert not result.findings


def test_a_wrong_last_digit_is_no_recall_but_its_other_digits_are_counted():
    with running(Scripted(dropping(lambda number: len(number) < 16))) as run:
        result = digits.probe(run, DIGITS)
    short, long = result.rows
    assert (short["exact"], long["exact"]) == (10, 0)
    assert long["right_digits_ratio"] == 15 / 16
    assert long["first_wrong_digit"] == 16
    assert result.fact("verdict") == "partly"


def test_noise_fails():
    with running(Scripted(nonsense)) as run:
        result = digits.probe(run, DIGITS)
    assert result.fact("verdict") == "fails"
    assert "fails" in result.conclusion[0]


def test_a_quantised_cache_that_loses_digits_against_the_same_model_is_named():
    bad = Scripted(dropping(lambda number: int(number[0]) > 5), kv_dtype="fp8_e4m3")
    with running(bad) as run, running(Scripted()) as baseline:
        result = digits.probe(run, DigitsOptions((8, 16), 10, 500, baseline=baseline))
    lost = sum(row["outcomes"].count("0") for row in result.rows)
    assert lost > 5
    assert (result.fact("only_baseline_exact"), result.fact("only_here_exact"), result.fact("pairs")) == (lost, 0, 20)
    assert result.fact("chance") == pytest.approx(2 / 2**lost)
    assert result.fact("against_baseline") == "worse"
    assert [finding.id for finding in result.findings] == ["fp8_kv_accuracy"]
    assert result.findings[0].advice[0].current == "fp8_e4m3"


@pytest.mark.parametrize(
    ("kv_dtype", "other_dtype", "model"),
    [("auto", "auto", MODEL), ("fp8", "fp8", MODEL), ("fp8", "auto", "another")],
    ids=["none is quantised", "both are", "another model"],
)
def test_the_cache_is_not_blamed_where_something_else_may_be_the_cause(kv_dtype, other_dtype, model):
    bad = Scripted(dropping(lambda number: False), kv_dtype=kv_dtype)
    with running(bad) as run, running(Scripted(kv_dtype=other_dtype, model=model)) as baseline:
        result = digits.probe(run, DigitsOptions((8, 16), 10, 500, baseline=baseline))
    assert result.fact("against_baseline") == "worse"
    assert not result.findings
    assert any("is not seen from here" in sentence for sentence in result.conclusion)


def test_equal_endpoints_show_no_difference_and_what_could_hide():
    with running(Scripted(kv_dtype="fp8")) as run, running(Scripted()) as baseline:
        result = digits.probe(run, DigitsOptions((8, 16), 10, 500, baseline=baseline))
    assert result.fact("against_baseline") == "no difference seen"
    assert any("up to 16 %" in sentence for sentence in result.conclusion)  # Wilson, 0 of 20: 16.1 %
    assert not result.findings


def saved(result):
    facts = [{"name": name, "value": value, "unit": unit} for name, value, unit in result.facts]
    document = {
        "probe": result.probe,
        "schema": 1,
        "server": {"model": result.server.model},
        "facts": facts,
        "rows": result.rows,
    }
    return json.loads(json.dumps(document))


def test_a_saved_result_is_a_baseline_for_the_same_questions():
    with running(Scripted()) as run:
        good = digits.probe(run, DIGITS)
    baseline = read_baseline("good.json", saved(good))
    bad = Scripted(dropping(lambda number: len(number) < 16), kv_dtype="fp8")
    with running(bad) as run:
        result = digits.probe(run, DigitsOptions((8, 16), 10, 500, baseline=baseline))
    assert (result.fact("only_baseline_exact"), result.fact("against_baseline")) == (10, "worse")
    assert [finding.id for finding in result.findings] == ["fp8_kv_accuracy"]


def test_a_baseline_that_was_asked_other_questions_is_refused():
    with running(Scripted(), seed=7) as run:
        other = digits.probe(run, DIGITS)
    baseline = read_baseline("other.json", saved(other))
    with running(Scripted()) as run:
        with pytest.raises(ProbeError, match="other questions"):
            digits.probe(run, DigitsOptions((8, 16), 10, 500, baseline=baseline))
        run.seed = 7
        with pytest.raises(ProbeError, match="no strings of 12 digits"):
            digits.probe(run, DigitsOptions((8, 12), 10, 500, baseline=baseline))


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"probe": "needle"}, "a result of probe needle"),
        ({}, "not the JSON of gpuwatch probe digits"),
        ([], "not the JSON"),
        ({"probe": "digits", "schema": 1, "facts": [], "rows": []}, "not the JSON"),
        (None, "not the JSON"),
    ],
)
def test_a_file_that_is_no_result_of_this_probe_is_refused_in_one_line(document, says):
    with pytest.raises(ProbeError, match=says):
        read_baseline("x.json", document)


def test_pairs_leave_out_trials_without_an_answer_on_either_side():
    assert Pairs.of("1100-1", "101-1") == Pairs(both=1, only_here=1, only_there=1, neither=0)


@pytest.mark.parametrize(
    ("name", "is_quantised"),
    [("auto", False), ("bfloat16", False), ("", False), ("fp8_e4m3", True), ("fp8", True), ("int8", True)],
)
def test_kv_types_that_lose_precision_are_known(name, is_quantised):
    assert quantised(name) is is_quantised


def test_an_interrupted_comparison_does_not_wait_for_the_other_server():
    numbers, hang, finished = itertools.count(1), threading.Event(), []

    def answer(prompt):
        number = next(numbers)
        if number == 5:
            run.cancel()
        if number >= 5:
            hang.wait(60)
            finished.append(number)
        return perfect(prompt)

    with running(Scripted()) as run, running(Scripted(answer)) as baseline:
        baseline.cancelled = run.cancelled
        run.client.take_along(baseline.client)
        result = digits.probe(run, DigitsOptions((8, 16), 10, 500, baseline=baseline))
        assert not finished
        hang.set()
    assert (result.complete, result.stopped_because) == (False, "interrupted")
    assert result.fact("pairs") == 4


def in_groups(size, sign):
    def answer(prompt):
        number = perfect(prompt).split(".")[0].strip()
        return sign.join(number[place : place + size] for place in range(0, len(number), size))

    return answer


@pytest.mark.parametrize(("size", "sign"), [(4, " "), (2, ","), (5, "\u202f"), (1, ", ")])
def test_a_model_that_writes_digits_in_groups_passes(size, sign):
    with running(Scripted(in_groups(size, sign))) as run:
        result = digits.probe(run, DigitsOptions((8, 16, 20), 3, 500))
    assert result.fact("verdict") == "passes"
    assert [(row["exact"], row["no_number"]) for row in result.rows] == [(3, 0)] * 3


def test_answers_have_room_for_each_digit_and_a_sign_behind_it():
    # 64 digits one by one: 64 tokens, as many signs, and eight for words.
    assert [answer_tokens(length) for length in (7, 20, 64)] == [48, 48, 136]
    script = Scripted()
    with running(script) as run:
        result = digits.probe(run, DigitsOptions((56, 64), 2, 500))
    assert result.fact("verdict") == "passes"
    # 500 tokens of text fit into 600 with 48 for the answer, not with 136.
    with running(Scripted(limit=600)) as run, pytest.raises(ProbeError, match="takes 600, answer included"):
        digits.probe(run, DigitsOptions((64,), 2, 500))


@pytest.mark.parametrize("module", [needle, order, digits])
def test_a_server_that_fails_every_question_is_no_wrong_usage(module):
    options = {needle: NeedleOptions((500,)), order: OrderOptions((500,)), digits: DigitsOptions((8,), 2, 500)}[module]
    script = Scripted(fails=lambda prompt: 500 if len(prompt) > 200 else None)
    with running(script) as run, pytest.raises(ProbeError, match="HTTP 500") as caught:
        module.probe(run, options)
    assert caught.value.code == 3


def test_depths_of_the_same_percentage_are_one_cell_that_is_asked_once():
    script = Scripted()
    with running(script) as run:
        result = needle.probe(run, NeedleOptions((500,), (0.001, 0.002, 0.5), 2))
    assert [(row["depth_percent"], row["of"]) for row in result.rows] == [(0, 2), (50, 2)]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schema": 9}, "schema 9; allowed: 1"),
        ({"sentences": -5}, "-5 sentences; allowed: 0 to 10,000,000"),
        ({"sentences": 10**400}, "allowed: 0 to 10,000,000"),
        ({"seed": float("inf")}, "not the JSON of gpuwatch probe digits"),
        ({"records": float("nan")}, "not the JSON of gpuwatch probe digits"),
    ],
)
def test_a_saved_result_with_values_that_make_no_sense_is_refused(changes, says):
    facts = {"kv_dtype": "auto", "seed": 0, "records": 12, "sentences": 30} | changes
    document = {"probe": "digits", "schema": changes.get("schema", 1), "server": {"model": "m"}, "rows": []}
    document["facts"] = [{"name": name, "value": value, "unit": ""} for name, value in facts.items()]
    with pytest.raises(ProbeError, match=says):
        read_baseline("x.json", document)


def test_a_text_that_does_not_fit_is_refused_before_anything_is_asked():
    with running(Scripted(limit=900)) as run, pytest.raises(ProbeError, match="give a smaller --length"):
        digits.probe(run, DigitsOptions((8,), 2, 4000))
