import pytest

from gpuwatch.engines.catalog import ENGINES, SAMPLES, coverage, detect, needs
from gpuwatch.engines.metric import read_table
from gpuwatch.engines.version import Span, parse_span, parse_version
from gpuwatch.series import METRICS
from gpuwatch.sources.engine.exposition import ExpositionParser


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.32.0", (0, 32, 0)), ("0.32.0+cpu", (0, 32, 0)), ("v0.6.4", (0, 6, 4)), ("0.4.6.post5", (0, 4, 6)),
        ("0.11.0rc2", (0, 11, 0)), ("0.11.1.dev12+g1a2b3c", (0, 11, 1)), ("1.0", (1, 0, 0)),
        ("0.1.dev1+gabc", None), ("dev", None), ("", None),
    ],
)  # fmt: skip
def test_versions_are_read_with_any_suffix(text, version):
    assert parse_version(text) == version


def test_spans_include_both_ends():
    span = parse_span("0.9.2-0.10.2")
    assert [v in span for v in ((0, 9, 1), (0, 9, 2), (0, 10, 0), (0, 10, 2), (0, 10, 3))] == [0, 1, 1, 1, 0]
    assert (9, 0, 0) in parse_span("0.16-")
    assert str(span) == "0.9.2 to 0.10.2"
    assert str(Span((0, 16, 0))) == "0.16.0 on"


@pytest.mark.parametrize("text", ["0.9", "", "-0.9", "a-b", "0.9-b"])
def test_a_span_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="not a version range"):
        parse_span(text)


def test_an_unknown_option_of_a_table_is_refused():
    with pytest.raises(ValueError, match="unknown option 'wrong'"):
        read_table("a | requests_running | 0.3-0.4 | wrong |")


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_tables_name_series_of_the_vocabulary_with_labels_it_has(kind):
    for row in ENGINES[kind].table:
        if not row.target.startswith("~"):
            metric = METRICS[row.target]
            extra = {ours for _, ours in row.rename} | {ours for ours, _ in row.const}
            assert extra <= set(metric.labels), row.upstream
            assert row.kind == metric.kind
    assert not ENGINES[kind].known & {row.upstream for row in ENGINES[kind].table}


def test_no_sample_name_is_claimed_by_a_counter_s_short_form_and_another_metric():
    assert {row.upstream for row, _ in SAMPLES["vllm"]["prompt_tokens"]} == {"prompt_tokens_total"}
    assert "iteration_tokens" not in SAMPLES["vllm"]  # its full name ends in _total and it is a histogram


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (
            ["vllm:num_requests_running", "vllm:gpu_cache_usage_perc", "vllm:num_requests_swapped"],
            "vLLM V0, 0.2.7 or newer",
        ),
        (["vllm:num_requests_running", "vllm:gpu_prefix_cache_queries_total"], "vLLM V1, 0.7.3 or newer"),
        (["ray_vllm_kv_cache_usage_perc", "ray_vllm_prefix_cache_hits_total"], "vLLM V1, 0.9.2 or newer"),
        (["vllm:admission_rejections_total", "vllm:prefix_cache_queries_total"], "vLLM V1, 0.32.0 or newer"),
        (["sglang:token_usage"], "SGLang, 0.3.6 or newer"),
        (["sglang_token_usage", "sglang_num_retracted_requests_total"], "SGLang, 0.5.7 or newer"),
    ],
)
def test_the_engine_and_its_oldest_version_are_told_from_names(names, text):
    assert str(detect(names)) == text


@pytest.mark.parametrize(
    "names", [[], ["process_cpu_seconds_total", "http_requests_total"], ["vllm:never_heard_of_it"]]
)
def test_a_page_without_a_known_metric_is_no_engine(names):
    assert detect(names) is None


def test_a_page_of_both_engines_is_the_preferred_one_or_the_one_with_more():
    names = ["vllm:num_requests_running", "sglang:token_usage", "sglang:num_running_reqs"]
    assert detect(names).kind == "sglang"
    assert detect(names, "vllm").kind == "vllm"


@pytest.mark.parametrize(
    ("page", "version"), [("vllm-0.10.2-storm.txt", "0.10.2"), ("vllm-0.31.0-storm.txt", "0.31.0"),
                          ("vllm-0.32.0-storm.txt", "0.32.0"), ("vllm-0.32.0-two-ranks.txt", "0.32.0")],
)  # fmt: skip
def test_real_pages_have_everything_the_table_expects_of_their_version(page, version, fixture_page):
    found = coverage(ExpositionParser().parse(fixture_page(page)).layout.names(), "vllm", version)
    assert found.missing == ()
    assert found.unknown == ()
    assert len(found.present) >= 23


def test_a_metric_of_a_newer_version_is_reported_as_unknown_and_a_lost_one_as_missing(fixture_page):
    names = ExpositionParser().parse(fixture_page("vllm-0.32.0-storm.txt")).layout.names()
    names = {name for name in names if "num_preemptions" not in name} | {"vllm:brand_new_thing"}
    found = coverage(names, "vllm", "0.32.0")
    assert found.missing == ("num_preemptions_total",)
    assert found.unknown == ("brand_new_thing",)
    assert str(found) == "vLLM 0.32.0: 26 of 27 known metrics present; missing: num_preemptions_total"


def test_without_a_version_the_names_decide_what_is_expected(fixture_page):
    names = ExpositionParser().parse(fixture_page("vllm-0.10.2-storm.txt")).layout.names()
    assert str(coverage(names, "vllm")) == "vLLM 0.10.2 or newer: 23 of 23 known metrics present"


def test_what_a_series_needs_is_said_for_each_engine():
    assert needs("gpuwatch_engine_prompt_tokens_computed_total") == "vLLM V1 0.16.0 on; SGLang 0.5.7 on"
