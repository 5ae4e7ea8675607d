"""Engine lines: the block of one engine, the table of ranks, the details and charts of the engine view."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.tui.draw.bars import meter, sparkline
from gpuwatch.tui.draw.common import keyed, pair
from gpuwatch.tui.text import crop, fit, flow, line_width, rule
from gpuwatch.units import age, count, number, percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatch.tui.text import Line, Row, Span
    from gpuwatch.tui.view.engines import Engine, Rank
    from gpuwatch.tui.view.model import Model

QUIET_TOKEN_SECONDS = 2.0
"""An engine that has produced no token for this long while requests run has it said on its line."""

SHOWN_MODELS = 4
"""Names of models in a heading; of more only the number is said."""


def heading(engine: Engine, *, hosts: bool = False) -> list[Span]:
    """Return the title of an engine: name and version, model, address, parallelism, context."""
    spans: list[Span] = [(engine.title, "title")]
    if engine.models:
        more = f" +{len(engine.models) - SHOWN_MODELS}" if len(engine.models) > SHOWN_MODELS else ""
        spans.append((f"  {', '.join(engine.models[:SHOWN_MODELS])}{more}", "bright"))
    spans.append((f"  {engine.host} {engine.address}" if hosts else f"  {engine.address}", ""))
    tp = engine.get("tensor_parallel_size")
    if tp is not None:
        spans.append((f"  TP{count(tp)}", ""))
    if engine.data_parallel > 1:
        spans.append((f"  DP{engine.data_parallel}", ""))
    context = engine.get("max_model_len")
    if context is not None:
        spans.append((f"  context {count(context)}", ""))
    if engine.role and engine.role != "unified":
        spans.append((f"  {engine.role}", ""))
    return spans


def state(engine: Engine) -> tuple[Span, ...]:
    """Return what is wrong with an engine and how old its figures are, for the right end of its rule."""
    if not engine.problem:
        return ()
    old = f", figures {age(engine.stale)} old" if engine.stale is not None else ""
    return ((f"{'◌' if engine.problem in ('asleep', 'no data yet') else '✗'} {engine.problem}{old}", "warn"),)


def heading_lines(engine: Engine, width: int, *, hosts: bool = False) -> list[Line]:
    """Return the section rule of an engine; what is wrong with it stands at its right end or on a line of its own."""
    title, wrong = heading(engine, hosts=hosts), state(engine)
    if line_width(tuple(title)) + line_width(wrong) + 10 <= width:
        return [rule(title, width, wrong)]
    return [rule(title, width), crop(((" ", ""), *wrong), width)]


def _waiting(rank: Rank) -> str:
    """Return ``13 (capacity)``, or both reasons with their numbers."""
    text = count(rank.get("waiting"))
    if len(rank.waiting_for) == 1:
        return f"{text} ({rank.waiting_for[0][0]})"
    if rank.waiting_for:
        return f"{text} ({', '.join(f'{count(n)} {reason}' for reason, n in rank.waiting_for)})"
    return text


def _prefix(rank: Rank) -> str:
    """Return the prefix hit ratio, ``off`` where caching is off."""
    if rank.get("prefix_enabled") == 0:
        return "off"
    return percent(rank.get("prefix_hit_ratio"))


def _kv_line(rank: Rank, width: int, stale: bool) -> Line:
    """Return the KV pool: bar, usage, tokens."""
    usage = rank.get("kv_usage")
    used, total = rank.kv_used_tokens, rank.get("kv_tokens")
    tokens = f"{count(used)} of {count(total)} tokens" if total is not None else "pool size n/a"
    why = f" ({rank.reasons['kv_usage']})" if usage is None and "kv_usage" in rank.reasons else ""
    tail: Line = (
        (f" {percent(usage) + why:>5}  ", "stale" if stale else "bright"),
        (tokens, "stale" if stale else ""),
    )
    head: Line = ((" KV pool ", "label"),)
    if width >= 120:
        tail = (*tail, *_people(rank, stale))
    return crop(
        (
            *head,
            *meter(usage, max(width - line_width(head) - line_width(tail), 12), "stale" if stale else "bar.kv_used"),
            *tail,
        ),
        width,
    )


def _people(rank: Rank, stale: bool) -> Line:
    """Return running and waiting requests."""
    tone = "stale" if stale else "bright"
    waiting = _waiting(rank)
    return (
        ("   running ", "label"),
        (f"{count(rank.get('running')):>4}", tone),
        ("   waiting ", "label"),
        (f"{waiting:<14}", tone if not rank.get("waiting") or stale else "warn"),
    )


def _extras(rank: Rank) -> list[Line]:
    """Return what is only said when there is something to say."""
    parts: list[Line] = []
    if rank.get("swapped"):
        parts.append(pair("swapped", count(rank.get("swapped")), "warn"))
    silent = rank.get("seconds_since_token")
    if silent is not None and silent >= QUIET_TOKEN_SECONDS:
        parts.append(pair("no token for", age(silent), "warn"))
    return parts


def _trace(model: Model, rank: Rank, query: str, width: int) -> str:
    """Return the sparkline of one figure."""
    until = model.snapshot.time if model.snapshot is not None else 0
    return sparkline(model.history.trace(rank.key, query, until, width), width)


def _rates(model: Model, rank: Rank, width: int, stale: bool) -> list[Line]:
    """Return tone rates, evictions and preemptions with sparklines, in as many columns as fit."""
    value = "stale" if stale else "bright"
    items = [
        ("prompt", number(rank.get("prompt_rate")), "tok/s", "prompt_rate", "spark", value),
        ("generation", number(rank.get("generation_rate")), "tok/s", "generation_rate", "spark.good", value),
        _lost("evicted", rank, "eviction_rate", value),
        _lost("preempted", rank, "preemption_rate", value),
    ]
    per_line = 4 if width >= 130 else 2
    each = (width - 1) // per_line
    lines: list[Line] = []
    for start in range(0, len(items), per_line):
        spans: list[Span] = []
        for label, text, unit, query, tone, colour in items[start : start + per_line]:
            shown_unit = "" if text == "n/a" else unit
            name = fit(label, 10 if per_line == 2 else len(label))
            cell: Line = (
                (f" {name} ", "label"),
                (f"{text:>6}", colour if text != "n/a" else "dim"),
                (f" {shown_unit}".ljust(7), "dim"),
            )
            room = each - line_width(cell) - 1
            spark = _trace(model, rank, query, room) if room >= 4 and text != "n/a" else ""
            spans += [*cell, (fit(spark, room), "stale" if stale else tone), (" ", "")]
        lines.append(crop(spans, width))
    return lines


def _lost(label: str, rank: Rank, query: str, value: str) -> tuple[str, str, str, str, str, str]:
    """Return the item of an event rate, which only lights up when it is not 0."""
    rate = rank.get(query)
    return label, number(rate), "/s", query, "spark.warn", "warn" if rate and value != "stale" else value


def _latency(rank: Rank, width: int, stale: bool, *, people: bool) -> list[Line]:
    """Return latencies and the prefix hit ratio."""
    value = "stale" if stale else "bright"

    def two(name: str, low: str, high: str) -> Line:
        first, second = rank.latency(low), rank.latency(high)
        if first == second == "n/a":
            return pair(name, "n/a")
        return (
            (f"{name} p50 ", "label"),
            (f"{first:<6}", value),
            (" p95 ", "label"),
            (f"{second:<6}", value),
        )

    parts: list[Line] = []
    if people:
        parts.append(
            tuple((text.lstrip() if i == 0 else text, tone) for i, (text, tone) in enumerate(_people(rank, stale)))
        )
    parts += [two("TTFT", "ttft_p50", "ttft_p95"), two("ITL", "itl_p50", "itl_p95")]
    parts.append(pair("queue p95", rank.latency("queue_p95"), value))
    parts.append(pair("prefix hits", _prefix(rank), value))
    return flow([*parts, *_extras(rank)], width, 3 if width >= 120 else 2)


def block(model: Model, engine: Engine, width: int) -> list[Line]:
    """Return the lines of an engine with one rank, below its rule."""
    if not engine.ranks:
        return []
    rank = engine.ranks[0]
    stale = engine.stale is not None
    return [
        _kv_line(rank, width, stale),
        *_rates(model, rank, width, stale),
        *_latency(rank, width, stale, people=width < 120),
    ]


def table(engines: Sequence[Engine], width: int, *, hosts: bool = False) -> tuple[Line, list[tuple[Engine, Line]]]:
    """Return the header and one line per rank of a table of engines; every rank stands for itself."""
    several = len(engines) > 1
    without = set() if several else {"engine", "model"}
    without |= set() if any(len(engine.ranks) > 1 for engine in engines) else {"rank"}
    wanted = [column for column in _COLUMNS if column[0] not in without]
    shown: list[tuple[str, int, str]] = []
    left = width - 1
    for name, size, align in wanted:
        wide = {"engine": 24 if hosts else 18, "model": 12 if width < 100 else 20}.get(name, size)
        if left < wide:
            break
        shown.append((name, wide, align))
        left -= wide + 2
    bar_width = min(left - 2, 40)
    bar_width = bar_width if bar_width >= 8 else 0
    head: dict[str, Span] = {name: (name, "label") for name, _, _ in shown}
    lines: list[tuple[Engine, Line]] = []
    for engine in engines:
        for i, rank in enumerate(engine.ranks):
            cells = _cells(engine, rank)
            if i:
                cells["engine"] = cells["model"] = ("", "")
            elif hosts:
                cells["engine"] = (f"{engine.host} {engine.address}", "")
            usage = meter(rank.get("kv_usage"), bar_width, "stale" if engine.stale is not None else "bar.kv_used")
            lines.append((engine, crop(_table_line(cells, shown, usage if bar_width else ()), width)))
        if engine.hidden:
            lines.append((engine, crop(((f"     +{engine.hidden:,} more not shown", "dim"),), width)))
        if several and engine.problem:
            name = f" {engine.title} {engine.address}  " if not engine.ranks else "    "
            lines.append((engine, crop(((name, ""), *state(engine)), width)))
    return crop(_table_line(head, shown, ((" " * bar_width, ""),) if bar_width else ()), width), lines


_COLUMNS = (
    ("engine", 18, "<"),
    ("model", 12, "<"),
    ("rank", 4, "<"),
    ("KV used", 8, ">"),
    ("run", 4, ">"),
    ("wait", 5, ">"),
    ("gen/s", 6, ">"),
    ("evict/s", 7, ">"),
    ("TTFT p95", 9, ">"),
    ("prompt/s", 8, ">"),
    ("ITL p95", 8, ">"),
    ("prefix", 6, ">"),
    ("queue p95", 9, ">"),
    ("preempt/s", 9, ">"),
    ("tokens used of", 22, ">"),
)
"""(heading, width, alignment), the most important first; a narrow table drops the last ones."""


def _cells(engine: Engine, rank: Rank) -> dict[str, Span]:
    """Return one rank's cells by heading."""
    texts = {
        "engine": f"{engine.address} {engine.title}",
        "model": rank.model,
        "rank": f"dp{rank.dp_rank}" if rank.dp_rank and len(engine.ranks) > 1 else "-",
        "KV used": percent(rank.get("kv_usage")),
        "run": count(rank.get("running")),
        "wait": count(rank.get("waiting")),
        "gen/s": number(rank.get("generation_rate")),
        "evict/s": number(rank.get("eviction_rate")),
        "TTFT p95": rank.latency("ttft_p95"),
        "prompt/s": number(rank.get("prompt_rate")),
        "ITL p95": rank.latency("itl_p95"),
        "prefix": _prefix(rank),
        "queue p95": rank.latency("queue_p95"),
        "preempt/s": number(rank.get("preemption_rate")),
        "tokens used of": f"{count(rank.kv_used_tokens)} of {count(rank.get('kv_tokens'))}",
    }
    noted = {"wait": "waiting", "evict/s": "eviction_rate", "preempt/s": "preemption_rate"}
    cells: dict[str, Span] = {}
    for name, text in texts.items():
        tone = "warn" if name in noted and rank.get(noted[name]) else ""
        tone = "stale" if engine.stale is not None else tone
        cells[name] = (text, "dim" if text in ("n/a", "-") else tone)
    return cells


