from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from unit.report.runs import START, record, run, steady, window

from gpuwatch.cli import main
from gpuwatch.cli.output import finding_json
from gpuwatch.diagnosis.finding import Advice, Finding, NotEnough
from gpuwatch.report import compare_json, compare_report, html, markdown
from gpuwatch.report.data import EngineStart, Setting
from gpuwatch.report.document import Text
from gpuwatch.report.scaling import poor, scaling
from gpuwatch.report.versus import busy, value_of, versus

PCIE = Finding(
    "tp_pcie_slow", "warning", "PCIe", "slow links", 0.8, (), (Advice("use NVLink"),), since=START, labels={}
)  # fmt: skip


def row(pair, name):
    return next(row for row in pair.rows if row.name == name)


def verdict(*runs):
    return next(block for block in compare_report.build(runs).blocks if isinstance(block, Text))


def test_a_faster_run_is_better_by_what_it_is_faster():
    pair = versus(run("a", seed=1), run("b", seed=2, rate=120.0))
    known = row(pair, "generated tokens")
    assert known.verdict == "better"
    assert known.comparison.difference == pytest.approx(0.2, abs=0.03)
    assert known.comparison.low < 0.2 < known.comparison.high
    assert value_of(known, 0) == pytest.approx(100, rel=0.03)


def test_equal_runs_are_not_told_apart_and_the_report_says_what_may_hide():
    said = verdict(run("a", seed=1), run("b", seed=2))
    assert said.text.startswith("No difference between A and B is shown. Generated tokens may still differ by -")


def test_a_longer_time_between_tokens_is_worse():
    pair = versus(run("a", seed=1, itl=0.008), run("b", seed=2, itl=0.015))
    # All tokens of the first run lie in 5 to 10 ms, those of the second in 10 to 20 ms.
    assert row(pair, "time between tokens p50").verdict == "worse"
    assert value_of(row(pair, "time between tokens p50"), 0) == pytest.approx(0.0075)
    assert value_of(row(pair, "time between tokens p50"), 1) == pytest.approx(0.015)
    assert value_of(row(pair, "time between tokens mean"), 1) == pytest.approx(0.015)


def test_better_in_one_and_worse_in_another_is_said_so():
    said = verdict(run("a", seed=1), run("b", seed=2, rate=130.0, itl=0.03))
    assert said.text.startswith("B is better than A in some figures and worse in others: generated tokens +")
    assert said.tone == "warning"


def test_a_latency_that_rose_above_all_buckets_is_worse_and_named_first():
    pair = versus(run("a", seed=1), run("b", seed=2, ttft=9.0))
    # 9 s is above the highest bound of 5 s; the first run lies in 0.1 to 0.5 s: p95 is 0.1 + 0.4 * 0.95.
    known = row(pair, "time to first token p95")
    assert (value_of(known, 0), value_of(known, 1)) == (pytest.approx(0.48), math.inf)
    assert (known.verdict, known.comparison.low) == ("worse", None)
    assert row(versus(pair.second, pair.first), "time to first token p95").verdict == "better"
    document = compare_report.build([pair.first, pair.second])
    (said, *_) = document.blocks
    assert said.text.startswith("B is worse than A: time to first token p95 480 ms → above all buckets")
    assert "| time to first token p95 | 480 ms | above all buckets |" in markdown.write(document)


def test_a_figure_above_all_buckets_is_a_text_in_json():
    data = compare_json.as_json([run("a", seed=1), run("b", seed=2, ttft=9.0)], finding_json)
    figures = {each["name"]: each for each in data["comparisons"][0]["figures"]}
    known = figures["time to first token p95"]
    assert (known["value"], known["difference"], known["verdict"]) == ("+Inf", None, "worse")
    json.dumps(data, allow_nan=False)


def test_where_both_runs_are_above_all_buckets_the_mean_stands_for_the_quantile():
    pair = versus(run("a", seed=1, ttft=9.0), run("b", seed=2, ttft=90.0))
    assert row(pair, "time to first token p95").verdict == "n/a"
    assert verdict(pair.first, pair.second).text.startswith("B is worse than A: time to first token mean +900.0 %")


