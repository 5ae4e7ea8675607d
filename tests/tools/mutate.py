"""Change the numbers of the shipped rules and see whether their tests notice.

usage: python tests/tools/mutate.py [--only TEXT] [--quiet]     exit code 1 when fewer than 90 % are noticed

For every alert of ``rules/*.yml`` each number of the expression is doubled and halved, and ``for`` is set to 0. Label
matchers, windows, offsets and the quantile of a histogram are left alone. A change is noticed when at least one
expectation of ``rules/tests`` about that alert no longer holds. Everything runs in this process, on our own engine.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpuwatch.alerts import rulefile, testfile  # noqa: E402  # the folder is on the path now
from gpuwatch.alerts.rulefile import AlertRule, Group, RecordRule, RuleSet  # noqa: E402
from gpuwatch.alerts.ruletest import _Runner  # noqa: E402
from gpuwatch.alerts.testfile import RuleTestFile, Scenario  # noqa: E402
from gpuwatch.promql.plan import parse  # noqa: E402

WANTED = 0.9
TOKEN = re.compile(
    r"""
    (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<window>\[[^\]]*\])
    | (?P<duration>\d+(?:ms|[smhdwy])(?:\d+(?:ms|[smhdwy]))*)
    | (?P<quantile>(?:histogram_quantile|quantile_over_time|quantile)\s*\(\s*\d[\d.eE]*)
    | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One alert with one change."""

    rule: AlertRule
    what: str


@dataclass(frozen=True, slots=True)
class Case:
    """One scenario with its expectations about one alert only."""

    file: RuleTestFile
    scenario: Scenario
    records: tuple[Group, ...]


def numbers(expr: str) -> list[tuple[int, int]]:
    """Return where the numbers of `expr` are that decide something; zeros have no double and no half."""
    return [
        match.span() for match in TOKEN.finditer(expr) if match.lastgroup == "number" and float(match.group()) != 0.0
    ]


def mutants(rule: AlertRule) -> list[Mutant]:
    """Return every changed form of `rule`."""
    found = []
    for begin, end in numbers(rule.expr):
        literal = rule.expr[begin:end]
        line = rule.expr.count("\n", 0, begin) + 1
        for title, factor in (("x2", 2.0), ("/2", 0.5)):
            changed = f"{float(literal) * factor!r}"
            expr = rule.expr[:begin] + changed + rule.expr[end:]
            near = " ".join(rule.expr[max(0, begin - 48) : end].split())
            what = f"expression line {line}: {literal} {title} = {changed}    … {near}"
            found.append(Mutant(replace(rule, expr=expr, plan=parse(expr)), what))
    if rule.hold:
        found.append(Mutant(replace(rule, hold=0), f"for: {rule.hold / 1000:g}s = 0s"))
    return found


def cases() -> dict[str, list[Case]]:
    """Return the scenarios by the name of the alert that they expect something of; coarse sampling first."""
    found: defaultdict[str, list[Case]] = defaultdict(list)
    for path in sorted((ROOT / "rules/tests").glob("*.yml")):
        file = testfile.read(path)
        rules = rulefile.load(user=file.rule_files)
        problems = (*file.problems, *rules.problems)
        if problems:
            raise SystemExit("\n".join(map(str, problems)))
        records = tuple(
            replace(group, rules=kept)
            for group in rules.groups
            if (kept := tuple(rule for rule in group.rules if isinstance(rule, RecordRule)))
        )
        for scenario in file.tests:
            for name in {test.alertname for test in scenario.alerts}:
                own = tuple(test for test in scenario.alerts if test.alertname == name)
                found[name].append(Case(file, replace(scenario, alerts=own, exprs=()), records))
    for name in found:
        found[name].sort(key=lambda case: case.scenario.end / case.file.evaluation_interval)
    return dict(found)


def holds(rule: AlertRule, case: Case) -> bool:
    """Return whether every expectation of `case` holds for `rule`."""
    group = Group(rule.group, rule.file, 0, (rule,))
    return not _Runner(case.file, case.scenario, RuleSet((*case.records, group))).run()


def survivors(rule: AlertRule, tests: list[Case]) -> tuple[int, list[Mutant]]:
    """Return how many changes were tried on `rule`, and those that no test noticed."""
    broken = [case for case in tests if not holds(rule, case)]
    if broken:
        where = f"{broken[0].file.path.name}:{broken[0].scenario.line}"
        raise SystemExit(f"{rule.name} fails {where} unchanged; mend that first")
    tried = mutants(rule)
    left = []
    for mutant in tried:
        for position, case in enumerate(tests):
            if not holds(mutant.rule, case):
                tests.insert(0, tests.pop(position))  # what notices one change often notices the next
                break
        else:
            left.append(mutant)
    return len(tried), left


def main() -> int:
    """Try every change and print those that nobody noticed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="only rules whose file or name contains TEXT")
    parser.add_argument("--quiet", action="store_true", help="only the survivors and the total")
    options = parser.parse_args()
    rules = rulefile.load(rulefile.shipped_paths())
    if rules.problems:
        raise SystemExit("\n".join(map(str, rules.problems)))
    tests = cases()
    begun = time.monotonic()
    total = noticed = 0
    for rule in rules.alerts:
        if options.only not in f"{Path(rule.file).name} {rule.name}":
            continue
        tried, left = survivors(rule, tests.get(rule.name, []))
        total += tried
        noticed += tried - len(left)
        if left or not options.quiet:
            print(f"{Path(rule.file).name}: {rule.name}: {tried - len(left)} of {tried} noticed", flush=True)
        for mutant in left:
            print(f"    survives  {mutant.what}", flush=True)
    if not total:
        print("no rule was changed", file=sys.stderr)
        return 1
    share = noticed / total
    print(
        f"{noticed} of {total} changes noticed ({share:.1%}, wanted {WANTED:.0%}) in {time.monotonic() - begun:.0f} s"
    )
    return 0 if share >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
