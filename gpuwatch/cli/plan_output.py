"""The plan as JSON and for people."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuwatch.cli.plan_ask import models_of
from gpuwatch.engines.log_text import clean
from gpuwatch.ledger.fraction import fraction_flag, takes_from_the_system
from gpuwatch.ledger.kv import scale_share
from gpuwatch.ledger.plan import PARTS, barely_short, card_of, fraction_needed, start_notes
from gpuwatch.ledger.pool import LONGEST
from gpuwatch.ledger.ranks import pool_flag
from gpuwatch.ledger.shares import shares_needed
from gpuwatch.ledger.spread import spreads
from gpuwatch.ledger.starts import obstacles
from gpuwatch.ledger.steps import refusals
from gpuwatch.ledger.whatif import best_pair, what_if
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from gpuwatch.cli.plan_ask import Asked
    from gpuwatch.ledger.need import Engine
    from gpuwatch.ledger.plan import Card, Plan
    from gpuwatch.ledger.spread import Spread
    from gpuwatch.ledger.whatif import Row

SCHEMA = 1
ROWS_SHOWN = 6
BAR = 40
_TITLES = {
    "weights": "weights",
    "kv_cache": "KV cache",
    "activations": "activations",
    "graphs": "CUDA graphs",
    "context": "context, allocator",
    "communication": "communication",
}
_GLYPHS = {"weights": "█", "kv_cache": "▓", "activations": "▒", "graphs": "░", "context": "c", "communication": "n"}
_VERDICTS = {
    "fits": "fits",
    "tight": "tight: the steady state fits, a peak may not",
    "unknown": "unknown: the config lacks what it takes to compute all parts",
    "does_not_fit": "does not fit",
}


_ORDER = {"fits": 0, "tight": 1, "unknown": 2, "does_not_fit": 3}
_WAYS = {"does_not_fit": "does not fit", "unknown": "unknown"}


def print_json(plan: Plan, asked: Asked) -> None:
    """Print the documented JSON object."""
    first = plan.capacities[0]
    engine = first.engine
    rows = _rows(asked)
    sized, complete = engine.model.kv_known, _counted(plan, engine)
    print(
        json.dumps(
            {
                "schema": SCHEMA,
                "verdict": plan.verdict,
                "per_gpu": [_card(card, kv_known=_kv_known(asked)) for card in plan.cards],
                "kv": {
                    "bytes_per_token": _whole(first.bytes_per_token) if sized else None,
                    "scale_bytes_per_token": _whole(first.bytes_per_token * scale_share(engine.deployment.kv_dtype))
                    if sized
                    else None,
                    "tokens": first.tokens if complete else None,
                    "max_context": _length(first.max_context) if complete else None,
                    "any_length": complete and first.max_context >= LONGEST,
                    "max_concurrency": down(first.served, 3) if complete else None,
                    "pools": first.pools,
                    "pool_bytes": round(first.pool_bytes) if complete else None,
                    "context": engine.deployment.context,
                },
                "fewest_gpus": plan.fewest_gpus,
                "serves": plan.serves if complete and _settled(plan, asked) else None,
                "error_band": round(plan.error_band, 4),
                "what_if": [_row(row) for row in rows],
                "flags": flags_of(asked),
                "notes": _notes(plan, asked),
                "spread": [_spread(way) for way in ways_of(asked)],
                "models": [_model(one, asked) for one in asked.engines],
                "command": command_of(asked),
            },
            indent=2,
        )
    )


def down(value: float, digits: int = 1) -> float:
    """Return a number of requests, rounded down: 0.96 of one is not one."""
    scale = float(10**digits)
    return math.floor(value * scale + 1e-6) / scale


def _length(tokens: int) -> int | None:
    """Return the longest request; None where it may have any length."""
    return None if tokens >= LONGEST else tokens


def _tokens(tokens: int) -> str:
    return "of any length" if tokens >= LONGEST else f"{tokens:,}"


def _whole(value: float) -> float:
    return int(value) if value == int(value) else round(value, 3)


def _kv_known(asked: Asked) -> bool:
    return all(engine.model.kv_known for engine in asked.engines)


def _parts(card: Card, *, kv_known: bool) -> dict[str, int | None]:
    """Return a card's parts in bytes; None for the KV cache where its size is not known."""
    return {part: round(value) if kv_known or part != "kv_cache" else None for part, value in card.components.items()}


