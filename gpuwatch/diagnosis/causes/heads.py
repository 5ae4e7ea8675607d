"""KV heads that are fewer than the tensor-parallel ranks: every rank keeps a copy, and more ranks add no room."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.view import Cause, advise, from_fact
from gpuwatch.diagnosis.explanation import Explanation, count, logged, told
from gpuwatch.diagnosis.finding import Evidence
from gpuwatch.engines.sizes import MOST_RANKS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.diagnosis.finding import Advice
    from gpuwatch.model import LogEvent

MLA = re.compile(r"Deepseek(?:V[2-9]|ForCausalLMV[2-9])|Kimi|LongcatFlash|MLA", re.IGNORECASE)
"""Architectures whose KV cache is one latent vector per token for all heads."""
_GROUPED = re.compile(r"DP(\d+)_TP(\d+)$")
MISFIT = "A launch flag has a value that this model cannot take"
"""What the finding says where the flag is known, and the model has no use for its value."""
MORE = 1.5
"""A layout that holds so many times the requests of another one on the same cards is a clear gain."""


def indivisible(
    heads: int, ranks: int, evidence: tuple[Evidence, ...], since: int = 0, *, foreseen: bool = False
) -> Cause:
    """Explain attention heads that the ranks cannot share evenly; a common divisor fits the GPUs as well.

    `foreseen` says that the engine was not seen to refuse them.
    """
    fitting = [each for each in range(1, min(heads, max(ranks, 1), MOST_RANKS) + 1) if heads % each == 0]
    fits = math.gcd(heads, ranks)
    what = "will not start" if foreseen else "did not start"
    return Cause(
        "flag_unknown",
        Explanation(
            f"The engine {what}: {count(heads)} attention heads cannot be shared by {ranks} ranks.",
            0.9 if foreseen else 0.97,
            evidence,
            (
                advise(
                    f"a number that divides {heads}: {', '.join(map(str, fitting))}; the KV heads and the vocabulary "
                    "have to go in as well, which is surest with the smaller ones",
                    "--tensor-parallel-size",
                    ranks,
                    fits,
                ),
                advise(
                    "and use the other GPUs as pipeline stages or replicas",
                    "--pipeline-parallel-size",
                    None,
                    ranks // fits,
                ),
            ),
        ),
        since,
        title=MISFIT,
    )


def query_heads(view: View) -> Iterator[Cause]:
    """Judge attention heads of a model's configuration that vLLM cannot share among the ranks of a command."""
    heads = _configured(view, "num_attention_heads")
    if heads is None:
        return
    for run in view.runs:
        tp = run.fact("tp")
        if _refused(view, run, heads) and tp is not None:
            where = Evidence(
                f"config.json: num_attention_heads is {heads}", "config.json", None, "num_attention_heads", heads
            )
            yield indivisible(heads, run.tp, (where, told(tp, f"tensor-parallel ranks: {run.tp}")), foreseen=True)
            return


def uneven_experts(experts: int, ranks: int, event: LogEvent, run: Run) -> Cause:
    """Explain experts that the ranks of expert parallelism cannot share evenly."""
    tp = run.number("tp")
    fitting = [each for each in range(1, min(experts, MOST_RANKS) + 1) if experts % each == 0]
    below = max((each for each in fitting if each < ranks), default=1)
    above = next((each for each in fitting if each > ranks), None)
    known = int(tp) if tp == ranks else None
    return Cause(
        "flag_unknown",
        Explanation(
            f"The engine did not start: {count(experts)} experts cannot be shared by {ranks} ranks of expert "
            "parallelism, which are the tensor-parallel ranks times the replicas.",
            0.96,
            (logged(event),),
            (
                advise(
                    f"a number of ranks that divides {experts}: {below}" + (f" or {above}" if above else ""),
                    "--tensor-parallel-size",
                    known,
                    below if known else None,
                ),
                advise(
                    "or copies of experts that fill the ranks up",
                    "num_redundant_experts",
                    None,
                    -experts % ranks if ranks else None,
                ),
            ),
        ),
        event.time,
        title=MISFIT,
    )


def _refused(view: View, run: Run, heads: int) -> bool:
    """Whether vLLM refuses so many heads with the ranks of a run that is not known to have served."""
    engine = run.text("engine") or next((given.engine for given in view.incident.inputs if given.engine), "")
    return engine == "vllm" and heads % run.tp != 0 and not run.all("ready")


def _configured(view: View, key: str) -> int | None:
    """Return a whole number of the model's configuration, of its language model where it has several."""
    config = view.incident.config or {}
    inner = config.get("text_config")
    config = inner if isinstance(inner, dict) and key in inner else config
    value = config.get(key)
    return value if isinstance(value, int) and value > 0 else None


