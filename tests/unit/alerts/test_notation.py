"""The notation of series in rule tests, from the examples of Prometheus' documentation and its lexer's rules."""

from __future__ import annotations

import math

import pytest

from gpuwatch.alerts.notation import format_metric, parse_metric, parse_values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("1 2.5 .5 1e3 -4 +5", (1.0, 2.5, 0.5, 1000.0, -4.0, 5.0)),
        ("-2+4x3", (-2.0, 2.0, 6.0, 10.0)),
        ("1-2x4", (1.0, -1.0, -3.0, -5.0, -7.0)),
        ("1x4", (1.0,) * 5),
        ("4x0", (4.0,)),
        ("1 _x3 5", (1.0, None, None, None, 5.0)),
        ("1 _ stale", (1.0, None, "stale")),
        ("_x0 7", (7.0,)),
        ("Inf -inf +INF", (math.inf, -math.inf, math.inf)),
        ("1\n  2\t3", (1.0, 2.0, 3.0)),
        ("1e-3+1e-3x1", (0.001, 0.002)),
    ],
)
def test_values(text, expected):
    assert parse_values(text) == expected


def test_nan_is_a_value_and_no_stale_marker():
    (value,) = parse_values("NaN")
    assert isinstance(value, float)
    assert math.isnan(value)


def test_steps_are_summed_one_by_one():
    assert parse_values("0+0.1x3")[-1] == 0.1 + 0.1 + 0.1 != 0.3


@pytest.mark.parametrize(
    "text", ["x", "1+1", "1x", "1+x3", "stalex3", "Stale", "1,2", "_x-1", "1x-2", "a+bx3", "--1", "1..2"]
)
def test_wrong_values_are_refused(text):
    with pytest.raises(ValueError, match="is not a value; allowed are"):
        parse_values(text)


def test_too_many_points_are_refused_before_they_are_made():
    with pytest.raises(ValueError, match="more than 1,000,000 points"):
        parse_values("1x99999999999999999999")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("up", (("__name__", "up"),)),
        ("{}", ()),
        ('{a="b"}', (("a", "b"),)),
        ('m{z="1",a="2"}', (("__name__", "m"), ("a", "2"), ("z", "1"))),
        ("  m { a = \"x\" , b='y', } ", (("__name__", "m"), ("a", "x"), ("b", "y"))),
        ('job:rate5m{le="+Inf"}', (("__name__", "job:rate5m"), ("le", "+Inf"))),
        ('m{a="q\\"u\\\\o\\n\\x41\\u00e9",b=`r\\aw`}', (("__name__", "m"), ("a", 'q"u\\o\nAé'), ("b", "r\\aw"))),
        ('m{a="}{,"}', (("__name__", "m"), ("a", "}{,"))),
        ('m{a=""}', (("__name__", "m"),)),
        ('{__name__="m",a="b"}', (("__name__", "m"), ("a", "b"))),
    ],
)
def test_metric(text, expected):
    assert parse_metric(text) == expected


@pytest.mark.parametrize("text", ["", "1m", "m{", "m{a}", 'm{a="b" c="d"}', 'm{a=~"b"}', 'm{a="b"} 5', "m{,}", "a b"])
def test_wrong_metric_is_refused(text):
    with pytest.raises(ValueError, match="is not a series"):
        parse_metric(text)


def test_label_named_twice_is_refused():
    with pytest.raises(ValueError, match="names a label twice"):
        parse_metric('m{a="1",a="2"}')


@pytest.mark.parametrize("text", ["m", "{}", 'm{a="x\\"y"}', '{a="b", c="d"}'])
def test_formatted_metric_reads_back(text):
    assert parse_metric(format_metric(parse_metric(text))) == parse_metric(text)
