"""What a report says of the starts of an engine, where it was started more than once."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatch.report.data import EngineRun, EngineStart, Setting


def flag_values(each: Iterable[tuple[Setting, ...]]) -> dict[str, tuple[str, ...]]:
    """Return by flag its values from start to start, neighbours that are equal once.

    A start of which no flag is known says nothing: what was not seen may have been given.
    """
    known = [{item.name: item.value or "given" for item in flags if item.name.startswith("--")} for flags in each]
    known = [flags for flags in known if flags]
    names = dict.fromkeys(name for flags in known for name in flags)
    return {
        name: tuple(value for value, _ in groupby(flags.get(name, "not given") for flags in known)) for name in names
    }


def pooled(engines: Iterable[EngineRun]) -> list[str]:
    """Say of each server that its figures hold several starts of it, and which of its flags were not the same."""
    return list(dict.fromkeys(_pooled(engine) for engine in engines if engine.starts))


def _pooled(engine: EngineRun) -> str:
    served = sum(start.served is not None for start in engine.starts)
    hold = "load and latency hold all of them together" if served > 1 else "it answered in one of them only"
    return f"{engine.server} was started {len(engine.starts)} times, {_compared(engine.starts)}: {hold}."


def _compared(starts: tuple[EngineStart, ...]) -> str:
    unknown = sum(not start.flags for start in starts)
    if unknown >= len(starts) - 1:
        return f"with flags that are known of {'none' if unknown == len(starts) else 'one'} of them"
    other = [
        f"{name} {' → '.join(values)}" for name, values in flag_values(s.flags for s in starts).items() if values[1:]
    ]
    text = f"with other flags ({'; '.join(other)})" if other else "with the same flags as far as was seen"
    return f"{text}; flags not known of {unknown}" if unknown else text
