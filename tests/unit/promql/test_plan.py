from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.model import series
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.promql.nodes import Binary, Number, Selector, Window, bound, duration, floating, render
from gpuwatch.promql.plan import AGGREGATIONS, FUNCTIONS, parse
from gpuwatch.promql.values import PromQLError
from gpuwatch.store import Matcher, Store

REFUSED = [
    ("", "empty"),
    ("   # only a comment", "empty"),
    ("x +", "invalid promql query"),
    ("sum(x", "unclosed left parenthesis"),
    ("rate(x)", "expected type matrix"),
    ("rate(x[5m])[1m]", "ranges only allowed for vector selectors"),
    ("x[5m:1m][2m:30s]", "subquery is only allowed on vector"),
    ("abs(x[5m])", "expected type vector"),
    ("sum(1)", "expected type vector"),
    ('topk("a", x)', "expected type scalar"),
    ("topk(x, x)", "expected type scalar"),
    ("count_values(1, x)", "expected type string"),
    ('1 + "s"', "scalar and instant vector"),
    ("1 > 2", "BOOL"),
    ("1 and x", "set operator"),
    ("x and bool y", "bool"),
    ("x and on (a) group_left () y", "no grouping"),
    ("{}", "non-empty matcher"),
    ('{a=~".*"}', "non-empty matcher"),
    ('x{__name__="y"}', "metric name must not be set twice"),
    ("x[0s]", "greater than 0"),
    ("x[5m:0s]", "greater than 0"),
    ("time(1)", "expected 0 argument"),
    ("nosuch(x)", "unknown function"),
    # supported by a newer Prometheus, or experimental, or about native histograms
    ("x @ -5", "a time before 1970"),
    ("x @ 5m", "a duration such as 5m"),
    ("x @ 1e300", "out of range"),
    ("x @ 1e14", "out of range"),
    ("x @ 1 @ 2", "multiple times"),
    ("(x) @ 5", "must be preceded"),
    ("first_over_time(x[1m])", "first_over_time is not supported"),
    ("mad_over_time(x[1m])", "mad_over_time is not supported"),
    ("double_exponential_smoothing(x[1m], 0.5, 0.5)", "double_exponential_smoothing is not supported"),
    ("holt_winters(x[1m], 0.5, 0.5)", "holt_winters"),
    ("histogram_avg(x)", "histogram_avg is for native histograms, which gpuwatch does not read"),
    ("histogram_count(x)", "histogram_count is for native histograms"),
    ('sort_by_label(x, "a")', "sort_by_label is not supported"),
    ("info(x)", "info is not supported"),
    ("sin(x)", "sin is not supported"),
    ("limitk(2, x)", "limitk is not supported"),
    ("limit_ratio(0.5, x)", "limit_ratio is not supported"),
    ("a + fill(0) b", "fill is not supported"),
    ('x{a="1" or b="2"}', "or between label matchers"),
    ("x > 1h", "1h as a number needs"),
    ("1h30m", "1h30m as a number needs"),
    ("x[300]", "300 is not a duration"),
    ("x[5m:30]", "30 is not a duration"),
    ("x offset 300", "300 is not a duration"),
    ("x offset -300", "300 is not a duration"),
    ("x offset NaN", "NaN is not a duration"),
    ("x[inf]", "inf is not a duration"),
    ('{"x"}', "quoted name"),
    ('x{"b.c"="d"}', "quoted name"),
    ('x{a="1", "b"="d"}', "quoted name"),
    ('sum by ("a") (x)', "quoted name"),
    ('x * on (a, "b") y', "quoted name"),
    ("x smoothed", "invalid promql query"),
    ("rate(x[$__rate_interval])", "must be replaced"),
    # label names and regular expressions
    ('label_replace(x, "a-b", "", "c", "d")', "'a-b' is not a label name"),
    ('label_join(x, "a b", "")', "'a b' is not a label name"),
    ('count_values("a b", x)', "'a b' is not a label name"),
    ('x{a=~"("}', "illegal regex"),
    ('x{a=~"(?=b)"}', "illegal regex"),
    ('x{a=~"b(?i)c"}', "only supported at the start"),
    (r'x{a=~"\\pN"}', r"Unicode classes such as"),
    (r'label_replace(x, "a", "b", "c", "(d)\\1")', "back-references"),
    ('label_replace(x, "a", "b", "c", "(?<=d)")', "look-around"),
    # limits
    ("x" + " + x" * 10_000, "longer than 20000"),
    ("x" + "+x" * 5_000, "more than 2000 words and signs"),
    ("x" + " + x" * 200, "more than 150 levels"),
    ("-" * 19_000 + "x", "more than 2000 words and signs"),
    ("-" * 1900 + "x", "more than 150 levels"),
    ("x" + " ^ x" * 900, "more than 150 levels"),
    ("(" * 70 + "x" + ")" * 70, "more than 64 levels"),
    ("max_over_time(x[15m:1ms])", "more than 11000 steps"),
]


