import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gpuwatch.model import NAME, series
from gpuwatch.sources.engine.exposition import ExpositionParser

PAGES = ["vllm-0.10.2-storm.txt", "vllm-0.31.0-storm.txt", "vllm-0.32.0-two-ranks.txt"]


def ours(page):
    return list(zip(page.layout.keys, page.values.tolist(), strict=True))


def client(text):
    """What prometheus_client reads, with its samples in page order per family; empty labels are left out as ours."""
    return [
        (series(sample.name, **sample.labels), float(sample.value))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def same(mine, theirs):
    def shape(samples):
        return sorted((key, "NaN" if math.isnan(value) else repr(value)) for key, value in samples)

    assert shape(mine) == shape(theirs)


@pytest.mark.parametrize("name", PAGES)
def test_reads_real_pages_as_prometheus_client_does(name, fixture_page):
    body = fixture_page(name)
    page = ExpositionParser().parse(body)
    assert page.unknown == 0
    same(ours(page), client(body.decode()))


def test_second_parse_returns_the_same_layout_object_and_new_values(fixture_page):
    parser = ExpositionParser()
    body = fixture_page("vllm-0.31.0-storm.txt")
    first = parser.parse(body)
    running = series("vllm:num_requests_running", engine="0", model_name="tiny")
    row = first.layout.keys.index(running)
    second = parser.parse(body.replace(b'num_requests_running{engine="0",model_name="tiny"} 3.0', b"X 1"))
    assert second.layout is not first.layout
    third = parser.parse(body.replace(b'num_requests_running{engine="0",model_name="tiny"} 3.0',
                                      b'num_requests_running{engine="0",model_name="tiny"} 5.0'))  # fmt: skip
    fourth = parser.parse(body)
    assert fourth.layout is third.layout
    assert (first.values[row], third.values[row], fourth.values[row]) == (3.0, 5.0, 3.0)


def test_reads_escapes_braces_commas_and_spaces_in_label_values():
    body = rb'x{a="q\"q",b="back\\slash",c="new\nline",d="{b, r=\"a\"} ce",e="a = b, c"} 7' + b"\n"
    (sample,) = ours(ExpositionParser().parse(body))
    labels = {"a": 'q"q', "b": "back\\slash", "c": "new\nline", "d": '{b, r="a"} ce', "e": "a = b, c"}
    assert sample == (series("x", **labels), 7.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1.0), ("1e3", 1000.0), ("-2.5", -2.5), ("+Inf", math.inf), ("-Inf", -math.inf), ("1.5e-07", 1.5e-07)],
)
def test_reads_every_form_of_number(text, value):
    parser = ExpositionParser()
    body = f'x{{a="1"}} {text}\n'.encode()
    assert [ours(parser.parse(body)), ours(parser.parse(body))] == [[(series("x", a="1"), value)]] * 2


def test_reads_nan_as_a_value():
    assert np.isnan(ExpositionParser().parse(b"x NaN\n").values).tolist() == [True]


def test_timestamps_are_dropped_and_do_not_make_new_series():
    parser = ExpositionParser()
    first = parser.parse(b'x{a="1"} 5 1700000000000\ny 6 1700000000000\n')
    second = parser.parse(b'x{a="1"} 7 1700000001000\ny 8 1700000001000\n')
    assert ours(first) == [(series("x", a="1"), 5.0), (series("y"), 6.0)]
    assert second.layout is first.layout
    assert second.values.tolist() == [7.0, 8.0]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_reads_lines_with_blank_space_tabs_and_carriage_returns(ending):
    lines = ["", "  ", "\t# HELP x text", "# TYPE x gauge", ' x{ a = "1" , b="2", }\t3 ', "y\t4", "z{} 5", "  w   6"]
    page = ExpositionParser().parse((ending.join(lines) + ending).encode())
    assert ours(page) == [(series("x", a="1", b="2"), 3.0), (series("y"), 4.0), (series("z"), 5.0), (series("w"), 6.0)]
    assert page.unknown == 0


def test_series_with_crlf_are_the_same_as_without():
    lines = ['x{a="1"} 5', "y 6"]
    unix, dos = ("\n".join(lines) + "\n").encode(), ("\r\n".join(lines) + "\r\n").encode()
    parser = ExpositionParser()
    first = parser.parse(unix)
    assert parser.parse(dos).layout is first.layout


