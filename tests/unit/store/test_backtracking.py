"""Patterns that a backtracking matcher cannot finish are refused; those that people write are not."""

from __future__ import annotations

import time

import pytest

from gpuwatch.store import RegexError, compile_regex

SLOW = [
    "(([^x]|[^y])+)+z",
    "(a+)+b",
    "(a*)*b",
    "(a|a)*b",
    "(a|aa)+b",
    "(a|ab|b)*c",
    "(.*,)*x",
    r"(\w+\s?)*!",
    "(a*b?)*c",
    "(?i)(a|A)+b",
    "(?:x+x+)+y",
    "(a+){10}b",
    "(a|aa){40}b",
    "(a{1,9}){9}b",
    r"([a-z]|[^\d])+;",
    "((a?){9}){9}b",
    "(é|[à-ÿ])+b",
    ".*.*.*.*.*z",
    "(.*)(.*)(.*)(.*)(.*)z",
    "x*x*x*x*x*x*y",
    ".*x.*x.*x.*x.*x.*z",
]
FINE = [
    "38|48|14[03-9]|15[04-8]",
    "(foo|bar)+",
    r"([0-9]+\.)+[0-9]+",
    r"(\d{1,3}\.){3}\d{1,3}:\d{2,5}",
    "([^,]*,)*x",
    ".*foo.*bar.*baz.*qux.*end.*",
    "([a-z]{4})+",
    "([0-9a-f]{8}-)+[0-9a-f]{12}",
    "(GPU-|MIG-)?[0-9a-f-]+",
    "(a?)*b",
    "(|a)+b",
    "(ab*c)*d",
    "(.*){3}",
    "(.*-){2}.*",
    r"(?:\[[^\]]*\])*tail",
    "(?P<name>[a-z]+)_(?P<unit>total|sum|count)",
    "x{1000}",
    "a+?b*?c??",
    "[*+]+",
    r"\*\+",
]


@pytest.mark.parametrize("pattern", SLOW)
def test_a_pattern_that_backtracks_for_hours_is_refused_with_the_reason(pattern):
    with pytest.raises(RegexError, match="may take hours"):
        compile_regex(pattern)


@pytest.mark.parametrize("pattern", FINE)
def test_what_people_write_is_accepted_and_quick(pattern):
    compiled = compile_regex(pattern)
    before = time.process_time()
    for text in ("a" * 100, "x" * 100, "1.1." * 25, "foo bar baz " * 10, "ab" * 50):
        compiled.fullmatch(text + "\x01")
    assert time.process_time() - before < 5


def test_the_reason_names_the_repeat():
    with pytest.raises(RegexError, match=r"the repeat '\(\(\[\^x\]\|\[\^y\]\)\+\)\+' can match"):
        compile_regex("host-(([^x]|[^y])+)+z")


@pytest.mark.parametrize("pattern", ["(" * 3000 + "a" + ")" * 3000 + "*", "(" * 200 + "a*" + ")" * 200])
def test_a_pattern_of_thousands_of_brackets_is_refused_and_breaks_nothing(pattern):
    with pytest.raises(RegexError, match="too deeply nested"):
        compile_regex(pattern)


def test_a_large_pattern_is_judged_in_less_than_seconds():
    before = time.process_time()
    compile_regex(".*(" + "|".join(f"word{number}" for number in range(500)) + ").*")
    with pytest.raises(RegexError, match="too large"):
        compile_regex("(" + "|".join("[a-z]*" for _ in range(400)) + ")+")
    assert time.process_time() - before < 10
