"""Durations as prometheus/common reads and writes them, and YAML problems with their lines."""

from __future__ import annotations

import pytest

from gpuwatch.alerts.yamlfile import Problem, YamlFile
from gpuwatch.promql.duration import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("1ms", 1),
        ("30s", 30_000),
        ("1m30s", 90_000),
        ("1h", 3_600_000),
        ("2d", 172_800_000),
        ("1w", 604_800_000),
        ("1y", 31_536_000_000),
        ("1h0m5s", 3_605_000),
    ],
)
def test_duration_is_read(text, milliseconds):
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", ["", "5", "1.5s", "-1s", "1s1m", "1m1m", "1 m", "s", "1sec", "٣s", " 1s"])
def test_wrong_duration_is_refused(text):
    with pytest.raises(ValueError, match="is not a duration; allowed are"):
        parse_duration(text)


def test_duration_beyond_go_s_range_is_refused():
    with pytest.raises(ValueError, match="out of range"):
        parse_duration("300y")


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (90_000, "1m30s"),
        (3_600_000, "1h"),
        (90 * 86_400_000, "90d"),
        (14 * 86_400_000, "2w"),
        (31_536_000_000, "1y"),
        (90_061_001, "1d1h1m1s1ms"),
    ],
)
def test_duration_is_written(milliseconds, text):
    assert format_duration(milliseconds) == text


def problems(tmp_path, content: bytes) -> list[str]:
    path = tmp_path / "f.yml"
    path.write_bytes(content)
    file = YamlFile(path)
    file.root()
    return [str(problem).removeprefix(str(tmp_path) + "/") for problem in file.problems]


def test_syntax_error_has_its_line(tmp_path):
    (problem,) = problems(tmp_path, b"a: 1\nb: [1, 2\nc: 3\n")
    assert problem.startswith("f.yml:3: is not valid YAML: ")


def test_binary_is_refused_with_the_position(tmp_path):
    assert problems(tmp_path, b"a: \xff\n") == ["f.yml: is not UTF-8 text (byte 3); rule files are UTF-8"]


def test_control_characters_are_refused_in_one_line(tmp_path):
    (problem,) = problems(tmp_path, b"a: \x01\n")
    assert problem.startswith("f.yml")
    assert "\n" not in problem


def test_two_documents_are_refused(tmp_path):
    (problem,) = problems(tmp_path, b"a: 1\n---\nb: 2\n")
    assert "is not valid YAML" in problem


def test_missing_file_says_so(tmp_path):
    file = YamlFile(tmp_path / "none.yml")
    assert file.root() is None
    assert [problem.message for problem in file.problems] == ["cannot be read: No such file or directory"]


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"~\n"])
def test_empty_file_is_no_problem_and_no_node(tmp_path, content):
    assert problems(tmp_path, content) == []


def test_problem_reads_as_file_line_rule_reason():
    assert str(Problem("r.yml", 7, "bad", "Hot")) == "r.yml:7: rule Hot: bad"
    assert str(Problem("r.yml", 0, "bad")) == "r.yml: bad"
