from __future__ import annotations

import pytest

from gpuwatch.store import RegexError, compile_regex


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("a|b", "a", True),
        ("a|b", "ab", False),
        ("ab?c*", "accc", True),
        (".+", "two\nlines", True),
        ("", "", True),
        (r"\d{2,3}", "123", True),
        (r"\d", "٣", False),
        (r"[^a-c]x", "dx", True),
        (r"[]a]", "]", True),
        (r"[a\]b]+", "a]b", True),
        (r"[[:alpha:]_]+", "ab_", True),
        (r"[[:digit:]]", "a", False),
        (r"[a[b]", "[", True),
        (r"a{,2}", "a{,2}", True),
        (r"{x}", "{x}", True),
        (r"(?i)abc", "aBC", True),
        (r"(?i:a)b", "Ab", True),
        (r"(?i:a)b", "AB", False),
        (r"(?P<n>a)b", "ab", True),
        (r"(?:a)+?b", "aab", True),
        (r"a$", "a", True),
        (r"a$", "a\n", False),
        (r"\x41\x{42}", "AB", True),
        (r"\.\*\[\]", ".*[]", True),
        (r"\bab\b", "ab", True),
        (r"a\z", "a", True),
    ],
)
def test_supported_patterns_mean_what_re2_means(pattern, text, matches):
    assert (compile_regex(pattern).fullmatch(text) is not None) == matches


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(?=a)", "look-around"),
        ("(?!a)b", "look-around"),
        ("(?<=a)b", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "back-references"),
        ("(?P=n)", "not supported"),
        ("a(?i)b", "only supported at the start"),
        ("(?x)a", "not supported"),
        ("(?a)a", "not supported"),
        ("(?>a)", "not supported"),
        ("(?#c)", "not supported"),
        ("(?(1)a)", "not supported"),
        ("a++", "follows a repeat"),
        ("a**", "follows a repeat"),
        ("a{2}{3}", "follows a repeat"),
        ("a{1001}", "above 1000"),
        (r"\Z", r"escape \Z"),
        (r"\p{Greek}", "Unicode classes"),
        (r"\Qa\E", r"escape \Q"),
        (r"[\b]", r"escape \b"),
        ("[[:greek:]]", "greek"),
        ("[a", "not closed"),
        ("(a", "unterminated"),
        ("a)", "unbalanced"),
        ("*a", "nothing to repeat"),
        ("a\\", "ends with a backslash"),
        (r"\x4", "hexadecimal"),
        ("[b-a]", "bad character range"),
    ],
)
def test_what_re2_or_python_would_not_take_is_refused(pattern, why):
    with pytest.raises(RegexError) as caught:
        compile_regex(pattern)
    assert why in str(caught.value)
    assert repr(pattern) in str(caught.value)