def _table_line(cells: Mapping[str, Span], shown: Sequence[tuple[str, int, str]], usage: Line) -> Line:
    """Return one line of the table; the bar `usage` follows the KV pool's column."""
    spans: list[Span] = [(" ", "")]
    for i, (name, size, align) in enumerate(shown):
        text, tone = cells[name]
        spans += [*([("  ", "")] if i else []), (fit(text, size, align), tone)]
        if name == "KV used" and usage:
            spans += [("  ", ""), *usage]
    return tuple(spans)


def overview(model: Model, width: int, room: int) -> list[Row]:
    """Return the engines for the overview: a block each where `room` lines allow it, else one line per rank."""
    engines = model.engines
    hosts = len({engine.host for engine in engines}) > 1
    blocks: list[Row] = []
    for engine in engines:
        lines = heading_lines(engine, width, hosts=hosts)
        if len(engine.ranks) > 1:
            header, rows = table([engine], width)
            lines += [header, *(line for _, line in rows)]
        else:
            lines += block(model, engine, width)
        blocks += keyed(engine.key, lines)
    if len(engines) <= 1 or len(blocks) <= room:
        return blocks
    header, rows = table(engines, width, hosts=hosts)
    title = rule((("Engines", "title"),), width)
    return [(None, title), (None, header), *((engine.key, line) for engine, line in rows)]
