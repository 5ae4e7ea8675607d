from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.model import series
from gpuwatch.promql import templates
from gpuwatch.promql.goformat import (
    general,
    humanize,
    humanize1024,
    humanize_duration,
    humanize_percentage,
    humanize_timestamp,
    sprintf,
)
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.promql.values import PromQLError, Vector
from gpuwatch.store import Store

LABELS = {"host": "node-07", "server": "127.0.0.1:8000", "uuid": ""}


@pytest.fixture
def querier():
    store = Store()
    store.append("t", 1000, (series("up", i="a"), series("up", i="b"), series("limit")), [1.0, 0.0, 1536.0])
    return LocalQuerier(store)


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("", ""),
        ("no action", "no action"),
        ("{{ $labels.host }} is down", "node-07 is down"),
        ("{{$labels.host}}/{{ .Labels.server }}", "node-07/127.0.0.1:8000"),
        ("[{{ $labels.none }}]", "[]"),
        ("{{ $value }} {{ .Value }}", "1.2345675e+06 1.2345675e+06"),
        ("{{ $value | humanize }}", "1.235M"),
        ('{{ printf "%.1f of %s, %d%%" $value $labels.host 95 }}', "1234567.5 of node-07, 95%"),
        ('{{ $value | printf "%.0f" }}', "1234568"),
        ("a {{- 1 -}} b", "a1b"),
        ('a {{/* a "comment with }} in it */}}b', "a b"),
        ("a {{/* nothing */}}b", "a b"),
        ("a {{- /* nothing */ -}} b", "ab"),
        ('{{ "}}" }}', "}}"),
        (r'{{ "a\tb\"c\u00e9" }}', 'a\tb"cé'),
        ("{{ `a\\n` }}", "a\\n"),
        ("{{ if gt $value 1e6 }}big{{ else }}small{{ end }}", "big"),
        ('{{ if eq $labels.host "x" "y" }}1{{ else if eq $labels.host "node-07" }}2{{ else }}3{{ end }}', "2"),
        ("{{ if $labels.uuid }}gpu{{ end }}.", "."),
        ("{{ if and $labels.host (not $labels.uuid) }}yes{{ end }}", "yes"),
        ('{{ or $labels.uuid "unknown" }}', "unknown"),
        ('{{ query "up" | first | label "i" }}', "a"),
        ('{{ query "limit" | first | value | humanize1024 }}', "1.5ki"),
        ('{{ (query "limit" | first).Value }}', "1536"),
        ('{{ with query "limit > 1e6" }}{{ . | first | value }}{{ else }}none{{ end }}', "none"),
        ('{{ with query "limit" }}{{ . | first | value }}{{ end }}', "1536"),
        ('{{ with $x := query "limit" }}{{ len $x }}{{ end }}', "1"),
        ('{{ range query "up" }}{{ .Labels.i }}={{ .Value }};{{ end }}', "a=1;b=0;"),
        ('{{ range $n, $s := query "up" }}{{ $n }}{{ $s.Labels.i }}{{ end }}', "0a1b"),
        ('{{ range query "none" }}x{{ else }}nothing{{ end }}', "nothing"),
        ('{{ range sortByLabel "i" (query "sort_desc(up)") }}{{ .Labels.i }}{{ end }}', "ab"),
        ('{{ query (printf "up{i=%q}" "b") | first | value }}', "0"),
        ('{{ $x := "a" }}{{ if true }}{{ $x = "b" }}{{ end }}{{ $x }}', "b"),
        ('{{ $x := "a" }}{{ if true }}{{ $x := "b" }}{{ $x }}{{ end }}{{ $x }}', "ba"),
        ('{{ with "inner" }}{{ . }} {{ $.Labels.host }}{{ end }}', "inner node-07"),
        (
            "{{ $labels.host | toUpper }} {{ `RED` | toLower }} {{ title `two-part wordS` }}",
            "NODE-07 red Two-Part WordS",
        ),
        ('{{ reReplaceAll "(\\\\w+)-(\\\\d+)" "$2.$1" $labels.host }}', "07.node"),
        ('{{ match "^node" $labels.host }}', "true"),
        ('{{ index $labels "host" }}', "node-07"),
        ("{{ print 1 2 `a` 3 }}", "1 2a3"),
        ("{{ $externalLabels.region }}", "eu"),
        ("{{ $externalURL }} {{ .ExternalURL }} {{ externalURL | toUpper }}", "http://p:9/x http://p:9/x HTTP://P:9/X"),
        ("{{ humanizePercentage 0.123456 }} {{ humanizeDuration 3661 }}", "12.35% 1h 1m 1s"),
        ("{{ true }} {{ -1.5 }} {{ 0x10 }}", "true -1.5 16"),
    ],
)
def test_a_template_renders_as_in_prometheus(text, rendered, querier):
    template = templates.parse(text)
    shown = template.render(LABELS, 1234567.5, querier, 1000, {"region": "eu"}, external_url="http://p:9/x")
    assert shown == rendered


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{{ $value", "not closed with }}"),
        ("{{ }}", "an action is empty"),
        ("{{ nosuch $value }}", "nosuch is not supported"),
        ("{{ call 1 }}", "call needs a function as a value"),
        ("{{ $x }}", "$x is not defined"),
        ("{{ $externalURL.host }}", "$externalURL.host has too many fields"),
        ("{{ if true }}{{ $x := 1 }}{{ end }}{{ $x }}", "$x is not defined"),
        ("{{ $x = 1 }}", "$x is not defined"),
        ("{{ $labels := 1 }}", "cannot be set"),
        ("{{ $labels.a.b }}", "too many fields"),
        ("{{ $value.a }}", "too many fields"),
        ("{{ .labels.host }}", ".labels does not exist"),
        ("{{ if $value }}", "not closed with {{ end }}"),
        ("{{ end }}", "without a beginning"),
        ("{{/* open }}", "a comment is not closed"),
        ("{{/* */ 1 }}", "a comment is not closed"),
        ("{{ else }}", "without a beginning"),
        ("{{ if 1 }}{{ else }}{{ else }}{{ end }}", "twice"),
        ("{{ humanize }}", "takes 1 argument(s), not 0"),
        ("{{ humanize 1 2 }}", "takes 1 argument(s), not 2"),
        ("{{ 1 | label }}", "takes 2 argument(s), not 1"),
        ("{{ $value 1 }}", "only functions take arguments"),
        ("{{ 1 | $value }}", "only functions take arguments"),
        ("{{ (1 }}", "ends too early"),
        ("{{ 1) }}", "unexpected ')'"),
        ("{{ humanize humanize 1 }}", "needs parentheses"),
        ("{{ # }}", "unexpected '#'"),
        ('{{ "\\q" }}', "unknown escape"),
        ('{{ template "x" }}', "the template 'x' is not defined"),
        ("{{ template x }}", "needs a name in quotes"),
        ("{{ define x }}{{ end }}", "needs a name in quotes"),
        ('{{ define "x" 1 }}{{ end }}', "unexpected '1'"),
        ('{{ define "x" }}', "define }} is not closed"),
        ('{{ define "x" }}{{ else }}{{ end }}', "define }} is not closed"),
        ('{{ if true }}{{ define "x" }}{{ end }}{{ end }}', "only allowed outside other blocks"),
        ('{{ define "x" }}{{ define "y" }}{{ end }}{{ end }}', "only allowed outside other blocks"),
        ('{{ define "x" }}{{ $labels.host }}{{ end }}', "$labels is not defined"),
        ('{{ $y := 1 }}{{ define "x" }}{{ $y }}{{ end }}', "$y is not defined"),
        ('{{ define "x" }}a{{ end }}{{ define "x" }}b{{ end }}', "'x' is defined twice"),
        ('{{ block "x" }}{{ end }}', "needs a value"),
        ('{{ range $labels }}{{ block "x" . }}{{ break }}{{ end }}{{ end }}', "break }} outside {{ range }}"),
        ("{{ break }}", "break }} outside {{ range }}"),
        ("{{ range $labels }}{{ else }}{{ continue }}{{ end }}", "continue }} outside {{ range }}"),
        ("{{ range $labels }}{{ break 1 }}{{ end }}", "unexpected '1'"),
        ("{{ if $x, $y := 1 }}{{ end }}", "declares too many variables"),
        ("{{ 1 | break }}", "break }} is not allowed here"),
        ("{{ /* c */ }}", "unexpected '/'"),
        ("{{-  /* c */ -}}", "unexpected '/'"),
        ("{{/* c */ }}", "must follow its */ at once"),
        ("{{ print `a``b` }}", "a blank is missing"),
        ("{{ print(1) }}", "a blank is missing"),
        ("{{ 1.a }}", "a blank is missing"),
        ("{{ 08 }}", "is not a number"),
        ("{{ 1__0 }}", "is not a number"),
        ("{{ 9223372036854775808 }}", "more than 64 bits"),
        ("{{ 'ab' }}", "not one character"),
        ("{{ nil }}", "nil cannot be shown"),
        ('{{ $labels.host "x" }}', "only functions take arguments"),
        ("{{ query `up +` }}", "invalid promql query"),
        ("{{ query 5 }}", "query needs a text"),
        ("{{ if 1 }}" * 40 + "{{ end }}" * 40, "nested more than"),
    ],
)
def test_a_malformed_template_is_refused_when_it_is_loaded(text, why):
    with pytest.raises(PromQLError) as caught:
        templates.parse(text)
    assert why in str(caught.value)
    assert str(caught.value).startswith("template ")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{{ query `none` | first | value }}", "the query gave nothing"),
        ("{{ query `up` }}", "cannot be printed"),
        ("{{ $value | value }}", "a sample is needed"),
        ("{{ $labels.host | humanize }}", "humanize"),
        ("{{ toUpper $value }}", "is not a text"),
        ("{{ gt $value 1 }}", "different types"),
        ("{{ range $labels.host }}{{ end }}", "range needs"),
        ('{{ query (printf "up{" ) }}', "up{"),
        ("{{ `up` | printf `%s +` | query }}", "invalid"),
        ("{{ with query `up` }}{{ .Foo }}{{ end }}", "has no field Foo"),
        ("{{ .}}", "cannot be printed"),
    ],
)
def test_what_goes_wrong_while_rendering_is_an_error(text, why, querier):
    template = templates.parse(text)
    with pytest.raises(PromQLError) as caught:
        template.render(LABELS, 1.0, querier, 1000)
    assert why in str(caught.value)


