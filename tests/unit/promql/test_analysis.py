from __future__ import annotations

import pytest

from gpuwatch.promql.analysis import comparisons, missing, requirements, selectors
from gpuwatch.promql.plan import parse


def names(*groups):
    return tuple(frozenset(group) for group in groups)


@pytest.mark.parametrize(
    ("expr", "needs"),
    [
        ("a", names("a")),
        ("a > 1 and b > 2", names("ab")),
        ("a / b", names("ab")),
        ("a or b", names("a", "b")),
        ("a unless b", names("a")),
        ("a + b unless c or d", names("ab", "d")),
        ("absent(a)", names("")),
        ("absent_over_time(a[5m])", names("")),
        ("absent(a) and b", names("b")),
        ("a or vector(0)", names("")),
        ("rate(a[1m]) > 0 and (b or c)", names("ab", "ac")),
        ("a or a and b", names("a")),
        ("(a or b) + (a or c)", names("a", "bc")),
        ("histogram_quantile(0.9, sum by (le) (rate(a[1m])))", names("a")),
        ("a > scalar(b)", names("ab")),
        ("topk(scalar(b), a)", names("ab")),
        ("max_over_time((a - b)[5m:10s])", names("ab")),
        ('{__name__=~"a|b"}', names("")),
        ("time() > bool 5", names("")),
    ],
)
def test_requirements_say_what_must_exist(expr, needs):
    found = requirements(parse(expr))
    assert set(found) == set(needs)
    assert len(found) == len(needs)


@pytest.mark.parametrize(
    ("expr", "existing", "lacking"),
    [
        ("a and b", "a", "b"),
        ("a and b", "ab", ""),
        ("a or b", "b", ""),
        ("a and b or c", "a", "b"),
        ("a and b or c", "", "c"),
        ("a unless b", "a", ""),
        ("absent(a)", "", ""),
    ],
)
def test_what_is_missing_is_the_least_that_would_do(expr, existing, lacking):
    assert missing(parse(expr), set(existing)) == frozenset(lacking)


def test_selectors_are_all_that_an_expression_asks_for():
    plan = parse('a + rate(b[1m]) unless absent(c) or {__name__=~"d.*"} or {__name__="e", x="y"}')
    assert [node.name for node in selectors(plan)] == ["a", "b", "c", None, "e"]


@pytest.mark.parametrize(
    ("expr", "found"),
    [
        ("a > 1", [("a > 1", "a", ">", 1)]),
        ("0.9 < a", [("a > 0.9", "a", ">", 0.9)]),
        ("5 == a", [("a == 5", "a", "==", 5)]),
        ("a <= bool 2 * 1024", [("a <= 2048", "a", "<=", 2048)]),
        ("a > -1", [("a > -1", "a", ">", -1)]),
        ("a > -(2 ^ 3)", [("a > -8", "a", ">", -8)]),
        (
            "rate(a[1m]) > 0.1 and on (x) b / (c > 0) >= 0.4",
            [("rate(a[1m]) > 0.1", "rate(a[1m])", ">", 0.1), ("b / (c > 0) >= 0.4", "b / (c > 0)", ">=", 0.4)],
        ),
        ("a > 1 unless b == 0", [("a > 1", "a", ">", 1)]),
        ("(a > 1 or b > 2) and c", [("a > 1", "a", ">", 1), ("b > 2", "b", ">", 2)]),
        ("a - b > 5", [("a - b > 5", "a - b", ">", 5)]),
        ("a > b", []),
        ("a", []),
        ("a > scalar(b)", []),
        ("a > 1 / 0", []),
        ("count(a > 1)", []),
        ("count(a > 1) > 3", [("count(a > 1) > 3", "count(a > 1)", ">", 3)]),
    ],
)
def test_comparisons_with_numbers_are_found(expr, found):
    got = [(one.text, one.left.text, one.op, one.threshold) for one in comparisons(parse(expr))]
    assert got == found
    for text, left, _, _ in found:
        assert str(parse(text)) == text
        assert str(parse(left)) == left