def test_a_quantile_that_is_above_all_buckets_in_a_part_of_the_run_only_is_no_difference_for_sure():
    # Of 60 windows 4 are above all buckets: 6.7 % of the requests, but drawn anew often less than 5 %.
    often = (*(0.3,) * 14, 9.0)
    pair = versus(run("a", seed=1), run("b", seed=2, ttft=often))
    known = row(pair, "time to first token p95")
    assert (value_of(known, 1), known.verdict) == (math.inf, "too short to say")


def test_of_two_quantiles_in_the_first_bucket_no_difference_is_told_and_the_mean_stands_for_them():
    pair = versus(run("a", seed=1, ttft=0.02), run("b", seed=2, ttft=0.08))
    known = row(pair, "time to first token p95")
    assert (known.comparison, known.verdict, known.at_most) == (None, "n/a", (True, True))
    assert row(pair, "time to first token mean").verdict == "worse"
    text = markdown.write(compare_report.build([pair.first, pair.second]))
    assert "| time to first token p95 | ≤ 100 ms | ≤ 100 ms |" in text
    assert "time to first token mean" in verdict(pair.first, pair.second).text


def test_a_quantile_that_left_the_first_bucket_is_worse_without_an_invented_difference():
    pair = versus(run("a", seed=1, ttft=0.05), run("b", seed=2, ttft=0.3))
    known = row(pair, "time to first token p95")
    assert (known.verdict, known.at_most) == ("worse", (True, False))
    # of the second all lie between 0.1 and 0.5 s: 0.1 + 0.95 · 0.4
    assert "≤ 100 ms → 480 ms" in verdict(pair.first, pair.second).text
    data = compare_json.as_json([pair.first, pair.second], finding_json)
    (figure,) = (item for item in data["comparisons"][0]["figures"] if item["name"] == "time to first token p95")
    assert (figure["baseline"], figure["difference"]) == (None, None)
    assert (figure["baseline_at_most"], figure["value"]) == pytest.approx((0.1, 0.48))


def test_a_run_of_several_starts_is_not_held_against_another_without_a_word():
    one, other = run("a", seed=1), run("b", seed=2)
    starts = tuple(
        EngineStart(START + at, (START + at, START + at + 1000), (Setting("--max-num-seqs", value),))
        for at, value in ((0, "16"), (150_000, "2"), (300_000, "16"))
    )
    two = replace(other, engines=(replace(other.engines[0], starts=starts),))
    text = markdown.write(compare_report.build([one, two]))
    assert "B: 127.0.0.1:8000 was started 3 times, with other flags (--max-num-seqs 16 → 2 → 16)" in text
    assert "| --max-num-seqs | not known | 16 → 2 → 16 |" in text


def test_a_difference_outside_of_the_leading_figures_is_not_passed_over():
    # 0.2 s and 0.4 s lie in the same bucket of 0.1 to 0.5 s: quantiles are alike, the mean is not.
    said = verdict(run("a", seed=1, ttft=0.2), run("b", seed=2, ttft=0.4))
    assert said.text.startswith("B is worse than A: time to first token mean +100.0 %")


def test_throughput_that_could_not_be_judged_is_named_and_not_called_equal():
    # Both rise through the whole run: neighbours are alike, so that there are too few independent blocks.
    def rising(name, base):
        known = run(name, seed=1)
        windows = tuple(window(number, rate=base * (0.5 + number / 60)) for number in range(60))
        return replace(known, engines=(replace(known.engines[0], windows=windows),))

    pair = versus(rising("a", 100.0), rising("b", 300.0))
    assert row(pair, "generated tokens").verdict == "too short to say"
    said = verdict(pair.first, pair.second)
    assert said.tone == "warning"
    assert "Too short to say whether this is more than chance: generated tokens +200.0 %" in said.text
    assert said.text.startswith("No difference between A and B is shown in ")


def test_a_short_run_has_no_verdict():
    pair = versus(run("a", seed=1, count=3), run("b", seed=2, rate=300.0, count=3))
    assert row(pair, "generated tokens").verdict == "too short to say"
    assert row(pair, "generated tokens").comparison.difference == pytest.approx(2.0, abs=0.3)