def test_the_value_of_a_label_is_never_read_as_a_template():
    template = templates.parse("{{ $labels.x }}")
    assert template.render({"x": "{{ $value }}"}, 1.0) == "{{ $value }}"


def test_labels_may_come_as_sorted_pairs():
    assert templates.parse("{{ $labels.i }}").render(series("m", i="7"), 1.0) == "7"


def test_a_query_needs_somebody_who_answers():
    with pytest.raises(PromQLError, match="cannot be answered here"):
        templates.parse("{{ query `up` }}").render({}, 1.0)


def test_a_query_is_asked_at_the_time_of_the_evaluation():
    asked = []

    class Recorder:
        def instant(self, expr, time):
            asked.append((expr, time))
            return Vector((), np.empty(0))

    templates.parse("{{ with query `up` }}{{ end }}").render({}, 1.0, Recorder(), 4321)
    assert asked == [("up", 4321)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (-3.25, "-3.25"),
        (0.1, "0.1"),
        (123456.0, "123456"),
        (1000000.0, "1e+06"),
        (1000022.0, "1.000022e+06"),
        (1234567.5, "1.2345675e+06"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (0.000012345, "1.2345e-05"),
        (1e21, "1e+21"),
        (1e100, "1e+100"),
        (5e-324, "5e-324"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
    ],
)
def test_a_bare_number_prints_as_in_go(value, text):
    assert general(value) == text


@pytest.mark.parametrize(
    ("template", "args", "text"),
    [
        ("%v %v %v", ["a", 1, 2.5], "a 1 2.5"),
        ("%5.1f|%-6.2f|%+d|%05d", [3.14159, 2.0, 7, 42], "  3.1|2.00  |+7|00042"),
        ("%f %e %g %.3g", [1.5, 12345.678, 1e7, 1234.5], "1.500000 1.234568e+04 1e+07 1.23e+03"),
        ("%s %q %x", ["a", 'b"c', "hi"], 'a "b\\"c" 6869'),
        ("%t %%", [True], "true %"),
        ("%x %X %o %b", [255, 255, 8, 5], "ff FF 10 101"),
        ("%6s|%-6s|%.2s", ["ab", "ab", "abc"], "    ab|ab    |ab"),
        ("%.1f", [math.inf], "+Inf"),
        ("%d", [2.5], "%!d(float64=2.5)"),
        ("%s", [2.5], "%!s(float64=2.5)"),
        ("%f", ["a"], "%!f(string=a)"),
        ("%d %d", [1], "1 %!d(MISSING)"),
        ("%d", [1, "x"], "1%!(EXTRA string=x)"),
        ("100%", [], "100%!(NOVERB)"),
    ],
)
def test_printf_formats_as_go_does(template, args, text):
    assert sprintf(template, args) == text


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (humanize, 0.0, "0"),
        (humanize, 1234.0, "1.234k"),
        (humanize, 999.0, "999"),
        (humanize, 80e9, "80G"),
        (humanize, -1500.0, "-1.5k"),
        (humanize, 0.0123, "12.3m"),
        (humanize, 1e-7, "100n"),
        (humanize, 1e30, "1e+06Y"),
        (humanize, math.nan, "NaN"),
        (humanize, -math.inf, "-Inf"),
        (humanize1024, 0.5, "0.5"),
        (humanize1024, 1.0, "1"),
        (humanize1024, 1536.0, "1.5ki"),
        (humanize1024, 80.0 * 2**30, "80Gi"),
        (humanize1024, -2048.0, "-2ki"),
        (humanize1024, math.inf, "+Inf"),
        (humanize_percentage, 0.97, "97%"),
        (humanize_percentage, 1.23456, "123.5%"),
        (humanize_percentage, math.nan, "NaN%"),
        (humanize_duration, 0.0, "0s"),
        (humanize_duration, 1.0, "1s"),
        (humanize_duration, 59.5, "59.5s"),
        (humanize_duration, 60.0, "1m 0s"),
        (humanize_duration, 3600.0, "1h 0m 0s"),
        (humanize_duration, 90061.0, "1d 1h 1m 1s"),
        (humanize_duration, -90.0, "-1m 30s"),
        (humanize_duration, 0.0123, "12.3ms"),
        (humanize_duration, -0.5, "-500ms"),
        (humanize_duration, math.inf, "+Inf"),
        (humanize_timestamp, 0.0, "1970-01-01 00:00:00 +0000 UTC"),
        (humanize_timestamp, 951831000.5, "2000-02-29 13:30:00.5 +0000 UTC"),
        (humanize_timestamp, 1.23456, "1970-01-01 00:00:01.234 +0000 UTC"),
        (humanize_timestamp, -1.23456, "1969-12-31 23:59:58.766 +0000 UTC"),
        (humanize_timestamp, math.nan, "NaN"),
    ],
)
def test_numbers_are_humanised_as_prometheus_does(function, value, text):
    assert function(value) == text


PARTS = re.findall(
    r"\S+",
    r"""{{ }} {{- -}} if else end range with $value $labels.host $x := = | ( ) . .Labels.host .Value 1 2.5 true nil
    `up` 'a' "b" query first value label humanize printf len eq gt and not /* */ , text {{end}} {{else}} index print
    define template block break continue {{break}} args slice toTime stripDomain `x` .Format .arg0 call -1 0x1F 'c'""",
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PARTS), st.text(max_size=3)), max_size=16))
def test_any_text_is_either_rendered_or_refused(parts):
    store = Store()
    store.append("t", 1000, (series("up", i="a"),), [1.0])
    try:
        text = templates.parse(" ".join(parts)).render(LABELS, 2.5, LocalQuerier(store), 1000)
    except PromQLError:
        return
    assert isinstance(text, str)
