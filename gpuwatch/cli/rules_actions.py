"""The actions of ``gpuwatch rules``."""

from __future__ import annotations

import difflib
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwatch.alerts import rulefile
from gpuwatch.alerts.presence import needs
from gpuwatch.alerts.rulefile import AlertRule
from gpuwatch.alerts.ruletest import run_file
from gpuwatch.cli import UsageError
from gpuwatch.cli.watching import config_in_use
from gpuwatch.diagnosis.registry import DIAGNOSES
from gpuwatch.pipeline.rules import rules_in_use
from gpuwatch.promql.analysis import comparisons
from gpuwatch.promql.duration import format_duration
from gpuwatch.series import METRICS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from gpuwatch.alerts.rulefile import Rule, RuleSet
    from gpuwatch.alerts.ruletest import FileResult
    from gpuwatch.alerts.yamlfile import Problem

FINE = 0
FAILED = 1
WRONG = 2
STDIN = Path("/dev/stdin")
"""What ``-`` stands for."""


def _list(args: argparse.Namespace) -> int:
    rules = rules_in_use(config_in_use(args))
    if args.json:
        _print_json({"schema": 1, "rules": [_as_json(rule) for rule in rules.rules], **_problems_json(rules)})
    elif not args.quiet:
        _print_table(rules.rules)
    if not args.json:
        _print_problems(rules.problems, rules.warnings, quiet=args.quiet)
    return WRONG if rules.problems else FINE


def _check(args: argparse.Namespace) -> int:
    if args.files:
        rules, files = rulefile.load(user=map(_path, args.files)), len(args.files)
    else:
        config = config_in_use(args)
        rules, files = rules_in_use(config), len(rulefile.shipped_paths()) + len(config.rules)
    if args.json:
        _print_json({"schema": 1, "rules": len(rules.rules), **_problems_json(rules)})
        return WRONG if rules.problems else FINE
    _print_problems(rules.problems, rules.warnings, quiet=args.quiet)
    if not args.quiet and not rules.problems:
        print(f"{_count(len(rules.rules), 'rule')} in {_count(files, 'file')}: fine")
    return WRONG if rules.problems else FINE


def _path(name: str) -> Path:
    return STDIN if name == "-" else Path(name)


def _test(args: argparse.Namespace) -> int:
    results = [run_file(path) for path in map(Path, args.files)]
    if args.json:
        _print_json({"schema": 1, "files": [_result_json(result) for result in results]})
    else:
        for result in results:
            _print_result(result, quiet=args.quiet)
    if any(result.problems for result in results):
        return WRONG
    return FINE if all(result.passed for result in results) else FAILED


def _explain(args: argparse.Namespace) -> int:
    rules = rules_in_use(config_in_use(args))
    found = [rule for rule in rules.alerts if args.name in (rule.name, rule.id)]
    if not found and _section(args.name):
        _explain_section(args)
        return FINE
    if not found:
        known = sorted({name for rule in rules.alerts for name in (rule.name, rule.id) if name})
        raise UsageError(f"no alerting rule is called {args.name!r}; {_suggest(args.name, known)}")
    if args.json:
        _print_json({"schema": 1, "rules": [_explanation(rule) for rule in found]})
    elif not args.quiet:
        sections = filter(None, map(_rest_of_section, dict.fromkeys(rule.id for rule in found)))
        print("\n\n".join([*map(_explanation_text, found), *sections]))
    return FINE


def _explain_section(args: argparse.Namespace) -> None:
    """Print what the runbook says about a finding that no rule detects: one that a log or a file shows."""
    if args.json:
        _print_json({"schema": 1, "rules": [], "runbook": _section(args.name)})
    elif not args.quiet:
        print(_section(args.name))


def _suggest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, 3, 0.5)
    return f"did you mean {' or '.join(close)}?" if close else "gpuwatch rules list shows all"


def _explanation(rule: AlertRule) -> dict[str, Any]:
    """Return everything that can be said about a rule without data."""
    alternatives = [sorted(names) for names in needs(rule)]
    metrics = {name: _meaning(name) for names in alternatives for name in names}
    return {
        **_as_json(rule),
        "title": DIAGNOSES[rule.id].title if rule.id in DIAGNOSES else "",
        "annotations": dict(rule.annotations),
        "needs": alternatives,
        "metrics": metrics,
        "comparisons": [comparison.text for comparison in comparisons(rule.plan)],
        "runbook": first_paragraph(_runbook(), rule.id),
        "section": _section(rule.id),
    }


def _meaning(name: str) -> str:
    base = next((name.removesuffix(end) for end in ("_bucket", "_count", "_sum") if name.endswith(end)), name)
    metric = METRICS.get(name) or METRICS.get(base)
    return metric.help if metric is not None else ""


def _runbook() -> str:
    """Return the runbook; empty where it is not installed."""
    package = Path(rulefile.__file__).resolve().parents[1]
    for path in (package / "data" / "runbook.md", package.parent / "docs" / "runbook.md"):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return ""


def _section(finding: str) -> str:
    return section(_runbook(), finding)