def test_a_quantile_that_few_observed_is_not_compared():
    pair = versus(run("a", seed=1, count=2, rate=4.0), run("b", seed=2, count=2, rate=4.0))
    assert row(pair, "time to first token p95").verdict == "n/a"


def test_figures_that_the_engines_do_not_have_are_left_out_of_the_table():
    text = markdown.write(compare_report.build([run("a", seed=1), run("b", seed=2)]))
    assert "prefix cache hits" not in text
    assert "time in the queue" not in text
    assert "| generated tokens |" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"length": 400.0}, "mean prompt length 200 against 400"),
        ({"running": 12.0}, "requests running 8 against 12"),
    ],
)
def test_different_loads_are_pointed_out(options, words):
    pair = versus(run("a", seed=1), run("b", seed=2, **options))
    assert any(words in caution for caution in pair.cautions)


def test_a_load_in_which_nothing_waits_says_nothing_about_throughput():
    pair = versus(run("a", seed=1, waiting=0.0), run("b", seed=2, waiting=0.0))
    assert any("Hardly a request waited" in caution for caution in pair.cautions)
    assert not versus(run("a", seed=1), run("b", seed=2)).cautions


def test_a_run_without_work_cannot_be_compared():
    idle = replace(run("a", seed=1), engines=())
    said = verdict(idle, run("b", seed=2))
    assert "cannot be compared" in said.text
    assert versus(idle, run("b", seed=2)).cautions == (
        "In at least one run no engine had work: there is nothing to compare.",
    )


def test_equal_concurrency_is_compared_by_level():
    def mixed(seed, rate):
        base = run("x", seed=seed)
        windows = tuple(
            window(number, running=2.0 if number % 2 else 8.0, rate=rate * (2 if number % 2 else 8))
            for number in range(60)
        )
        return replace(base, engines=(replace(base.engines[0], windows=windows),))

    pair = versus(mixed(1, 10.0), mixed(2, 12.0))
    assert [level.text for level in pair.levels] == ["2", "5-8"]
    values = [value_of(level.rows[0], which) for level in pair.levels for which in (0, 1)]
    assert values == pytest.approx([20, 24, 80, 96])


def test_engines_of_one_run_are_added_up():
    base = run("a", seed=1, noise=0.0)
    two = replace(base, engines=(base.engines[0], replace(base.engines[0], rank="1")))
    assert sum(part.counted["generation_tokens"] for part in busy(two)) == pytest.approx(2 * 100 * 300)
    assert {part.seconds for part in busy(two)} == {5}
    assert {part.running for part in busy(two)} == {16}


def test_what_differs_is_listed():
    text = markdown.write(
        compare_report.build(
            [run("a", seed=1, flags=(("--max-num-seqs", "16"),)), run("b", seed=2, flags=(("--enable-x", ""),))]
        )
    )
    assert "| --max-num-seqs | 16 | not given |" in text
    assert "| --enable-x | not given | given |" in text
    assert "| model |" not in text


def test_twice_the_ranks_with_the_same_speed_scale_poorly():
    pair = versus(run("a", seed=1, tp=2, rate=100), run("b", seed=2, tp=4, rate=104))
    gained = scaling(pair)
    assert (gained.few, gained.many, gained.ideal) == (2, 4, 2)
    assert gained.efficiency == pytest.approx(0.52, abs=0.02)
    assert gained.basis == "while requests waited in both runs"
    finding = poor(pair, gained)
    assert (finding.id, finding.severity, finding.caused_by) == ("tp_scaling_poor", "warning", None)
    assert "look alike" in finding.cause
    (advice,) = finding.advice
    assert (advice.flag, advice.current, advice.proposed) == ("--tensor-parallel-size", "4", "2")
    assert "2 replicas of 2" in advice.text


def test_ranks_of_which_no_two_copies_fit_are_not_split_into_copies():
    pair = versus(run("a", seed=1, tp=4, rate=100), run("b", seed=2, tp=6, rate=60))
    (advice,) = poor(pair, scaling(pair)).advice
    assert advice.text.startswith("the model runs on 4 cards: stay with 4 ranks, at ")
    assert advice.text.endswith(" tok/s and 2 cards fewer")
    assert (advice.current, advice.proposed) == ("6", "4")


