"""The prefix probe against caches whose behaviour is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.probes import prefix
from gpuwatch.probes.client import ProbeError
from gpuwatch.probes.prefix import PrefixOptions
from gpuwatch.probes.prefix_own import Parting, part
from gpuwatch.probes.prefix_prompts import Prompts, base_length, expected
from gpuwatch.probes.vocabulary import Vocabulary
from tests.unit.probes.scripted import PrefixCache, Scripted, running

QUICK = PrefixOptions(fill=0)


def table(result):
    return {row["case"]: row["cached_tokens"] for row in result.rows}


def outcomes(result):
    return {row["case"]: row["outcome"] for row in result.rows}


@pytest.mark.parametrize("told", [False, True], ids=["by the counters of the page", "by the usage"])
def test_a_cache_of_blocks_is_measured_case_by_case(told):
    script = Scripted(cache=PrefixCache(block=16), tells_cached=told, adapters=("fine-tune",))
    with running(script) as run:
        result = prefix.probe(run, QUICK)
    # By hand: 1,024 tokens are 64 blocks, the last token is always computed: 63 blocks, 1,008 tokens, are found.
    assert table(result) == {
        "first time": 0,
        "same prompt": 1008,
        "random tail": 1008,
        "random head": 0,
        "differs from 12.5 % on": 128,
        "differs from 25 % on": 256,
        "differs from 50 % on": 512,
        "differs from 75 % on": 768,
        "differs from 87.5 % on": 896,
        "shorter than a block, repeated": 0,
        "exactly two blocks, repeated": 16,
        "new salt": 0,
        "same salt": 1008,
        "another salt": 0,
        "LoRA adapter, first time": 0,
        "LoRA adapter, repeated": 1008,
        "8 new, at the same moment": 7 * 1008,
        "8 repeated, at the same moment": 8 * 1008,
        "after other prompts": None,
    }
    assert set(outcomes(result).values()) == {"as expected", "not tried"}
    assert result.fact("verdict") == "works"
    assert (result.fact("block_size_page"), result.fact("block_size_measured")) == (16, 16)
    assert result.fact("random_tail") >= 0.9
    assert result.fact("random_head") == 0.0
    assert result.complete
    assert not result.findings


def test_a_cache_that_is_exact_to_the_token_is_told_from_one_of_blocks():
    with running(Scripted(cache=PrefixCache(block=1, blocks=20_000))) as run:
        result = prefix.probe(run, QUICK)
    assert result.fact("block_size_measured") == 1
    assert table(result)["differs from 12.5 % on"] == 128
    assert table(result)["same prompt"] == 1023
    assert any("exact to the token" in sentence for sentence in result.conclusion)


@pytest.mark.parametrize("page", [1, 64])
def test_the_radix_cache_of_sglang_is_measured_by_its_own_counters(page):
    cache = PrefixCache(block=page, blocks=20_000)
    with running(Scripted(cache=cache, engine="sglang", version="0.5.23")) as run:
        result = prefix.probe(run, QUICK)
    assert result.server.engine == "sglang"
    assert result.fact("verdict") == "works"
    assert result.fact("block_size_measured") == page
    assert result.fact("random_head") == 0.0
    assert set(outcomes(result).values()) <= {"as expected", "not tried"}


def test_hits_that_come_in_larger_steps_than_the_page_says_are_measured():
    with running(Scripted(cache=PrefixCache(block=64, says=16))) as run:
        result = prefix.probe(run, QUICK)
    assert (result.fact("block_size_page"), result.fact("block_size_measured")) == (16, 64)
    assert any("blocks of 64 tokens; the page says 16" in sentence for sentence in result.conclusion)
    # 1,024 tokens are 16 blocks of 64, and the last token is computed: 960 are found, before and after it was measured.
    rows = {row["case"]: row for row in result.rows}
    assert [rows[case]["cached_tokens"] for case in ("same prompt", "same salt")] == [960, 960]
    assert "less" not in outcomes(result).values()
    assert not any("Less than whole blocks" in sentence for sentence in result.conclusion)


@pytest.mark.parametrize("real", [2096, 4096])
def test_blocks_longer_than_the_first_prompt_are_found_with_a_longer_one(real):
    cache = PrefixCache(block=real, says=16, blocks=4000)
    with running(Scripted(cache=cache, limit=32_768)) as run:
        result = prefix.probe(run, QUICK)
    found = table(result)
    assert (found["shorter prompt, same prompt"], found["shorter prompt, first time"]) == (0, 0)
    # 8,200 tokens hold 3 blocks of 2,096 and 2 of 4,096.
    assert found["same prompt"] == {2096: 6288, 4096: 8192}[real]
    assert result.fact("verdict") == "works"
    assert (result.fact("block_size_page"), result.fact("block_size_measured")) == (16, real)
    assert f"in blocks of {real:,} tokens; the page says 16" in " ".join(result.conclusion)
    assert not result.findings


def test_a_block_of_which_the_context_holds_only_one_is_not_called_the_size_of_all_hits():
    cache = PrefixCache(block=4096, says=16, blocks=4000)
    with running(Scripted(cache=cache, limit=6000)) as run:
        result = prefix.probe(run, QUICK)
    assert (result.fact("shortest_hit"), result.fact("block_size_measured")) == (4096, None)
    assert "would take a longer prompt" in " ".join(result.conclusion)


def test_the_longer_prompt_may_take_the_whole_pool_that_the_page_states():
    # The page says 199 usable blocks of 16: 3,184 tokens, a third of which is 1,061.
    cache = PrefixCache(block=2096, says=16, blocks=200)
    with running(Scripted(cache=cache, limit=32_768)) as run:
        result = prefix.probe(run, QUICK)
    assert table(result)["same prompt"] == 2096
    assert result.fact("verdict") == "works"


def test_blocks_longer_than_the_context_are_not_ruled_out():
    cache = PrefixCache(block=4096, says=16, blocks=4000)
    with running(Scripted(cache=cache, limit=3000)) as run:
        result = prefix.probe(run, QUICK)
    assert result.fact("verdict") == "never hits"
    assert "blocks longer than the 2,992 tokens sent" in result.findings[0].cause  # the context but for 8 tokens


def test_an_answer_that_does_not_come_is_called_what_it_is():
    late = []

    def fails(prompt):
        late.append(prompt)
        return 500 if len(late) > 4 else None

    script = Scripted(cache=PrefixCache())
    with running(script) as run:
        script.fails = fails
        result = prefix.probe(run, QUICK)
    assert {"failed"} == {row["outcome"] for row in result.rows if "HTTP 500" in row["detail"]}
    assert not any("does not take cache_salt" in sentence for sentence in result.conclusion)


def test_a_prompt_is_pushed_out_by_about_a_pool_of_others():
    cache = PrefixCache(block=16, blocks=400)  # 399 usable blocks: 6,384 tokens
    with running(Scripted(cache=cache)) as run:
        result = prefix.probe(run, PrefixOptions(fill=10_000))
    rows = [row for row in result.rows if row["case"].startswith("after")]
    ages = [int(row["case"].split()[1].replace(",", "")) for row in rows]
    assert ages == sorted(ages)
    assert len(ages) == 5
    # The two youngest are safe, and what is as old as the pool is gone.
    assert [bool(row["cached_tokens"]) for row in rows[:2]] == [True, True]
    assert [row["cached_tokens"] for row in rows if int(row["case"].split()[1].replace(",", "")) >= 6384] == [0, 0]
    assert "less" not in outcomes(result).values()
    assert "more" not in outcomes(result).values()
    assert any("the pool holds 6,384" in sentence for sentence in result.conclusion)


def test_filling_a_pool_that_is_too_large_is_left_out_and_the_option_is_named():
    with running(Scripted(cache=PrefixCache(block=16, blocks=100_000))) as run:
        result = prefix.probe(run, PrefixOptions())
    row = next(row for row in result.rows if row["case"] == "after other prompts")
    assert row["outcome"] == "not tried"
    assert row["detail"] == "1,999,980 tokens would have to be sent: --fill 1999980"  # 99,999 blocks of 16, times 1.25


def test_a_cache_that_is_off_is_said_to_be_off():
    with running(Scripted(cache=PrefixCache(enabled=False))) as run:
        result = prefix.probe(run, QUICK)
    assert result.fact("verdict") == "never hits"
    (finding,) = result.findings
    assert (finding.id, finding.severity) == ("prefix_cache_zero_hit", "info")
    assert "switched off" in finding.cause
    assert finding.advice[0].flag == "--enable-prefix-caching"
    assert [row["case"] for row in result.rows] == ["first time", "same prompt"]


def test_a_cache_that_is_on_and_never_hits_names_what_is_not_ruled_out():
    with running(Scripted(cache=PrefixCache(), isolates=True)) as run:
        result = prefix.probe(run, QUICK)
    (finding,) = result.findings
    assert "Not ruled out: a router" in finding.cause
    assert finding.confidence < 0.7
    assert [evidence.value for evidence in finding.evidence] == [0.0, 0.0, 0.0, 1.0, 16.0]


@pytest.mark.parametrize(("block", "blocks", "limit"), [(128, 40, 4096), (16, 100, 1500)])
def test_a_pool_that_holds_few_prompts_is_not_taken_for_a_cache_that_finds_less(block, blocks, limit):
    # The prompts of the cases before would push the common prompt out: together they are larger than the pool.
    with running(Scripted(cache=PrefixCache(block=block, blocks=blocks), limit=limit)) as run:
        result = prefix.probe(run, PrefixOptions())
    assert result.fact("verdict") == "works"
    assert result.fact("block_size_measured") == block
    assert [row["case"] for row in result.rows if row["outcome"] == "less"] == []
    assert "Less than" not in " ".join(result.conclusion)


def test_replicas_behind_one_address_whose_page_shows_one_are_named():
    with running(Scripted(cache=PrefixCache(), replicas=3)) as run:
        result = prefix.probe(run, PrefixOptions(fill=0))
    assert [row["cached_tokens"] for row in result.rows[1:4]] == [0, 0, 1008]
    assert (result.fact("verdict"), result.fact("replicas")) == ("by replica", 1)
    assert len(result.conclusion) == 1
    assert "found at 1 of 3 repetitions only" in result.conclusion[0]
    assert "several replicas behind this address" in result.conclusion[0]
    assert "share a beginning to the same replica" in result.advice[0].text


def test_replicas_with_a_cache_each_are_found_by_repeating():
    with running(Scripted(cache=PrefixCache(), ranks=2)) as run:
        result = prefix.probe(run, QUICK)
    assert table(result)["same prompt"] == 0
    assert table(result)["same prompt, repetition 2"] == 1008
    assert result.fact("verdict") == "by replica"
    assert not result.findings
    assert "same replica" in result.advice[0].text


def test_counters_in_blocks_are_read_as_tokens():
    with running(Scripted(cache=PrefixCache(counts_blocks=True), version="0.8.5")) as run:
        result = prefix.probe(run, PrefixOptions(length=160, fill=0))
    assert table(result)["same prompt"] == 144


def test_a_server_that_tells_only_hits_says_nothing_where_there_are_none():
    script = Scripted(cache=PrefixCache(), metrics=False, tells_cached="hits")
    with running(script) as run:
        result = prefix.probe(run, QUICK)
    assert table(result)["first time"] == table(result)["random head"] == 0
    assert table(result)["same prompt"] == 1008
    assert result.fact("verdict") == "works"
    assert "unknown" not in outcomes(result).values()


def test_traffic_of_others_makes_hits_unknown_not_wrong():
    with running(Scripted(cache=PrefixCache(), others=5)) as run:
        result = prefix.probe(run, QUICK)
    assert result.fact("verdict") == "not known"
    assert result.fact("same_prompt") is None
    assert not result.findings
    assert "others use the server: 1,029 tokens were looked up, 1,024 sent" in result.conclusion[0]


def test_without_counters_and_usage_it_says_what_it_needs():
    with running(Scripted(cache=PrefixCache(), metrics=False)) as run:
        result = prefix.probe(run, QUICK)
    assert result.fact("verdict") == "not known"
    assert "--enable-prompt-tokens-details" in result.conclusion[0]
    assert "speak for a hit" in result.conclusion[0].replace("speaks", "speak")


def test_a_server_that_takes_no_salt_is_no_failure():
    with running(Scripted(cache=PrefixCache(), salts=False)) as run:
        result = prefix.probe(run, QUICK)
    assert outcomes(result)["new salt"] == "refused"
    assert "same salt" not in outcomes(result)
    assert any("does not take cache_salt" in sentence for sentence in result.conclusion)


def test_a_server_that_takes_text_only_is_probed_with_words():
    with running(Scripted(cache=PrefixCache(), ids=False, tells_cached=True)) as run:
        result = prefix.probe(run, QUICK)
    assert result.fact("verdict") == "works"
    assert result.fact("random_tail") >= 0.9
    assert result.fact("random_head") == 0.0
    assert outcomes(result)["block size"] == "not tried"
    assert "less" not in outcomes(result).values()


def test_a_pool_without_room_for_two_blocks_is_refused():
    with (
        running(Scripted(cache=PrefixCache(block=128, blocks=5))) as run,
        pytest.raises(ProbeError, match="two blocks"),
    ):
        prefix.probe(run, QUICK)


def test_a_context_without_room_for_anything_is_refused_where_the_block_is_not_known():
    with (
        running(Scripted(metrics=False, limit=9)) as run,
        pytest.raises(ProbeError, match=r"a prompt of 1 tokens does not hold two tokens"),
    ):
        prefix.probe(run, PrefixOptions())


def test_a_first_prompt_that_is_refused_ends_the_probe_with_the_servers_words():
    script = Scripted(cache=PrefixCache(), fails=lambda prompt: 500 if len(prompt) > 1000 else None)
    match = r"1,024 tokens was not answered: HTTP 500: refused"
    with running(script) as run, pytest.raises(ProbeError, match=match) as caught:
        prefix.probe(run, QUICK)
    assert caught.value.code == 3


def test_an_interrupted_probe_keeps_its_cases():
    with running(Scripted(cache=PrefixCache())) as run:
        run.report = lambda done, of, words: run.cancelled.set() if done == 5 else None
        result = prefix.probe(run, QUICK)
    assert (result.complete, result.stopped_because) == (False, "interrupted")
    assert len(result.rows) == 5
    assert result.fact("verdict") == "works"


def test_two_runs_do_not_find_each_others_prompts():
    script = Scripted(cache=PrefixCache())
    with running(script) as run:
        first, second = prefix.probe(run, QUICK), prefix.probe(run, QUICK)
    assert table(first)["first time"] == table(second)["first time"] == 0


def test_two_prompts_of_the_users_own_are_compared_and_the_construction_to_change_is_named():
    rules = "\n".join(f"Rule {number} says that the answer has to be short and polite." for number in range(40))
    first, second = (f"You are a helper.\nIt is {time} now.\n{rules}\nWhat is new?" for time in ("10 h", "11 h"))
    script = Scripted(cache=PrefixCache(block=16, blocks=2000), tells_cached=True)
    with running(script) as run:
        result = prefix.probe(run, PrefixOptions(fill=0, own=(first, second)))
    row = next(row for row in result.rows if row["case"] == "second of your prompts")
    # "You are a helper . It is" are 7 words and signs: no whole block of 16.
    assert (row["shared_tokens"], row["cached_tokens"], row["outcome"]) == (7, 0, "as expected")
    assert any("part at line 2, column 8, after 7 tokens" in sentence for sentence in result.conclusion)
    assert "move what differs at line 2, column 8 to the end; behind it, 99 %" in result.advice[0].text
    assert not any("polite" in str(kept) for kept in (result.rows, result.facts, result.conclusion, result.advice))


# Parts


@pytest.mark.parametrize(
    ("first", "second", "parting"),
    [
        ("same", "same", Parting(4, 1, 5, same=True, common=1.0)),
        ("a\nb 1\nc\n", "a\nb 2\nc\n", Parting(4, 2, 3, same=False, common=1 / 4)),  # of "b 2" and "c"
        ("x", "y", Parting(0, 1, 1, same=False, common=0.0)),
        ("", "y", Parting(0, 1, 1, same=False, common=0.0)),
        ("ab", "a", Parting(1, 1, 2, same=False, common=0.0)),
        ("id 7\nlong text", "id 8\nlong text", Parting(3, 1, 4, same=False, common=9 / 13)),
        # What stands in the first text once counts once.
        ("1\nz", "2\nz\nz", Parting(0, 1, 1, same=False, common=1 / 3)),
    ],
)
def test_where_two_prompts_part_and_what_is_common_behind(first, second, parting):
    assert part(first, second) == parting


@pytest.mark.parametrize(
    ("shared", "tokens", "block", "found"),
    [
        # Measured on vLLM 0.32 with blocks of 128 and prompts of 400 tokens: repeat, last token, token 200, token 0.
        (400, 400, 128, 384),
        (399, 400, 128, 384),
        (200, 400, 128, 128),
        (0, 400, 128, 0),
        (384, 384, 128, 256),
        (100, 100, 128, 0),
        (400, 400, 1, 399),
        (400, 400, None, None),
    ],
)
def test_what_a_cache_of_blocks_finds(shared, tokens, block, found):
    assert expected(shared, tokens, block) == found


@given(st.integers(8, 400), st.data())
def test_prompts_share_exactly_what_they_are_meant_to(length, data):
    prompts = Prompts(Vocabulary(tuple(range(100, 164))), "seed")
    base = prompts.fresh(length)
    shared = data.draw(st.integers(0, length - 1))
    other = prompts.sharing(base, shared, length)
    assert len(other) == length
    assert other[:shared] == base[:shared]
    assert other[shared] != base[shared]


def test_the_common_prompt_has_half_a_block_at_its_end_and_room_in_the_pool():
    assert base_length(16, 8192, 15_984) == 1024
    assert base_length(128, 4096, 51_072) == 2112  # 16.5 blocks
    assert base_length(128, 4096, 4992) == 1600  # a third of the pool is 1,664: 12.5 blocks
    assert base_length(None, None, None) == 1024
    assert base_length(784, 131_072, 1_000_000) == 12_936
