"""``gpuwatch dashboards``: write the Grafana dashboards, with thresholds from the rules in use."""

from __future__ import annotations

import json
import os
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from gpuwatch.alerts.rulefile import RuleSet

NAME = "dashboards"
HELP = "write the Grafana dashboards and provisioning files"

PROMETHEUS = "http://127.0.0.1:9090"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``gpuwatch dashboards``."""
    parser.add_argument("folder", metavar="DIR", nargs="?", help="where to write; without it, list the dashboards")
    parser.add_argument("--force", action="store_true", help="overwrite files that gpuwatch did not write")
    parser.add_argument(
        "--prometheus", metavar="URL", default=PROMETHEUS, help=f"address in the data source file ({PROMETHEUS})"
    )


def run(args: argparse.Namespace) -> int:
    """List the dashboards or write them; return the exit code."""
    from gpuwatch.cli import FINE  # noqa: PLC0415  # --help needs none of these

    if args.folder is None:
        _list(args)
    else:
        _write(args)
    return FINE


def _list(args: argparse.Namespace) -> None:
    from gpuwatch.dashboards import DASHBOARDS  # noqa: PLC0415

    if args.json:
        rows = [
            {"uid": board.uid, "title": board.title, "description": board.description, "file": board.filename}
            for board in DASHBOARDS
        ]
        _print_json({"schema": 1, "dashboards": rows})
    elif not args.quiet:
        width = max(len(board.uid) for board in DASHBOARDS)
        for board in DASHBOARDS:
            print(f"{board.uid:{width}}  {board.description}")


def _write(args: argparse.Namespace) -> None:
    from gpuwatch.cli import UsageError  # noqa: PLC0415
    from gpuwatch.dashboards import DASHBOARDS, files  # noqa: PLC0415
    from gpuwatch.dashboards.provision import provisioning  # noqa: PLC0415

    if not args.folder.strip():
        raise UsageError("DIR is empty; allowed: the folder to write to, . for this one")
    if not args.prometheus.startswith(("http://", "https://")):
        raise UsageError(f"--prometheus {args.prometheus}: must begin with http:// or https://")
    folder = Path(args.folder).expanduser().absolute()
    uids = {PurePath(board.filename): board.uid for board in DASHBOARDS}
    texts = {PurePath(name): text for name, text in files(_rules(args)).items()}
    texts |= provisioning(folder, args.prometheus)
    try:
        for path in texts:
            if not args.force:
                _refuse_foreign(folder / path, uids.get(path, ""))
        for path, text in texts.items():
            _replace(folder / path, text)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written there: {error.strerror} ({error.filename or folder})") from None
    if args.json:
        kinds = {path: "dashboard" if path in uids else "provisioning" for path in texts}
        rows = [{"path": str(folder / path), "kind": kinds[path], "uid": uids.get(path)} for path in texts]
        _print_json({"schema": 1, "files": rows})
    elif not args.quiet:
        for path in texts:
            print(folder / path)


def _rules(args: argparse.Namespace) -> RuleSet:
    """Return the rules in use; a problem in one is an error."""
    from gpuwatch.cli import UsageError  # noqa: PLC0415
    from gpuwatch.cli.watching import config_in_use  # noqa: PLC0415
    from gpuwatch.pipeline.rules import rules_in_use  # noqa: PLC0415

    rules = rules_in_use(config_in_use(args))
    if rules.problems:
        raise UsageError(f"{rules.problems[0]}; gpuwatch rules check lists everything")
    return rules


def _refuse_foreign(path: Path, uid: str) -> None:
    """Refuse to overwrite a file that gpuwatch did not write."""
    from gpuwatch.cli import UsageError  # noqa: PLC0415
    from gpuwatch.dashboards.provision import is_ours  # noqa: PLC0415

    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return
    if not is_ours(text, uid):
        raise UsageError(f"{path}: exists and was not written by gpuwatch; --force overwrites it")


def _replace(path: Path, text: str) -> None:
    """Write a file as a whole or not at all: Grafana reads the folder all the time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        half.write_text(text, encoding="utf-8")
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def _print_json(data: dict[str, Any]) -> None:
    print(json.dumps(data, indent=1, ensure_ascii=False))