def test_copies_that_leave_a_card_over_say_so():
    pair = versus(run("a", seed=1, tp=2, rate=100), run("b", seed=2, tp=5, rate=100))
    (advice,) = poor(pair, scaling(pair)).advice
    assert "2 replicas of 2 instead, up to 200 tok/s from 4 of the 5 cards" in advice.text


def test_courses_are_rows_of_characters_in_markdown():
    text = markdown.write(compare_report.build([run("a", seed=1), run("b", seed=2)]))
    courses = text.split("## Over time, since each run began to work")[1].split("## ")[0]
    assert courses.count("\n| A | ") == courses.count("\n| B | ") == 4


def test_the_order_of_the_runs_does_not_matter_for_scaling():
    pair = versus(run("b", seed=2, tp=4, rate=104), run("a", seed=1, tp=2, rate=100))
    gained = scaling(pair)
    assert (gained.few, gained.many) == (2, 4)
    assert gained.efficiency == pytest.approx(0.52, abs=0.02)
    assert gained.low < gained.speedup < gained.high
    assert poor(pair, gained) is not None


def test_ranks_that_help_are_no_finding():
    pair = versus(run("a", seed=1, tp=1, rate=100), run("b", seed=2, tp=2, rate=170))
    gained = scaling(pair)
    assert gained.efficiency == pytest.approx(0.85, abs=0.03)
    assert poor(pair, gained) is None


def test_a_cause_is_named_where_the_run_has_one():
    pair = versus(run("a", seed=1, tp=1), run("b", seed=2, tp=4, findings=(PCIE,)))
    finding = poor(pair, scaling(pair))
    assert finding.caused_by == "tp_pcie_slow"
    assert "over PCIe" in finding.cause
    assert [advice.text for advice in finding.advice][1:] == ["use NVLink"]


def test_too_short_runs_are_no_finding():
    pair = versus(run("a", seed=1, tp=1, count=3), run("b", seed=2, tp=4, count=3))
    assert poor(pair, scaling(pair)) is None


def test_a_load_at_a_fixed_rate_cannot_show_scaling():
    one = run("a", seed=1, tp=1, waiting=0.0, running=8.0)
    two = run("b", seed=2, tp=2, waiting=0.0, running=3.0)
    assert isinstance(scaling(versus(one, two)), NotEnough)


def test_equally_many_requests_at_once_show_scaling():
    gained = scaling(versus(run("a", seed=1, tp=1, waiting=0.0), run("b", seed=2, tp=2, waiting=0.0, rate=150)))
    assert gained.basis == "while 5-8 requests ran in either"
    assert gained.speedup == pytest.approx(1.5, abs=0.05)


def test_different_models_are_not_compared_for_scaling():
    found = scaling(versus(run("a", seed=1, tp=1), run("b", seed=2, tp=2, model="other")))
    assert isinstance(found, NotEnough)
    assert "same model" in found.missing


def test_equal_ranks_are_no_question_of_scaling():
    assert scaling(versus(run("a", seed=1), run("b", seed=2))) is None


def test_three_runs_are_held_against_the_first():
    runs = [run("a", seed=1, tp=1), run("b", seed=2, tp=2, rate=180), run("c", seed=3, tp=4, rate=185)]
    text = markdown.write(compare_report.build(runs, "gpuwatch 1"))
    assert "## B against A" in text
    assert "## C against A" in text
    assert "4 ranks generate 1.8" in text
    assert "tp\\_scaling\\_poor" not in text.split("## Tensor")[0]
    assert "`tp_scaling_poor`" in text
    page = html.write(compare_report.build(runs))
    for picture in page.split("<svg")[1:]:
        ET.fromstring("<svg" + picture.split("</svg>")[0] + "</svg>")


