"""Several saved pages: an engine that stands still, replicas that are loaded unevenly, hits that are not counted."""

from __future__ import annotations

import os

import pytest

from gpuwatch.pipeline.postmortem import investigate
from tests.unit.diagnosis.incidents import NOW, no_recording

START = 1_780_000_000


def page(running=8, waiting=3, tokens=5000, pool=0.4, rank="0"):
    labels = f'{{engine="{rank}",model_name="m"}}'
    return (
        f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{labels} {running}\n"
        f"vllm:num_requests_waiting{labels} {waiting}\nvllm:kv_cache_usage_perc{labels} {pool}\n"
        f"vllm:prompt_tokens_total{labels} 70000\nvllm:generation_tokens_total{labels} {tokens}\n"
        f"vllm:num_preemptions_total{labels} 0\nvllm:prefix_cache_queries_total{labels} 10\n"
        f"vllm:prefix_cache_hits_total{labels} 1\n"
    )


def judged(folder, pages, seconds=60):
    paths = []
    for at, text in enumerate(pages):
        path = folder / f"page_{at}.txt"
        path.write_text(text)
        os.utime(path, (START + at * seconds, START + at * seconds))
        paths.append(str(path))
    return investigate(paths, "", NOW, no_recording)


def ids(result):
    return [finding.id for finding in result.findings]


def test_requests_that_run_without_a_token_for_minutes_are_a_hang(tmp_path):
    result = judged(tmp_path, [page(waiting=3), page(waiting=9), page(waiting=20)])
    (finding,) = [each for each in result.findings if each.id == "engine_stalled"]
    assert finding.severity == "critical"
    assert "stood still for 120 s on 3 pages: 8 requests run, 20 wait" in finding.cause
    assert finding.since == START * 1000


@pytest.mark.parametrize(
    "pages",
    [
        [page(waiting=3), page(waiting=9, tokens=5001), page(waiting=20, tokens=5002)],
        [page(running=0, waiting=0), page(running=0, waiting=1), page(running=0, waiting=0)],
        [page(waiting=3), page(waiting=9, pool=0.5), page(waiting=20, pool=0.6)],
        [page(waiting=3), page(waiting=9)],
    ],
    ids=["tokens", "idle", "a long prefill fills the pool", "two pages a minute apart"],
)
def test_an_engine_that_works_or_rests_or_was_seen_briefly_does_not_hang(tmp_path, pages):
    assert "engine_stalled" not in ids(judged(tmp_path, pages))


def test_an_engine_that_went_on_is_no_longer_critical(tmp_path):
    result = judged(tmp_path, [page(waiting=1), page(waiting=2), page(waiting=4), page(tokens=9000)])
    (finding,) = [each for each in result.findings if each.id == "engine_stalled"]
    assert finding.severity == "warning"
    assert finding.cause.endswith("It went on afterwards.")


def test_copies_of_one_page_are_no_hang_and_that_is_said(tmp_path):
    result = judged(tmp_path, [page(), page()], seconds=600)
    assert "engine_stalled" not in ids(result)
    assert any(each.id == "engine_stalled" and "saved twice" in each.missing for each in result.not_enough)


def test_pages_in_one_file_have_no_time_between_them(tmp_path):
    result = judged(tmp_path, [page(waiting=3) + page(waiting=9) + page(waiting=20)])
    assert "engine_stalled" not in ids(result)
    assert any(each.id == "engine_stalled" and "times at which" in each.missing for each in result.not_enough)
    moving = judged(tmp_path, [page(waiting=3) + page(waiting=9, tokens=6000)])
    assert not any(each.id == "engine_stalled" for each in moving.not_enough)


def test_a_queue_at_one_of_two_replicas_is_an_imbalance(tmp_path):
    uneven = page(running=200, waiting=90, tokens=1) + page(running=2, waiting=0, tokens=1, rank="1")
    assert "dp_imbalance" in ids(judged(tmp_path, [uneven]))
    even = page(running=200, waiting=90, tokens=1) + page(running=190, waiting=80, tokens=1, rank="1")
    assert "dp_imbalance" not in ids(judged(tmp_path, [even]))


SGLANG = (
    'sglang:num_running_reqs{model_name="m"} 4\nsglang:num_queue_reqs{model_name="m"} 0\n'
    'sglang:token_usage{model_name="m"} 0.3\nsglang:max_total_num_tokens{model_name="m"} 80000\n'
    'sglang:prompt_tokens_total{model_name="m"} 40000\nsglang:generation_tokens_total{model_name="m"} 9000\n'
)


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ('sglang:cache_hit_rate{model_name="m"} 0.4\n', False),
        ("", False),
        ('sglang:num_requests_total{model_name="m"} 60\nsglang:cache_hit_rate{model_name="m"} 0.0\n', True),
        ('sglang:cached_tokens_total{model_name="m",cache_source="total"} 900\n', False),
    ],
    ids=["a rate shows hits", "an old page counts none", "a new page without a hit", "counted"],
)
def test_a_counter_that_is_not_on_the_page_is_no_zero(tmp_path, more, found):
    result = judged(tmp_path, [SGLANG + more])
    assert ("prefix_cache_zero_hit" in ids(result)) is found


PYTHON = (
    "process_resident_memory_bytes 5e7\n# TYPE python_gc_collections_total counter\npython_gc_collections_total 3\n"
)


def test_a_page_of_another_program_is_no_engine_without_statistics(tmp_path):
    result = judged(tmp_path, [PYTHON + "shop_orders_total 4\n"])
    assert not result.findings
    assert any(each.id == "metrics_disabled" and "shop_orders" in each.missing for each in result.not_enough)
    assert ids(judged(tmp_path, [PYTHON])) == ["metrics_disabled"]
