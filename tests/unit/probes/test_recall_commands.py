"""`gpuwatch probe prefix`, `needle`, `order` and `digits` from the command line."""

from __future__ import annotations

import json

import pytest

from gpuwatch.cli import main
from tests.unit.probes.scripted import PrefixCache, Scripted, serving

SHORT = {
    "prefix": ("--fill", "0", "--concurrency", "2"),
    "needle": ("--lengths", "300", "--depths", "0,1", "--trials", "1", "--distractors", "0"),
    "order": ("--lengths", "300", "--trials", "2"),
    "digits": ("--digits", "8", "--length", "300", "--trials", "2"),
}


def run(capsys, name, url, *more):
    code = main(["probe", name, "--engine", url, *SHORT[name], *more])
    return code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("name", "verdict"),
    [("prefix", "works"), ("needle", "passes"), ("order", "respects order"), ("digits", "passes")],
)
def test_json_has_the_verdict_and_rows_with_the_same_keys(capsys, name, verdict):
    cache = PrefixCache() if name == "prefix" else None
    with serving(Scripted(cache=cache)) as url:
        code, out, _ = run(capsys, name, url, "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["schema"], document["probe"], document["complete"]) == (1, name, True)
    assert next(fact["value"] for fact in document["facts"] if fact["name"] == "verdict") == verdict
    assert len({tuple(row) for row in document["rows"]}) == 1


def test_text_shows_the_table_the_heat_map_and_what_it_means(capsys):
    with serving(Scripted()) as url:
        code, out, _ = run(capsys, "needle", url)
    assert code == 0
    assert "length tokens" in out
    assert "  0 %   ██ 100" in out
    assert "finds the fact at every length" in out


def test_a_saved_result_is_taken_as_baseline_and_a_difference_is_found(capsys, tmp_path):
    saved = tmp_path / "good.json"
    more = ("--digits", "8,12,16,20", "--trials", "3")
    with serving(Scripted()) as url:
        assert run(capsys, "digits", url, *more, "-o", str(saved))[0] == 0
    with serving(Scripted(lambda prompt: " 11111111", kv_dtype="fp8")) as url:
        code, out, _ = run(capsys, "digits", url, *more, "--baseline", str(saved), "--json", "--fail-on", "warning")
    document = json.loads(out)
    assert [finding["id"] for finding in document["findings"]] == ["fp8_kv_accuracy"]
    assert code == 1


def test_a_second_server_is_asked_the_same_questions(capsys):
    with serving(Scripted(lambda prompt: "noise")) as url, serving(Scripted()) as other:
        code, out, _ = run(capsys, "digits", url, "--trials", "8", "--baseline-engine", other, "--json")
    facts = {fact["name"]: fact["value"] for fact in json.loads(out)["facts"]}
    assert code == 0
    assert (facts["pairs"], facts["only_baseline_exact"], facts["against_baseline"]) == (8, 8, "worse")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--baseline", "absent.json"), "--baseline absent.json: No such file"),
        (("--baseline-engine", "http://192.0.2.1:8000"), "--baseline-engine 192.0.2.1: not on this machine"),
    ],
)
def test_a_baseline_that_cannot_be_used_is_refused_in_one_line(capsys, more, says):
    with serving(Scripted()) as url:
        code, _, err = run(capsys, "digits", url, *more)
    assert code == 2
    assert says in err
    assert err.count("\n") == 1


def test_prompts_of_the_users_own_are_read_from_files(capsys, tmp_path):
    for name, text in (("a", "one two three"), ("b", "one two four"), ("empty", ""), ("binary", None)):
        (tmp_path / name).write_bytes(b"\xff\xfe" if text is None else text.encode())
    with serving(Scripted(cache=PrefixCache())) as url:
        code, out, _ = run(capsys, "prefix", url, "--prompts", str(tmp_path / "a"), str(tmp_path / "b"))
        assert code == 0
        assert "part at line 1, column 9, after 2 tokens" in out
        for name, says in (("empty", "0 characters"), ("binary", "not UTF-8"), ("absent", "No such file")):
            code, _, err = run(capsys, "prefix", url, "--prompts", str(tmp_path / "a"), str(tmp_path / name))
            assert (code, err.count("\n")) == (2, 1)
            assert says in err


def test_lengths_beyond_the_server_are_refused_in_one_line(capsys):
    with serving(Scripted(limit=2000)) as url:
        code, _, err = run(capsys, "needle", url, "--lengths", "50000")
    assert (code, err.count("\n")) == (2, 1)
    assert "the server takes 2,000 tokens" in err
