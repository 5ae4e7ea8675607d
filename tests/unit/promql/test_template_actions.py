"""Functions and actions of templates; every rendered text is what promtool 2.42 gives for the template."""

from __future__ import annotations

import pytest

from gpuwatch.model import series
from gpuwatch.promql import templates
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.promql.values import PromQLError
from gpuwatch.store import Store

LABELS = {"host": "node-07", "instance": "gpu1.example.com:9400"}


@pytest.fixture
def querier():
    store = Store()
    store.append("t", 0, (series("up", i="a"), series("up", i="b"), series("limit")), [1.0, 0.0, 1536.0])
    return LocalQuerier(store)


def _rendered(text, querier):
    template = templates.parse(text)
    return template.render(LABELS, 1234567.5, querier, 0, {}, external_url="http://p:9/a%20b")


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("{{ stripPort $labels.instance }} {{ stripPort `[::1]:80` }}", "gpu1.example.com ::1"),
        ("{{ stripPort `::1` }} {{ stripPort `a:b:c` }} {{ stripPort `[a]b:1` }}", "::1 a:b:c [a]b:1"),
        ("[{{ stripPort `:1` }}] {{ stripPort `a:` }} {{ stripPort `[a:1` }}", "[] a [a:1"),
        ("{{ stripDomain $labels.instance }} {{ stripDomain `a.b.c` }}", "gpu1:9400 a"),
        ("{{ stripDomain `127.0.0.1:80` }} {{ stripDomain `[fe80::1]:9` }}", "127.0.0.1:80 [fe80::1]:9"),
        ("{{ stripDomain `01.2.3.4:5` }} {{ stripDomain `[a:b.c]:5` }}", "01:5 [a:b]:5"),
        (
            "{{ stripDomain `::ffff:1.2.3.4` }} {{ stripDomain `[fe80::1%eth0]:80` }}",
            "::ffff:1.2.3.4 [fe80::1%eth0]:80",
        ),
        ('{{ graphLink "up{a=\\"b c\\"} > 1~*" }}', "/graph?g0.expr=up%7Ba%3D%22b+c%22%7D+%3E+1~%2A&g0.tab=0"),
        ('{{ "up" | tableLink }}', "/graph?g0.expr=up&g0.tab=1"),
        ("{{ $value | toTime }}", "1970-01-15 06:56:07.5 +0000 UTC"),
        ('{{ (1.5 | toTime).Format "15:04:05.000" }} {{ (toTime 1.23456).Nanosecond }}', "00:00:01.500 234000000"),
        (
            (
                "{{ with toTime 1700000000 }}{{ .Year }} {{ .Month }} {{ .Day }} {{ .Weekday }} {{ .YearDay }} "
                '{{ .Unix }} {{ printf "%d %v %s" .Month .Month .Weekday }} {{ eq .Month 11 }} {{ .UTC }} '
                "{{ .IsZero }}{{ end }}"
            ),
            "2023 November 14 Tuesday 318 1700000000 11 November Tuesday true 2023-11-14 22:13:20 +0000 UTC false",
        ),
        (
            (
                "{{ (toTime 1700000000.1236).Format `2006-01-02T15:04:05.999Z07:00 _2006 2 Jan January Janx .000 ,000 "
                "05.0000 __2 Monday Mon MSTx pmPM 03 3 -07 -07:00:00 Z07` }}"
            ),
            (
                "2023-11-14T22:13:20.123Z _2023 14 Nov November Janx .123 ,123 "
                "20.1230 318 Tuesday Tue UTCx pmPM 10 10 +00 +00:00:00 Z"
            ),
        ),
        ("{{ (toTime 1704067201.5).Format `02/01/06 __2 _2 002 15h 3:4:5 pm` }}", "01/01/24   1  1 001 00h 12:0:1 am"),
        ("{{ (toTime 5).After (toTime 4) }} {{ (toTime 5).Unix | humanize }}", "true 5"),
        ('{{ "2006" | (toTime 0).Format }} {{ $t := toTime 7 }}{{ "05" | $t.Format }}', "1970 07"),
        ('{{ parseDuration "1h30m" }} {{ "90s" | parseDuration | humanizeDuration }}', "5400 1m 30s"),
        (
            '{{ with args 1 "b" }}{{ .arg0 }}{{ .arg1 }}[{{ .arg2 }}]{{ . }}{{ end }} {{ args }}',
            "1b[<no value>]map[arg0:1 arg1:b] map[]",
        ),
        ('{{ index (args 5) "arg0" }} {{ (args 1).arg0 }} {{ len (args 1 2) }}', "5 1 2"),
        ("{{ range $k, $v := args 7 8 }}{{ $k }}{{ $v }}{{ end }}", "arg07arg18"),
        ('{{ safeHtml "<a&b>" }} [{{ strvalue (query "up" | first) }}] {{ eq "a" (safeHtml "a") }}', "<a&b> [] true"),
        ("{{ html `<a href='x'>\"&` 1 2 }} {{ html nil }}", "&lt;a href=&#39;x&#39;&gt;&#34;&amp;1 2 &lt;no value&gt;"),
        ('{{ urlquery "a b/c&d~e*é" 5 }}', "a+b%2Fc%26d~e%2A%C3%A95"),
        (
            '{{ js "it\'s <b> \\"x\\" = & \\\\ é\\n\\u2028" }}',
            'it\\\'s \\u003Cb\\u003E \\"x\\" \\u003D \\u0026 \\\\ é\\u000A\\u2028',
        ),
        ('{{ slice "abcdef" 1 3 }} {{ slice "abc" 1 }} {{ slice "abc" }} {{ slice "héé" 1 3 }}', "bc bc abc é"),
        ('{{ len (slice (query "up") 1) }} {{ slice (query "up") 0 1 1 | first | value }}', "1 1"),
        ('{{ len "é" }} {{ index "abc" 1 }} {{ (index (query "up") 0).Value }}', "2 98 1"),
        ('{{ and false (query "none" | first) }} {{ or "x" (query "none" | first) }}', "false x"),
        ('{{ or "" 0 "z" "y" }} {{ "p" | or "" }} {{ "p" | and 1 }}', "z p p"),
        ("{{ print nil }} {{ printf \"%v %c\" nil 'a' }}", "<nil> <nil> a"),
        ("{{ 1_000 }} {{ 0b11 }} {{ 0o17 }} {{ 017 }} {{ 0x1F }} {{ 'a' }} {{ 0x1p4 }}", "1000 3 15 15 31 97 16"),
        ("{{ 1e3 }} {{ +5 }} {{ -0x10 }} {{ '\\n' }} {{ eq 0x10 16 }}", "1000 5 -16 10 true"),
        ("only text {{/* x */}}", "only text "),
        ("a {{- /* c */ -}} b", "ab"),
    ],
)
def test_a_function_gives_what_promtool_gives(text, rendered, querier):
    assert _rendered(text, querier) == rendered