def _card(card: Card, *, kv_known: bool) -> dict[str, Any]:
    return {
        "gpu": card.gpu,
        "components": _parts(card, kv_known=kv_known),
        "total": round(card.total),
        "capacity": round(card.capacity),
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "change": row.change,
        "max_context": _length(row.max_context),
        "any_length": row.max_context >= LONGEST,
        "max_concurrency": down(row.max_concurrency, 3),
        "costs": row.costs,
        "verdict": row.verdict,
        "serves": row.serves,
    }


def _spread(way: Spread) -> dict[str, Any]:
    return {
        "tp": way.tp,
        "replicas": way.replicas,
        "verdict": way.verdict,
        "max_concurrency": None if way.verdict == "unknown" else down(way.concurrency, 3),
        "experts_shared": way.shared,
    }


def ways_of(asked: Asked) -> tuple[Spread, ...]:
    """Return the ways to spread the model over the cards, where there is one model and there are several cards."""
    return spreads(asked.engines[0], asked.gpus) if asked.gpus > 1 and len(asked.engines) == 1 else ()


def _needed(engine: Engine, asked: Asked) -> float:
    return fraction_needed(engine, asked.engines[: asked.engines.index(engine)])


def _model(engine: Engine, asked: Asked) -> dict[str, Any]:
    deployment = engine.deployment
    return {
        "name": engine.model.name,
        "architecture": engine.model.architecture,
        "engine": deployment.engine,
        "tp": deployment.tp,
        "pp": deployment.pp,
        "dp": deployment.pools,
        "fraction": deployment.fraction,
        "chunk": deployment.chunk,
        "max_num_seqs": deployment.sequences,
        "per_gpu": _parts(card_of([engine]), kv_known=engine.model.kv_known),
        "fraction_needed": _needed(engine, asked) if engine.model.complete and engine.weights_known else None,
        "missing": list(engine.model.missing),
    }


def _rows(asked: Asked) -> list[Row]:
    if any(not one.model.complete for one in asked.engines):
        return []
    found: list[list[Row]] = []
    for at, engine in enumerate(asked.engines):
        others = asked.engines[:at] + asked.engines[at + 1 :]
        pair = best_pair(engine, others)
        rows = (*([pair] if pair is not None else []), *what_if(engine, others))
        found.append([replace(row, change=f"{_called(asked, at)}{row.change}") for row in rows if _is_certain(row)])
    turns = [row for turn in itertools.zip_longest(*found) for row in turn if row is not None]
    if len(found) == 1:
        return turns
    shares = shares_needed(asked.engines)
    ordered = sorted(turns, key=lambda row: _ORDER[row.verdict])
    return ordered if shares is None else [shares, *ordered]


def _is_certain(row: Row) -> bool:
    return row.verdict != "unknown"


def _counted(plan: Plan, engine: Engine) -> bool:
    """Return whether all parts of an engine are known that its pool depends on."""
    return engine.model.complete and (engine.weights_known or plan.verdict != "unknown")


def _settled(plan: Plan, asked: Asked) -> bool:
    """Return whether fewer bits of weights that are not known would change nothing of what is served."""
    if plan.serves or plan.verdict == "does_not_fit" or all(engine.weights_known for engine in asked.engines):
        return True
    return bool(_reasons(asked)) or any(refusals(one.model, one.deployment) for one in asked.engines)


def _called(asked: Asked, at: int) -> str:
    """Return the name of one of several models in front of what is said of it."""
    if len(asked.engines) == 1:
        return ""
    names = [models_of([engine]) for engine in asked.engines]
    return f"{names[at]}: " if names.count(names[at]) == 1 else f"{names[at]} ({at + 1}): "


def flags_of(asked: Asked) -> list[dict[str, Any]]:
    """Return what is wrong with the flags of the launch command."""
    return [
        {
            "flag": f"--{problem.flag}",
            "problem": problem.text,
            "replacement": problem.instead or (f"--{problem.flag} {problem.proposed}" if problem.proposed else None),
        }
        for problem in asked.problems
    ]


def command_of(asked: Asked) -> str | None:
    """Return the launch command with its faults repaired; None where none was given."""
    return None if asked.launch is None else asked.launch.repaired(asked.problems)


def gib(value: float) -> str:
    """Return bytes in GiB with one decimal."""
    return f"{value / GIB:.1f}"