def kv_heads(view: View) -> Iterator[Cause]:
    """Judge KV heads that are fewer than the ranks: each rank holds a copy, and more ranks give no more pool."""
    for run in view.runs:
        heads, where = _heads(view, run)
        dcp = run.number("dcp") or 1
        # With attention data-parallel, a rank shares its requests with those of its own group only.
        groups = attention_groups(run)
        ranks = run.tp // groups
        if heads is None or ranks <= heads * dcp or ranks <= 1:
            continue
        if _refused(view, run, _configured(view, "num_attention_heads") or run.tp):
            continue
        copies = ranks // heads
        if copies < 2:
            continue
        twin = _twin(view, run)
        evidence = [
            *where,
            *from_fact(run, "tp", "tensor-parallel ranks: {}"),
            *from_fact(run, "max_concurrency", "requests of full length that fit: {}"),
        ]
        gain = ""
        if twin is not None:
            ours, theirs = (
                run.number("max_concurrency") or 0,
                (twin.number("max_concurrency") or 0) * (twin.number("dp") or 1),
            )
            gain = (
                f" As {twin.number('dp'):.0f} replicas the same cards hold {theirs:.1f} requests of full length, as "
                f"one group {ours:.1f}."
            )
            evidence += from_fact(
                twin, "max_concurrency", f"{twin.number('dp'):.0f} data-parallel replicas hold {{}} each"
            )
        evidence.append(
            Evidence("Ruled out: the memory fraction and the links between the cards: neither changes the copies")
        )
        yield Cause(
            "kv_head_replication",
            Explanation(
                f"The model has {heads} KV head{'s' if heads > 1 else ''} and {ranks} tensor-parallel ranks"
                f"{f' in each of {groups} groups of attention' if groups > 1 else ''}: every "
                f"rank keeps {'the full' if heads == 1 else 'a copied part of the'} KV cache, {copies} times in all, "
                f"so that more ranks add no room.{gain}",
                0.9 if twin is not None else 0.75,
                tuple(evidence),
                (
                    *_fewer_ranks(run, copies, heads),
                    advise(
                        "or share the cache among the ranks" + (" (0.5.16 and newer)" if run.sglang else ""),
                        "--dcp-size" if run.sglang else "--decode-context-parallel-size",
                        int(dcp),
                        copies,
                    ),
                ),
            ),
            _time(run),
            severity=None if twin is not None else "info",
        )
        return


def attention_groups(run: Run) -> int:
    """Return the groups of ranks with requests of their own among the tensor-parallel ranks: SGLang's DP attention."""
    groups = run.counted("flag.attn-dp-size") or 0
    if run.sglang and not groups and (among := _among_ranks(run)):
        groups = run.counted("dp") or among
    return groups if groups > 0 and run.tp % groups == 0 else 1


def _among_ranks(run: Run) -> int:
    """Return the groups of SGLang's DP attention, 0 where it is not on: by its flag, or by how the ranks are called.

    Replicas beside each other count their ranks from 0 each; groups among the ranks of one have each rank once.
    """
    if run.yes("flag.enable-dp-attention"):
        return run.counted("dp") or 1
    pairs = {(int(found[1]), int(found[2])) for fact in run.facts if (found := _GROUPED.search(fact.key)) is not None}
    groups, ranks = ({pair[at] for pair in pairs} for at in (0, 1))
    return max(groups) + 1 if len(groups) > 1 and len(ranks) == len(pairs) else 0


def _fewer_ranks(run: Run, copies: int, heads: int) -> list[Advice]:
    """Return the advice to use the same cards as replicas of so many fewer ranks each.

    SGLang counts them within TP, which they have to divide.
    """
    replicas = run.counted("dp") or 1
    if run.sglang:
        among = _among_ranks(run) > 0
        cards = run.tp if among else run.tp * replicas
        few = range(1, min(cards, MOST_RANKS) + 1)
        groups = next((each for each in few if cards % each == 0 and cards // each <= heads), cards)
        why = "run attention data-parallel on the same cards, which --tp-size still counts, with --enable-dp-attention"
        more = [] if cards == run.tp else [advise("and count all cards", "--tp-size", run.tp, cards)]
        return [advise(why, "--dp-size", replicas, groups), *more]
    return [
        advise(
            "run attention data-parallel on the same cards: fewer ranks in each replica (a MoE model also needs "
            "--enable-expert-parallel)",
            "--tensor-parallel-size",
            run.tp,
            run.tp // copies,
        ),
        advise("and as many more replicas", "--data-parallel-size", replicas, replicas * copies),
    ]


def _time(run: Run) -> int:
    fact = run.fact("max_concurrency") or run.fact("kv.tokens")
    return (fact.time or 0) if fact is not None else 0


def _heads(view: View, run: Run) -> tuple[int | None, list[Evidence]]:
    """Return the KV heads and where they are known from; one for a latent cache."""
    latent = run.fact("kv.format")
    name = run.fact("architecture")
    if latent is not None:
        return 1, [told(latent, f"the KV cache has the latent format {latent.value}: one head for all")]
    if name is not None and MLA.search(str(name.value)):
        return 1, [told(name, f"{name.value} keeps one latent vector per token for all heads")]
    value = _configured(view, "num_key_value_heads")
    if value is not None:
        return value, [
            Evidence(f"config.json: num_key_value_heads is {value}", "config.json", None, "num_key_value_heads", value)
        ]
    for event in view.events("config_key"):
        if event.field("key") == "num_key_value_heads" and event.field("value").isdigit():
            return int(event.field("value")), [logged(event)]
    return None, []


def _twin(view: View, run: Run) -> Run | None:
    """Return a run of the same model with more replicas and fewer ranks that holds clearly more."""
    for other in view.runs:
        replicas = other.number("dp") or 1
        if other is run or other.text("model") != run.text("model") or replicas <= (run.number("dp") or 1):
            continue
        ours, theirs = run.number("max_concurrency"), other.number("max_concurrency")
        if ours and theirs and theirs * replicas >= MORE * ours:
            return other
    return None