def _rest_of_section(finding: str) -> str:
    """Return what the runbook says about a finding after the first paragraph, which stands above the rule."""
    _, _, rest = _section(finding).partition("\n\n")
    return f"runbook:\n{textwrap.indent(rest, '    ')}" if rest else ""


def section(runbook: str, finding: str) -> str:
    """Return the text under the heading `finding` of a Markdown text, up to the next heading of its level or above."""
    heading = re.search(rf"^(#+) *`?{re.escape(finding)}`? *$", runbook, re.MULTILINE)
    if not finding or heading is None:
        return ""
    rest = runbook[heading.end() :]
    end = re.search(rf"^#{{1,{len(heading[1])}}} ", rest, re.MULTILINE)
    return (rest[: end.start()] if end else rest).strip()


def first_paragraph(runbook: str, finding: str) -> str:
    """Return the first paragraph under the heading `finding` of a Markdown text, without marks for bold type."""
    heading = re.search(rf"^#+ *`?{re.escape(finding)}`? *$", runbook, re.MULTILINE)
    if not finding or heading is None:
        return ""
    paragraph = runbook[heading.end() :].strip().split("\n\n", 1)[0]
    if paragraph.startswith("#"):
        return ""
    return " ".join(paragraph.replace("**", "").split()).removeprefix("What it means. ")


def _explanation_text(rule: AlertRule) -> str:
    info = _explanation(rule)
    lines = [f"{rule.name}  {rule.severity}  {rule.id}".rstrip(), f"  {rule.file}:{rule.line}", ""]
    meaning = info["runbook"] or info["title"]
    if meaning:
        lines += [*_wrapped(meaning), ""]
    lines += ["fires when this has a result" + _duration_text(rule) + ":"]
    lines += [f"    {line}" for line in rule.expr.splitlines()]
    if info["comparisons"]:
        lines += ["", "compares:", *(f"    {text}" for text in info["comparisons"])]
    lines += ["", "needs:" if info["metrics"] else "needs: nothing, it can always be evaluated"]
    for number, names in enumerate(info["needs"]):
        if number:
            lines.append("  or")
        lines += [f"    {name}  {info['metrics'][name]}".rstrip() for name in names]
    for key in ("summary", "description", "runbook_url"):
        if key in rule.annotations:
            lines += ["", f"{key}:", *_wrapped(rule.annotations[key])]
    return "\n".join(lines)


def _duration_text(rule: AlertRule) -> str:
    text = f" for {format_duration(rule.hold)}" if rule.hold else ""
    return text + (f" (kept firing for {format_duration(rule.keep)})" if rule.keep else "")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent="    ", subsequent_indent="    ")


def _as_json(rule: Rule) -> dict[str, Any]:
    common = {
        "name": rule.name,
        "expr": rule.expr,
        "labels": dict(rule.labels),
        "group": rule.group,
        "file": rule.file,
        "line": rule.line,
        "shipped": rule.shipped,
    }
    if not isinstance(rule, AlertRule):
        return {"type": "recording", **common}
    extra = {"id": rule.id, "severity": rule.severity, "for": rule.hold / 1000, "keep_firing_for": rule.keep / 1000}
    return {"type": "alerting", **common, **extra}


def _problems_json(rules: RuleSet) -> dict[str, Any]:
    return {
        "problems": [_problem_json(problem) for problem in rules.problems],
        "warnings": [_problem_json(problem) for problem in rules.warnings],
    }


def _problem_json(problem: Problem) -> dict[str, Any]:
    return {"file": problem.file, "line": problem.line, "rule": problem.rule, "message": problem.message}


def _result_json(result: FileResult) -> dict[str, Any]:
    return {
        "file": result.file,
        "passed": result.passed,
        "checked": result.checked,
        "failures": [
            {"line": failure.line, "test": failure.test, "message": failure.message} for failure in result.failures
        ],
        "problems": [_problem_json(problem) for problem in result.problems],
        "warnings": [_problem_json(problem) for problem in result.warnings],
    }


def _print_result(result: FileResult, *, quiet: bool) -> None:
    _print_problems(result.problems, result.warnings, quiet=quiet)
    for failure in result.failures:
        print(failure)
    if result.problems:
        print(f"{result.file}: not run", file=sys.stderr)
    elif result.failures:
        print(f"{result.file}: FAILED, {len(result.failures)} of {_count(result.checked, 'check')}")
    elif not quiet:
        print(f"{result.file}: {_count(result.checked, 'check')} passed")


def _print_table(rules: Sequence[Rule]) -> None:
    rows = [("RULE", "SEVERITY", "FOR", "FINDING", "FILE")]
    for rule in rules:
        where = "shipped" if rule.shipped else rule.file
        if isinstance(rule, AlertRule):
            rows.append((rule.name, rule.severity, format_duration(rule.hold), rule.id, where))
        else:
            rows.append((rule.name, "record", "", "", where))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_problems(problems: Sequence[Problem], warnings: Sequence[Problem], *, quiet: bool) -> None:
    for problem in problems:
        print(problem, file=sys.stderr)
    if not quiet:
        for warning in warnings:
            print(f"{warning} (warning)", file=sys.stderr)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": _list,
    "check": _check,
    "test": _test,
    "explain": _explain,
}
"""What each action runs."""