def test_the_path_prefix_is_the_path_of_the_external_url(querier):
    assert _rendered("{{ pathPrefix }} {{ externalURL }}", querier) == "/a b http://p:9/a%20b"


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        (
            '{{ define "x" }}q{{ . }}{{ $ }}{{ end }}{{ template "x" }}|{{ template "x" 5 }}',
            "q<no value><no value>|q55",
        ),
        ('{{ template "y" .Labels }}{{ define "y" }}<{{ .host }}>{{ end }}', "<node-07>"),
        ('{{ template "x" (args 1 2) }}{{ define "x" }}{{ .arg0 }}+{{ .arg1 }}{{ end }}', "1+2"),
        ('{{ define "x" }}{{ .Foo }}{{ end }}{{ template "x" }}', "<no value>"),
        ('{{ define "x" }}  {{ end }}{{ define "x" }}real{{ end }}{{ template "x" }}', "real"),
        ('{{ define "x" }}real{{ end }}{{ define "x" }} {{ end }}{{ template "x" }}', "real"),
        ('{{ block "b" . }}x{{ .Value }}{{ end }}', "x1.2345675e+06"),
        ('{{ if true }}{{ block "b" $labels.host }}x{{ . }}{{ end }}{{ end }}', "xnode-07"),
        ('{{ block "a" "v" }}{{ block "b" . }}<{{ . }}>{{ end }}{{ end }}{{ template "b" "w" }}', "<v><w>"),
        ('{{ range query "up" }}{{ .Value }}{{ break }}{{ end }}', "1"),
        (
            '{{ range query "sort(up)" }}{{ if eq .Labels.i "b" }}{{ continue }}{{ end }}{{ .Labels.i }}{{ end }}',
            "a",
        ),
        ('{{ range query "up" }}{{ range query "up" }}{{ .Labels.i }}{{ break }}{{ end }}-{{ end }}', "a-a-"),
        (
            (
                '{{ define "r" }}{{ range . }}{{ if gt .Value 0.5 }}{{ .Labels.i }}{{ else }}{{ continue }}{{ end }}!'
                '{{ end }}{{ end }}{{ template "r" query "up" }}{{ template "r" query "limit" }}'
            ),
            "a!!",
        ),
        ('{{ $x := 1 }}{{ range query "up" }}{{ $x = .Value }}{{ break }}{{ end }}{{ $x }}', "1"),
        ('{{ if $x := query "none" }}a{{ else }}b{{ len $x }}{{ end }}', "b0"),
        ('{{ if $x := "" }}{{ else if $y := 2 }}[{{ $x }}]{{ $y }}{{ end }}', "[]2"),
        ('{{ with $x := "" }}a{{ else }}[{{ $x }}]{{ end }}', "[]"),
        ('{{ range $i, $x := query "none" }}a{{ else }}[{{ len $x }}]{{ end }}', "[0]"),
    ],
)
def test_an_action_does_what_promtool_does(text, rendered, querier):
    assert _rendered(text, querier) == rendered


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{{ toTime "x" }}', "toTime: "),
        ('{{ toTime "NaN" }}', "NaN or infinite"),
        ("{{ humanizeTimestamp 1e300 }}", "beyond the times"),
        ('{{ parseDuration "-1h" }}', "is not a duration"),
        ('{{ slice "abc" 1 5 }}', "index out of range: 5"),
        ('{{ slice "abc" -1 }}', "index out of range: -1"),
        ('{{ slice "abc" 2 1 }}', "must not fall"),
        ('{{ slice "abc" 0 1 2 }}', "three numbers"),
        ('{{ index (query "up") -1 }}', "index out of range: -1"),
        ('{{ index (query "up") 5 }}', "index out of range: 5"),
        ("{{ (toTime 5).Location }}", "a time has no Location here"),
        ("{{ (toTime 5).Format }}", "needs an argument"),
        ("{{ (toTime 5).Year 1 }}", "Year: "),
        ("{{ (args 1).arg0.x }}", "1 has no field x"),
        ('{{ define "x" }}{{ template "x" }}{{ end }}{{ template "x" }}', "more than 50 levels deep"),
        (
            (
                '{{ define "x" }}{{ if . }}{{ template "x" slice . 1 }}{{ template "x" slice . 1 }}{{ end }}{{ end }}'
                '{{ template "x" "0123456789012345678901234567890" }}'
            ),
            "more than 100,000 steps",
        ),
    ],
)
def test_what_fails_while_it_is_rendered_says_why(text, why, querier):
    template = templates.parse(text)
    with pytest.raises(PromQLError) as caught:
        template.render(LABELS, 1.0, querier, 0)
    assert why in str(caught.value)
