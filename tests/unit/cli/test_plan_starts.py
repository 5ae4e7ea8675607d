"""Commands and plans whose engine will not start: what ``gpuwatch plan`` says of them, and what it repairs."""

from __future__ import annotations

import json

import pytest

from gpuwatch.cli import main
from tests.unit.cli.test_plan_command import LLAMA

GIB = 2**30


@pytest.fixture
def llama(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def planned(capsys, *arguments):
    assert main(["plan", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def repaired(capsys, command, *more):
    plan = planned(capsys, "--from-command", command, "--gpu-memory", 79.3, *more)
    return plan["command"], plan


def test_what_does_not_fit_serves_nothing_either(capsys, llama):
    # 131,072 tokens are 16 GiB and the weights 15.0; 0.92 of 24 GiB hold neither the one beside the other, nor 0.95
    plan = planned(capsys, llama, "--gpu-memory", 24)
    assert (plan["verdict"], plan["serves"]) == ("does_not_fit", False)
    assert plan["kv"]["max_concurrency"] < 1
    assert any("will not start: no fraction is enough" in note for note in plan["notes"])
    (row,) = [row for row in plan["what_if"] if row["change"] == "--gpu-memory-utilization 0.92 → 0.95"]
    again = planned(capsys, llama, "--gpu-memory", 24, "--utilization", 0.95)
    assert row["serves"] is again["serves"] is False
    assert row["max_concurrency"] == again["kv"]["max_concurrency"]


@pytest.mark.parametrize(
    ("flag", "pool"),
    [
        ("--kv-cache-memory-bytes 20G", 20.0),
        ("--num-gpu-blocks-override 10000", 18.31),  # 10,000 blocks of 16 tokens of 8 KiB for each of 15 layers
    ],
)
def test_a_pool_that_was_asked_for_and_is_more_than_the_card_does_not_fit(capsys, tmp_path, flag, pool):
    # 15 layers, 8 heads of 256: 2 x 8 x 256 x 2 bytes, 8 KiB, for each token and layer. All else takes under 4 GiB.
    small = {**LLAMA, "num_hidden_layers": 15, "hidden_size": 2048, "head_dim": 256, "vocab_size": 32_000}
    small |= {"intermediate_size": 4096, "num_attention_heads": 8, "max_position_embeddings": 8192}
    (tmp_path / "config.json").write_text(json.dumps(small))
    command = f"vllm serve {tmp_path} {flag}"
    plan = planned(capsys, "--from-command", command, "--gpu-memory", 12, "--engine-version", "0.30.0")
    assert (plan["verdict"], plan["serves"]) == ("does_not_fit", False)
    (note,) = [note for note in plan["notes"] if "more than the card" in note]
    assert f"the pool is {pool:.1f} GiB" in note
    # what fits is proposed to a tenth of a GiB, and does fit
    fitting = float(note.split()[-3])
    again = planned(
        capsys,
        *("--from-command", f"vllm serve {tmp_path} --kv-cache-memory-bytes {int((fitting - 0.1) * GIB)}"),
        *("--gpu-memory", 12, "--engine-version", "0.30.0"),
    )
    assert again["verdict"] in ("fits", "tight")
    roomy = planned(capsys, "--from-command", command, "--gpu-memory", 40, "--engine-version", "0.30.0")
    assert (roomy["verdict"], roomy["serves"]) == ("fits", True)


@pytest.mark.parametrize("arguments", [("--tp", 3), ("--context", 8192, "--pp", 33)])
def test_ranks_that_do_not_start_serve_nothing(capsys, llama, arguments):
    assert planned(capsys, llama, *arguments)["serves"] is False


def test_no_change_of_memory_serves_a_length_that_is_refused(capsys, llama):
    plan = planned(capsys, llama, "--context", 131_073)
    assert (plan["verdict"], plan["serves"]) == ("fits", False)
    assert [row for row in plan["what_if"] if row["verdict"] == "fits"]
    assert [row["change"] for row in plan["what_if"] if row["serves"]] == ["--max-model-len 131073 → 131072"]


def test_models_that_are_more_than_the_card_serve_nothing_together(capsys, llama):
    plan = planned(capsys, llama, llama, "--gpu-memory", 24, "--context", 4096)
    assert (plan["verdict"], plan["serves"]) == ("does_not_fit", False)
    assert not [row for row in plan["what_if"] if row["serves"] is not (row["verdict"] != "does_not_fit")]


@pytest.mark.parametrize(
    ("flags", "becomes"),
    [
        ("-tp 3", "--tensor-parallel-size 2"),  # of 32 query heads
        ("--tensor-parallel-size=6 --port 1", "--tensor-parallel-size 4 --port 1"),
        ("-pp 33", "--pipeline-parallel-size 32"),
        ("-tp 16 -dcp 4", "-tp 16 --decode-context-parallel-size 2"),  # two copies of each of 8 KV heads
        ("--block-size 32 --num-gpu-blocks-override 100", "--block-size 32"),  # 3,200 of 8,192 tokens
        ("--kv-cache-memory-bytes 100M", ""),  # 1 GiB is needed
        # 14.99 GiB of weights, 1.00 of KV and its null block, 4.72 of the sampler for 1,024, 0.5 of graphs
        ("--gpu-memory-utilization 0.2", "--gpu-memory-utilization 0.27"),
    ],
)
def test_a_command_that_does_not_start_is_repaired_where_a_value_is_enough(capsys, llama, flags, becomes):
    start = f"vllm serve {llama} --max-model-len 8192"
    command, plan = repaired(capsys, f"{start} {flags}")
    assert command == f"{start} {becomes}".strip()
    assert plan["verdict"] == "does_not_fit"  # the figures are those of the command that was given
    again = repaired(capsys, command)[1]
    assert (again["serves"], again["flags"]) == (True, [])


def test_sglang_is_given_ranks_that_its_heads_divide_into(capsys, llama):
    command, _ = repaired(capsys, f"python -m sglang.launch_server --model-path {llama} --tp 6 --port 1")
    assert command == f"python -m sglang.launch_server --model-path {llama} --tp-size 4 --port 1"


def test_a_command_that_no_value_lets_start_is_left_and_that_is_said(capsys, llama):
    text = f"vllm serve {llama}"
    plan = planned(capsys, "--from-command", text, "--gpu-memory", 24)
    assert (plan["command"], plan["flags"], plan["serves"]) == (text, [], False)
    assert any(note.startswith("the repaired command will not start, either") for note in plan["notes"])
    three = planned(capsys, "--from-command", f"{text} -tp 3", "--gpu-memory", 8, "--context", 8192)
    assert three["command"] == f"{text} -tp 3"  # two ranks of 7.5 GiB of weights each are too many for 8 GiB
    assert any(note.startswith("the repaired command will not start, either") for note in three["notes"])


def test_ranks_of_an_argument_are_not_repaired_in_the_command(capsys, llama):
    command, plan = repaired(capsys, f"vllm serve {llama} -tp 2", "--tp", 3)
    assert (command, plan["flags"], plan["serves"]) == (f"vllm serve {llama} -tp 2", [], False)


def test_shares_that_several_models_need_are_offered_in_place_of_those_they_were_told(capsys, llama):
    # 14.99 GiB of weights, 1.00 of KV and its null block, 1.18 of the sampler, 0.5 of graphs: 17.67 of 48
    asked = (llama, llama, "--gpu-memory", 48, "--context", 8192)
    plan = planned(capsys, *asked, "--utilization", 0.3)
    assert (plan["verdict"], plan["serves"]) == ("does_not_fit", False)
    row = plan["what_if"][0]
    assert row["change"] == "shares of 0.3 and 0.3 → 0.37 and 0.37"
    again = planned(capsys, *asked, "--utilization", 0.37)
    assert (row["verdict"], row["serves"]) == (again["verdict"], True)
    assert row["max_concurrency"] == again["kv"]["max_concurrency"]
    assert not [row for row in again["what_if"] if row["change"].startswith("shares")]
    assert not [row for row in planned(capsys, *asked)["what_if"] if row["change"].startswith("shares")]


def test_a_row_that_is_stopped_by_the_other_model_says_so(capsys, llama):
    # 17.7 GiB each, of which INT4 saves 10 of one: 25 of 20 GiB, though the share that one needs holds requests
    main(["plan", str(llama), str(llama), "--gpu-memory", "20", "--context", "8192"])
    printed = capsys.readouterr().out
    assert "does not fit beside the others: longest request" in printed
    assert "    does not fit: longest request" not in printed


def test_what_is_over_by_less_than_it_is_uncertain_by_is_tight_where_the_engine_holds_it(capsys, llama):
    # 0.99 of 24 GiB less 14.99, 1.18 and 0.5 are 7.09 GiB: 58,000 tokens. With 1.0 for the context, which vLLM does
    # not count, 57,000 tokens make 24.6 of 24 GiB; the parts are uncertain by 0.74.
    asked = (llama, "--gpu-memory", 24, "--utilization", 0.99, "--context")
    plan = planned(capsys, *asked, 57_000)
    assert (plan["verdict"], plan["serves"]) == ("tight", True)
    assert 0.5 * GIB < plan["per_gpu"][0]["total"] - 24 * GIB < 0.74 * GIB
    main(["plan", *map(str, asked), "57000"])
    assert "verdict: tight: over by 0.6 GiB, less than the sum is uncertain by" in capsys.readouterr().out
    plan = planned(capsys, *asked, 58_500)
    assert (plan["verdict"], plan["serves"]) == ("does_not_fit", False)


def test_a_share_that_may_be_enough_is_tight_and_no_failure(capsys):
    # A public start of these settings on a GB10 got 4.85 GiB of pool, where 1.35 are counted and 1.5 are needed.
    command = "vllm serve Qwen/Qwen3-30B-A3B --max-model-len 16384 --gpu-memory-utilization 0.49"
    where = ("--engine-version", "0.19.0", "--gpu-memory", "121.7", "--memory-kind", "unified")
    assert main(["plan", "--from-command", command, *where, "--fail"]) == 0
    shown = capsys.readouterr().out
    assert "verdict: tight: with --gpu-memory-utilization 0.49 the pool lacks a little for one request" in shown
    assert "--gpu-memory-utilization 0.50 is enough" in shown
    assert main(["plan", "--from-command", command.replace("0.49", "0.40"), *where, "--fail"]) == 1


def test_a_share_beside_a_pool_of_a_size_changes_no_figure(capsys):
    command = "vllm serve Qwen/Qwen3-8B --kv-cache-memory-bytes 20G"
    asked = ("--gpu-memory", "79.2", "--engine-version", "0.33.0", "--json", "--from-command")
    plans = []
    for more in ("", " --gpu-memory-utilization 0.3"):
        main(["plan", *asked, command + more])
        plans.append(json.loads(capsys.readouterr().out))
    for key in ("verdict", "serves", "fewest_gpus", "per_gpu", "kv", "notes"):
        assert plans[0][key] == plans[1][key], key
    assert plans[0]["verdict"] == "fits"
    # Without the size the share counts: 0.3 x 79.2 GiB less 15.3 of weights and what is computed with.
    sizes = [{row["change"]: row["max_context"] for row in plan["what_if"]} for plan in plans]
    without = "without --kv-cache-memory-bytes 21474836480"
    assert without in sizes[0]
    assert without not in sizes[1]
    assert plans[0]["fewest_gpus"] == 1


@pytest.mark.parametrize(("engine", "tokens"), [("vllm", 2048), ("sglang", 4096)])
def test_a_model_that_declares_no_length_gets_what_vllm_takes_for_it(capsys, tmp_path, engine, tokens):
    undeclared = {key: value for key, value in LLAMA.items() if key != "max_position_embeddings"}
    (tmp_path / "config.json").write_text(json.dumps(undeclared))
    main(["plan", str(tmp_path), "--engine", engine, "--json"])
    plan = json.loads(capsys.readouterr().out)
    assert plan["kv"]["context"] == tokens
    assert any(f"declares no length: {tokens:,} tokens assumed" in note for note in plan["notes"])


def test_a_shorter_request_is_proposed_where_it_fits_tightly_and_serves(capsys):
    asked = ("Qwen/Qwen3-8B", "--gpus", "1", "--gpu-memory", "20", "--json")
    main(["plan", *asked])
    plan = json.loads(capsys.readouterr().out)
    (row,) = [row for row in plan["what_if"] if row["change"].startswith("--max-model-len 40960 → ")]
    main(["plan", *asked, "--context", row["change"].split()[-1]])
    shorter = json.loads(capsys.readouterr().out)
    assert (plan["verdict"], row["verdict"], row["serves"]) == ("does_not_fit", "tight", True)
    assert (shorter["verdict"], shorter["serves"]) == ("tight", True)


def test_of_unified_memory_the_system_keeps_eight_gib(capsys, llama):
    # 8 of 30.6 GiB are 0.262, so 0.73 at most; 0.92 leaves 2.4. The weights are 15.0 GiB, 8,192 tokens of KV 1.0.
    small = (llama, "--context", 8192, "--memory-kind", "unified", "--gpu-memory", 30.6)
    plan = planned(capsys, *small)
    assert (plan["verdict"], plan["serves"]) == ("tight", True)
    (row,) = [row for row in plan["what_if"] if row["change"] == "--gpu-memory-utilization 0.92 → 0.73"]
    assert (row["verdict"], row["serves"]) == ("fits", True)
    assert not any("→ 0.95" in row["change"] for row in plan["what_if"])
    assert planned(capsys, *small, "--utilization", 0.73)["verdict"] == "fits"
    main(["plan", *map(str, small)])
    assert "--gpu-memory-utilization 0.92 leaves 2.4 GiB of unified memory to the system" in capsys.readouterr().out
    # 8 of 119.7 GiB are 0.067: 0.92 leaves more, and 0.93 is the most
    large = planned(capsys, llama, "--memory-kind", "unified", "--gpu-memory", 119.7)
    assert large["verdict"] == "fits"
    assert not any("0.94" in row["change"] or "0.95" in row["change"] for row in large["what_if"])
