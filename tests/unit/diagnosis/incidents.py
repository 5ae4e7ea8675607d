"""Incidents for tests: files are written, read and judged as ``gpuwatch diagnose`` does it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.pipeline.postmortem import investigate

if TYPE_CHECKING:
    from gpuwatch.alerts.rulefile import RuleSet
    from gpuwatch.diagnosis.finding import Finding

CASES = Path(__file__).parents[2] / "fixtures" / "cases"
NOW = 1_790_000_000_000


def no_recording() -> RuleSet:
    """Stand for the rules, which only a recording needs."""
    raise AssertionError("none of the files is a recording")


@dataclass(frozen=True, slots=True)
class Case:
    """One case: the files, the launch command, and what must, may and must not come first."""

    name: str
    want: str
    also: tuple[str, ...]
    never: tuple[str, ...]
    flags: str
    files: dict[str, str]


def load(path: Path) -> Case:
    head, *parts = path.read_text(encoding="utf-8").split("=== ")
    keys = dict(line.split(": ", 1) for line in head.splitlines())
    files = {name: body for name, _, body in (part.partition("\n") for part in parts)}
    return Case(
        path.stem,
        keys["want"],
        tuple(keys.get("also", "").split()),
        tuple(keys.get("never", "").split()),
        keys.get("flags", ""),
        files,
    )


def every_case() -> list[Case]:
    return [load(path) for path in sorted(CASES.glob("*.txt"))]


class Verdict:
    """What came of an incident."""

    def __init__(self, folder: Path, files: dict[str, str], flags: str = "") -> None:
        paths = []
        for name, text in files.items():
            path = folder / name
            path.write_text(text, encoding="utf-8")
            paths.append(str(path))
        result = investigate(paths, flags, NOW, no_recording)
        self.findings = result.findings
        self.not_enough = result.not_enough
        self.refused = result.refused

    @property
    def ids(self) -> list[str]:
        return [finding.id for finding in self.findings]

    @property
    def firm(self) -> list[str]:
        return [finding.id for finding in self.findings if finding.severity != "info"]

    def __getitem__(self, id_: str) -> Finding:
        (finding,) = [finding for finding in self.findings if finding.id == id_]
        return finding

    def move(self, id_: str, flag: str) -> tuple[str | None, str | None]:
        """The advised change of one flag."""
        (advice,) = [advice for advice in self[id_].advice if advice.flag == flag]
        return advice.current, advice.proposed

    def said(self, id_: str) -> str:
        """Everything that one finding says."""
        finding = self[id_]
        return "\n".join(
            [finding.cause, *(each.text for each in finding.evidence), *(each.text for each in finding.advice)]
        )


def judge_log(folder: Path, text: str, flags: str = "", **others: str) -> Verdict:
    """Judge one log, and other files given by their name without ``.txt``."""
    files = {"server.log": text, **{f"{name}.txt": body for name, body in others.items()}}
    return Verdict(folder, files, flags)