def test_json_says_what_the_report_says():
    runs = [run("a", seed=1, tp=1), run("b", seed=2, tp=4, rate=104)]
    data = json.loads(json.dumps(compare_json.as_json(runs, finding_json), allow_nan=False))
    (pair,) = data["comparisons"]
    figures = {figure["name"]: figure for figure in pair["figures"]}
    assert (data["schema"], pair["baseline"], pair["run"]) == (1, "A", "B")
    assert figures["generated tokens"]["baseline"] == pytest.approx(100, rel=0.03)
    assert pair["scaling"]["efficiency"] == pytest.approx(0.26, abs=0.02)
    assert [finding["id"] for finding in data["findings"]] == ["tp_scaling_poor"]


def test_the_command_compares_recordings(tmp_path, capsys):
    # 60 s at 100 and at 130 tokens a second without any scatter: the difference is 30 % exactly.
    first = record(tmp_path / "a.rec", steady(60, 100))
    second = record(tmp_path / "b.rec", steady(60, 130))
    assert main(["compare", str(first), str(second)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# gpuwatch compare\n\nA: a.rec, B: b.rec\n\n**B is better than A: generated tokens +30.0 %")
    assert main(["compare", str(first), str(second), "-o", str(tmp_path / "c.html")]) == 0
    assert (tmp_path / "c.html").read_text().startswith("<!DOCTYPE html>")
    assert main(["compare", str(first), str(second), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][1]["recording"] == "b.rec"


def test_of_other_loads_without_a_common_concurrency_none_is_better():
    runs = run("a", seed=1), run("b", seed=2, rate=190.0, running=16.0)
    pair = versus(*runs)
    assert not pair.levels
    assert row(pair, "generated tokens").verdict == "differs"
    assert not {"better", "worse"} & {each.verdict for each in pair.rows}
    said = verdict(*runs)
    assert said.text.startswith("Which of A and B is better cannot be said: their loads differ, and they have no conc")
    assert "generated tokens +9" in said.text
    assert said.tone == "warning"
    assert compare_report.not_compared([pair]) == ""


def test_a_recording_held_against_itself_is_said_to_be_the_same():
    same = run("a", seed=1)
    assert "Both are the same recording: it is compared with itself." in versus(same, same).cautions
    assert not versus(same, run("b", seed=2)).cautions


def test_a_few_windows_that_are_all_alike_are_not_better_where_the_loads_differ():
    # 20 windows are less than seven blocks of three
    pair = versus(run("a", seed=1, noise=0, count=20), run("b", seed=2, noise=0, count=20, rate=120.0, running=10.0))
    known = row(pair, "generated tokens")
    assert known.comparison.difference == pytest.approx(0.2)
    assert (known.comparison.low, known.verdict) == (None, "too short to say")
    for other in ({}, {"running": 10.0}):  # equal figures are not told apart, whatever the loads
        equal = row(
            versus(run("a", seed=1, noise=0, count=20), run("b", seed=2, noise=0, count=20, **other)), "preemptions"
        )
        assert (equal.comparison.difference, equal.comparison.p, equal.verdict) == (0.0, 1.0, "no difference shown")
    same = versus(run("a", seed=1, noise=0, count=20), run("b", seed=2, noise=0, count=20, rate=120.0))
    assert row(same, "generated tokens").verdict == "better"


def test_runs_that_cannot_be_compared_are_exit_code_three(tmp_path, capsys):
    first, second = (str(record(tmp_path / f"{name}.rec", steady(6))) for name in "ab")
    for more in ((), ("--json",)):
        assert main(["compare", first, second, *more]) == 3
        captured = capsys.readouterr()
        assert captured.out
        assert (
            captured.err == "gpuwatch compare: B cannot be compared with A: too little work in at least one of them\n"
        )


def test_what_cannot_be_compared_is_said_in_one_line(tmp_path, capsys):
    good = str(record(tmp_path / "a.rec", steady(2)))
    empty = str(record(tmp_path / "empty.rec", []))
    for arguments, code, message in (
        ([good, str(tmp_path / "none.rec")], 2, "No such file"),
        ([good] * 9, 2, "9 recordings; allowed: 2 to 8"),
        ([good, good, "-o", str(tmp_path / "a.txt")], 2, "must end in .html or .md"),
        ([good, empty], 3, "holds no complete tick"),
    ):
        assert main(["compare", *arguments]) == code
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