@pytest.mark.parametrize(
    "line",
    [
        "nothing", "x", "x{", 'x{a="1"', 'x{a="1"}', "x{a=1} 2", 'x{a="1" b="2"} 3', 'x{a="1",a="2"} 3', "x one",
        "x 1 2 3", "1x 2", '{a="1"} 2', "x 1 soon", 'x{"a"} 1', "\x00\x01 \x02", '{"x" a="1"} 2', 'x{__name__="y"} 1',
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_counted_and_the_others_are_read(line):
    parser = ExpositionParser()
    for _ in range(2):
        page = parser.parse(f"a 1\n{line}\nb 2\n".encode())
        assert ours(page) == [(series("a"), 1.0), (series("b"), 2.0)]
        assert page.unknown == 1


def test_a_number_that_becomes_unreadable_is_counted_and_recovers():
    parser = ExpositionParser()
    good = parser.parse(b"a 1\nb 2\n")
    assert parser.parse(b"a 1\nb two\n").unknown == 1
    assert ours(parser.parse(b"a 1\nb 2\n")) == ours(good)


def test_label_values_that_are_not_utf8_are_read_with_replacement():
    assert ours(ExpositionParser().parse(b'x{a="\xff"} 1\n')) == [(series("x", a="\ufffd"), 1.0)]


def test_quoted_utf8_names_of_prometheus_3_are_read():
    page = ExpositionParser().parse(b'{"my.metric",a="1"} 2\n{"other"} 3\nx{"la.bel"="v"} 4\n')
    want = [(((NAME, "my.metric"), ("a", "1")), 2.0), (((NAME, "other"),), 3.0), (((NAME, "x"), ("la.bel", "v")), 4.0)]
    assert ours(page) == want


def test_exemplars_of_openmetrics_are_ignored():
    page = ExpositionParser().parse(b'x_bucket{le="1"} 5 # {trace="a"} 0.5 1700000000\nx_total 3 # {t="b"} 1\n# EOF\n')
    assert ours(page) == [(series("x_bucket", le="1"), 5.0), (series("x_total"), 3.0)]


def test_names_include_declared_families_without_series():
    page = ExpositionParser().parse(b"# TYPE later histogram\n# TYPE x gauge\nx 1\n")
    assert page.layout.names() == {"later", "x"}
    assert page.layout.types == {"later": "histogram", "x": "gauge"}


def test_a_series_given_twice_is_there_twice_as_for_prometheus_client():
    body = b"x 1\nx 2\n"
    assert ours(ExpositionParser().parse(body)) == client(body.decode())


@pytest.mark.parametrize(
    "body", [b"", b"\n\n\n", b"\x00" * 1000, b"<html>\n</html>\n", b"{" * 5000, b'x{a="' + b"\\" * 9999]
)
def test_garbage_gives_no_series_and_no_exception(body):
    assert ours(ExpositionParser().parse(body)) == []


label_names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,6}", fullmatch=True).filter(
    lambda name: not name.startswith("__")
)
label_values = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]) | st.sampled_from('\\"\n{}, ='), max_size=12
)
names = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,10}", fullmatch=True)
numbers = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(10**9), 10**9).map(float)


def escape(text):
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def go_number(value):
    return {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN" if math.isnan(value) else repr(value))


@st.composite
def lines(draw):
    labels = draw(st.dictionaries(label_names, label_values, max_size=4))
    pairs = ",".join(f'{key}="{escape(value)}"' for key, value in labels.items())
    text = draw(names) + (f"{{{pairs}}}" if labels or draw(st.booleans()) else "")
    stamp = draw(st.sampled_from(["", "", "", " 1700000000000"]))
    return f"{text} {go_number(draw(numbers))}{stamp}"


@settings(max_examples=150, deadline=None)
@given(st.lists(lines(), max_size=8), st.integers(0, 8))
def test_reads_generated_pages_as_prometheus_client_does(rows, again):
    text = "".join(row + "\n" for row in rows)
    parser = ExpositionParser()
    parser.parse("".join(row + "\n" for row in rows[:again]).encode())  # what was seen before must not matter
    for _ in range(2):
        page = parser.parse(text.encode())
        same(ours(page), client(text))
        assert page.unknown == 0


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(lines(), numbers, st.sampled_from(["", "# a remark"])), max_size=8), st.integers(0, 255))
def test_pages_on_which_some_numbers_and_remarks_change_are_read_as_prometheus_client_does(rows, changed):
    parser = ExpositionParser()
    before = "".join(f"{row}\n{remark}\n" for row, _, remark in rows)
    kept = parser.parse(before.encode())
    values = kept.values.tolist()
    text = ""
    for at, (row, number, remark) in enumerate(rows):
        moved = changed >> at & 1
        head = row.removesuffix(" 1700000000000").rpartition(" ")[0]
        text += (
            f"{head} {go_number(number)}" if moved else row
        ) + f"\n{remark + '!' if moved and remark else remark}\n"
    page = parser.parse(text.encode())
    same(ours(page), client(text))
    assert page.unknown == 0
    assert list(map(repr, kept.values.tolist())) == list(map(repr, values))


def test_a_declared_type_that_changes_is_seen():
    parser = ExpositionParser()
    assert parser.parse(b"# TYPE x gauge\nx 1\n").layout.types == {"x": "gauge"}
    assert parser.parse(b"# TYPE x count\nx 1\n").layout.types == {"x": "count"}


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4))
def test_damaged_pages_never_raise(noise, edits):
    body = bytearray(b'# TYPE x gauge\nx{a="1",b="two words"} 5\ny 6 1700000000000\n' + noise)
    for at, byte in edits:
        body[at % len(body)] = byte
    parser = ExpositionParser()
    for _ in range(2):
        page = parser.parse(bytes(body))
        assert len(page.layout.keys) == len(page.values)


def test_reads_what_prometheus_client_writes():
    registry = CollectorRegistry()
    Gauge("temperature", "It's \\ \n hot", ["place"], registry=registry).labels('a "b"\\\n{c}').set(1.5)
    Counter("events", "Events", registry=registry).inc(3)
    histogram = Histogram("latency_seconds", "Latency", buckets=(0.1, 1), registry=registry)
    histogram.observe(0.5)
    body = generate_latest(registry)
    same(ours(ExpositionParser().parse(body)), client(body.decode()))