@pytest.mark.parametrize(("expr", "why"), REFUSED)
def test_what_cannot_be_evaluated_is_refused_with_the_reason(expr, why):
    with pytest.raises(PromQLError) as caught:
        parse(expr)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "expr",
    [
        "x offset -5m",
        "rate( x [ 5m ] offset 1h )",
        "sum(x) by (a, b)",
        "sum by (a,) (x)",
        "x{a='b',}",
        "x{or='and'}",
        "offset + by",
        "rate(x[1d2h3m4s5ms])",
        "x # with a comment: x[300] @ 5",
        'label_replace(x, "a", "1h", "b", "@")',
        "x == bool 1 == 2",
        "0x1F + 1e3 + .5",
        "avg_over_time((x)[5m:])",
        "NaN + Inf",
    ],
)
def test_ordinary_expressions_are_accepted(expr):
    assert parse(expr).kind in ("vector", "scalar")


def test_the_deepest_plan_that_is_accepted_can_be_evaluated_and_written():
    deepest = parse("x" + " + x" * 148)
    store = Store()
    store.append("t", 0, (series("x"),), [1.0])
    assert dict(LocalQuerier(store).instant(deepest, 0).items()) == {(): 149.0}
    assert parse(str(deepest)).root == deepest.root


def test_a_raw_string_keeps_its_backslashes():
    root = parse(r"x{a=~`\d+\.\d`}").root
    assert root == Selector((Matcher("__name__", "=", "x"), Matcher("a", "=~", r"\d+\.\d")))


def test_every_allowed_function_is_known_to_the_parser_and_can_be_called():
    arguments = {
        **dict.fromkeys(("time", "pi"), ""),
        **dict.fromkeys(("clamp",), "x, 0, 1"),
        **dict.fromkeys(("clamp_min", "clamp_max"), "x, 0"),
        "histogram_quantile": "0.5, x",
        "quantile_over_time": "0.5, x[1m]",
        "predict_linear": "x[1m], 5",
        "label_replace": 'x, "a", "b", "c", "d"',
        "label_join": 'x, "a", "b"',
        "vector": "1",
    }
    windows = {name for name in FUNCTIONS if name.endswith("_over_time")}
    windows |= {"rate", "irate", "increase", "delta", "idelta", "deriv", "changes", "resets"}
    for name in FUNCTIONS:
        parse(f"{name}({arguments.get(name, 'x[1m]' if name in windows else 'x')})")
    parameters = {"count_values": '"a", ', **dict.fromkeys(("topk", "bottomk", "quantile"), "1, ")}
    for name in AGGREGATIONS:
        parse(f"{name}({parameters.get(name, '')}x)")