def print_text(plan: Plan, asked: Asked) -> None:
    """Print the plan for people."""
    engine = asked.engines[0]
    deployment, card = engine.deployment, plan.cards[0]
    ranks = f"TP{deployment.tp}" + (f" x PP{deployment.pp}" if deployment.pp > 1 else "")
    ranks += f" x PCP{deployment.pcp}" if deployment.pcp > 1 else ""
    ranks += f" x DP{deployment.dp}" if deployment.dp > 1 else ""
    ranks += f" with DP{deployment.dp_attention} attention" if deployment.dp_attention > 1 else ""
    replicas = asked.gpus // deployment.cards
    spread = ranks + (f", {replicas} independent replicas" if replicas > 1 else "")
    cards = f"{asked.gpus} x {gib(card.capacity)} GiB"
    print(clean(f"{models_of(asked.engines)} on {cards}, {deployment.engine} {asked.version}, {spread}"))
    print(f"verdict: {_verdict(plan, asked)}\n")
    print(f"each card   {_bar(card)}  {gib(card.total)} of {gib(card.capacity)} GiB (± {plan.error_band:.0%})")
    for part in PARTS:
        if part == "kv_cache" and not _kv_known(asked):
            print(f"  {_GLYPHS[part]} {_TITLES[part]:<20}{'unknown':>8}")
        elif card.components[part]:
            print(f"  {_GLYPHS[part]} {_TITLES[part]:<20}{gib(card.components[part]):>8} GiB{_about(part, asked)}")
    print(f"    {'free':<20}{gib(card.capacity - card.total):>8} GiB\n")
    _print_pools(plan, asked)
    most = "more than 64" if not deployment.mig else "no number of slices"
    if any(not one.model.complete or not one.weights_known for one in asked.engines):
        most = "unknown"
    print(f"fewest cards of this size: {plan.fewest_gpus or most}")
    _print_ways(asked)
    if len(asked.engines) > 1:
        _print_fractions(asked)
    _print_rows(asked)
    for fault in flags_of(asked):
        print(clean(f"flag {fault['flag']}: {fault['problem']}; {fault['replacement'] or 'leave it out'}"))
    command = command_of(asked)
    if command is not None:
        print(f"\nrepaired command:\n  {clean(command)}")
    for note in _notes(plan, asked):
        print(clean(f"note: {note}"))


def _verdict(plan: Plan, asked: Asked) -> str:
    """Return the verdict in words, with the first reason where the engine does not start whatever the memory."""
    if plan.verdict == "unknown" and all(engine.model.complete for engine in asked.engines):
        return (
            "unknown: in 16 bits it does not fit, and in how many its weights are stored is not known (see the notes)"
        )
    if plan.verdict == "unknown" and not any(engine.model.missing for engine in asked.engines):
        return "unknown: the model has parts that are not counted (see the notes)"
    reasons = _reasons(asked)
    refused = [no for one in asked.engines for no in refusals(one.model, one.deployment)]
    if plan.verdict in ("fits", "tight") and refused:
        return f"{plan.verdict}, but {refused[0].reason} (see the notes)"
    if plan.verdict == "tight" and (why := _tight(plan, asked)):
        return f"tight: {why}"
    if plan.verdict == "does_not_fit" and not reasons and not plan.serves:
        reasons = [note for found in plan.capacities for note in start_notes(found)]
    return f"{_VERDICTS[plan.verdict]}: {reasons[0]}" if reasons else _VERDICTS[plan.verdict]


def _tight(plan: Plan, asked: Asked) -> str:
    """Return why engines that may start are tight; empty where the words say no more than the verdict."""
    card = plan.cards[0]
    short = [note for found in plan.capacities if barely_short(found) for note in start_notes(found)]
    cramped = next((one.deployment for one in asked.engines if takes_from_the_system(one.deployment)), None)
    if short:
        return short[0]
    if cramped is not None:
        left = gib((1 - cramped.fraction) * cramped.capacity)
        return f"{_fraction(cramped.engine)} {cramped.fraction:g} leaves {left} GiB of unified memory to the system"
    if card.total > card.capacity:
        over = gib(card.total - card.capacity)
        return f"over by {over} GiB, less than the sum is uncertain by, and the engine's own budget holds it"
    return ""


def _reasons(asked: Asked) -> list[str]:
    """Return why the engines do not start, whatever the memory."""
    return [text for engine in asked.engines for text in obstacles(engine.model, engine.deployment)]