def test_offsets_and_ranges_are_in_milliseconds():
    x = Matcher("__name__", "=", "x")
    assert parse("x[1m30s] offset 250ms").root == Window(Selector((x,), 250), 90_000)
    assert parse("x offset -1h").root == Selector((x,), -3_600_000)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        ("(a + b) * c", "(a + b) * c"),
        ("a + (b * c)", "a + b * c"),
        ("a - (b - c)", "a - (b - c)"),
        ("(a ^ b) ^ c", "(a ^ b) ^ c"),
        ("a ^ (b ^ c)", "a ^ b ^ c"),
        ("(-a) ^ 2", "(-a) ^ 2"),
        ("-(a ^ 2)", "-a ^ 2"),
        ("-(a + b)", "-(a + b)"),
        ("2 - -3", "2 - -3"),
        ("(-2) ^ 2", "(-2) ^ 2"),
        ("a and (b or c)", "a and (b or c)"),
        ("(a and b) or c", "a and b or c"),
        ("a >bool on(x) group_left(y,z) b", "a > bool on (x) group_left (y, z) b"),
        ("a * ignoring(x) group_right b", "a * ignoring (x) group_right b"),
        ("a and on() b", "a and on () b"),
        ("sum(a) by (x)", "sum by (x) (a)"),
        ("sum without() (a)", "sum without () (a)"),
        ("max_over_time((a > 1)[5m:] offset 1m)", "max_over_time((a > 1)[5m:] offset 1m)"),
        ("(a + b)[5m:90s]", "(a + b)[5m:1m30s]"),
        ("a{b='c\"d'}", 'a{b="c\\"d"}'),
        ("{__name__=~'a.*', b!~'c'}", '{__name__=~"a.*", b!~"c"}'),
        ("a offset 1m @ 1e3", "a @ 1000.000 offset 1m"),
        ("sum(a{b='c'} @ end ( ))", 'sum(a{b="c"} @ end())'),
        ("rate(a[5m] @ 100.5)", "rate(a[5m] @ 100.500)"),
        ("a[5m:1m] @ start() offset 30s", "a[5m:1m] @ start() offset 30s"),
        ("start + end", "start + end"),
        ("1e9 * 1.5 + 1e100", "1000000000 * 1.5 + 1e+100"),
    ],
)
def test_a_plan_reads_as_promql(expr, text):
    parsed = parse(expr)
    assert str(parsed) == text
    assert parse(text).root == parsed.root


def test_every_place_of_at_is_bound_to_the_times_of_the_query():
    plan = parse("-a @ start() + sum(rate(b[1m] @ end())) / topk(scalar(c @ end()), max_over_time(d[1m:] @ end()))")
    text = "-a @ 1.000 + sum(rate(b[1m] @ 2.000)) / topk(scalar(c @ 2.000), max_over_time(d[1m:] @ 2.000))"
    assert floating(plan.root)
    assert render(bound(plan.root, 1000, 2000)) == text
    assert not floating(parse(text).root)


def test_durations_read_as_promql_writes_them():
    assert [duration(ms) for ms in (0, 1, 1000, 90_000, 86_400_000, 694_861_001, -60_000)] == [
        *("0s", "1ms", "1s", "1m30s", "1d", "8d1h1m1s1ms", "-1m"),
    ]


def test_the_type_of_the_value_is_known():
    kinds = {expr: parse(expr).kind for expr in ("1", "time() + 1", "scalar(x)", "x > 1", "x[1m]", '"s"', "-x", "-1")}
    assert kinds == {
        **dict.fromkeys(("1", "time() + 1", "scalar(x)", "-1"), "scalar"),
        **dict.fromkeys(("x > 1", "-x"), "vector"),
        "x[1m]": "matrix",
        '"s"': "string",
    }
    assert parse("-1").root == Number(-1)
    assert isinstance(parse("time() + 1").root, Binary)


def test_the_parser_is_loaded_only_when_it_is_needed():
    code = (
        "import sys, gpuwatch.promql.values; light = 'numpy' in sys.modules\n"
        "import gpuwatch.promql.local, gpuwatch.promql.templates\n"
        "assert not light and 'promql_parser' not in sys.modules\n"
        "gpuwatch.promql.plan.parse('x'); assert 'promql_parser' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


PARTS = re.findall(
    r"(?:x )?offset \S+|\S+",
    r"""x y sum rate max_over_time topk by without on ignoring group_left bool and or unless ( ) [ ] { } , = =~
    != == > + - * / ^ % : @ 5 1m 30s 0.5 NaN 'a' `b` "c" # $ \ é abs histogram_quantile label_replace x[1m]
    offset 5m x offset -5m""",
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PARTS), st.text(max_size=3)), max_size=14))
def test_any_text_is_either_understood_or_refused(parts):
    try:
        parsed = parse(" ".join(parts))
    except PromQLError:
        return
    assert str(parse(str(parsed))) == str(parsed)