def _notes(plan: Plan, asked: Asked) -> list[str]:
    """Return all notes: what stops the engine, what was assumed, and the others."""
    return list(dict.fromkeys((*_reasons(asked), *asked.assumed, *plan.notes)))


def _print_pools(plan: Plan, asked: Asked) -> None:
    """Print what each engine's pool holds."""
    for at, found in enumerate(plan.capacities):
        one = found.engine.deployment
        limit = pool_flag(one) or f"{_fraction(one.engine)} {one.fraction:g}"
        called = _called(asked, at)
        if not _counted(plan, found.engine):
            sized = f"{_whole(found.bytes_per_token):,} bytes per token" if found.engine.model.kv_known else "unknown"
            print(clean(f"{called}KV cache: {sized}; what the pool holds: unknown"))
            continue
        if not found.engine.model.attention:
            requests = f"{down(found.max_concurrency):.1f} requests of any length"
            print(clean(f"{called}states and no KV cache: with {limit} the pool holds {requests}"))
            continue
        holds = "the pool holds" if found.pools == 1 else f"each of {found.pools} pools holds"
        print(clean(f"{called}KV cache: {_whole(found.bytes_per_token):,} bytes per token; with {limit} {holds}"))
        longest = f"{_tokens(found.max_context)}{' tokens' if found.max_context < LONGEST else ''}"
        together = f", {down(found.served):.1f} in all" if found.pools > 1 else ""
        print(
            f"  {found.tokens:,} tokens: the longest request {longest}, or "
            f"{down(found.max_concurrency):.1f} requests of {one.context:,}{together}"
        )


def _print_ways(asked: Asked) -> None:
    ways = [
        (f"DP{way.replicas} x TP{way.tp}, experts shared, " if way.shared else f"{way.replicas} x TP{way.tp} ")
        + _WAYS.get(
            way.verdict, f"{down(way.concurrency):.1f} ({way.verdict})" if way.concurrency else "will not start"
        )
        for way in ways_of(asked)
    ]
    if ways:
        context = asked.engines[0].deployment.context
        print(f"requests of {context:,} tokens at once on {asked.gpus} cards: {'; '.join(ways)}")


def _print_fractions(asked: Asked) -> None:
    """Print what each of several models on the same cards should be told to take."""
    for engine in asked.engines:
        if not engine.model.complete:
            continue
        flag, needed = _fraction(engine.deployment.engine), _needed(engine, asked)
        print(clean(f"share of {engine.model.name or engine.model.architecture}: {flag} {needed:.2f}"))


def _fraction(engine: str) -> str:
    return f"--{fraction_flag(engine)}"


def _about(part: str, asked: Asked) -> str:
    if part != "kv_cache":
        return ""
    wanted = ", ".join(f"{engine.requests} x {engine.deployment.context:,} tokens" for engine in asked.engines)
    return f"   for {wanted}"


def _bar(card: Card) -> str:
    whole = max(card.total, card.capacity)
    bar, drawn, reached = "", 0, 0.0
    for part in PARTS:
        reached += card.components[part]
        width = round(reached / whole * BAR) - drawn
        bar += _GLYPHS[part] * width
        drawn += width
    limit = round(card.capacity / whole * BAR)
    bar = bar.ljust(BAR, "·")
    return (
        f"▕{bar}▏" if limit == BAR else f"▕{bar[:limit]}╎{bar[limit:]}▏ over by {gib(card.total - card.capacity)} GiB:"
    )


def _print_rows(asked: Asked) -> None:
    rows = _rows(asked)[:ROWS_SHOWN]
    if not rows:
        return
    print("\nwhat if")
    for row in rows:
        print(f"  {row.change}")
        holds = f"longest request {_tokens(row.max_context)}, {down(row.max_concurrency):.1f} of full length"
        stands = row.verdict.replace("_", " ")
        if row.verdict == "does_not_fit" and row.max_concurrency >= 1:  # it has a pool, and the card no room
            stands = "does not fit beside the others" if len(asked.engines) > 1 else "more than the card"
        if not row.serves and row.verdict in ("fits", "tight"):
            stands = "fits the card and will not start"
        elif row.serves and row.lacking:
            stands += ", and may lack a little"
        print(f"    {stands}: {holds}")
        print(f"    costs: {row.costs}")
    print()
