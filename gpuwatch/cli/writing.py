"""What commands that write share: the rules that judge, and a file that appears when it is complete."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.cli import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from gpuwatch.alerts.rulefile import RuleSet
    from gpuwatch.report.document import Document

PAGE = (".html", ".htm")
TEXT = (".md", ".markdown")


def check(output: str, *, force: bool = False) -> None:
    """Say early that a report cannot be written there.

    Raises:
        UsageError: the ending is neither of HTML nor of Markdown, the file exists, or its folder does not.
    """
    if output == "-":
        return
    if Path(output).suffix.lower() not in (*PAGE, *TEXT):
        raise UsageError(f"-o {output}: the name must end in .html or .md")
    _check_place(Path(output), force=force)


def render(document: Document, output: str) -> str:
    """Return a document as HTML or Markdown, as the ending of `output` says."""
    from gpuwatch.report import html, markdown  # noqa: PLC0415  # --help does not need them

    return html.write(document) if Path(output).suffix.lower() in PAGE else markdown.write(document)


def write(output: str, parts: Iterable[str], *, force: bool = False) -> None:
    """Write to stdout, or to a file that appears when it is complete.

    Raises:
        UsageError: the file exists, or cannot be written.
    """
    if output == "-":
        sys.stdout.writelines(parts)
        return
    path = Path(output)
    _check_place(path, force=force)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with half.open("w", encoding="utf-8") as file:
            file.writelines(parts)
        half.replace(path)
    except OSError as error:
        raise UsageError(f"{output}: {error.strerror}") from None
    finally:
        half.unlink(missing_ok=True)


def rules_of(args: argparse.Namespace) -> RuleSet:
    """Return the shipped rules and those of the configuration in use; what is wrong with them is said.

    Raises:
        ConfigError: the configuration is wrong.
    """
    from gpuwatch.cli.watching import config_in_use  # noqa: PLC0415  # --help does not need them
    from gpuwatch.pipeline.rules import load_rules  # noqa: PLC0415

    return load_rules(config_in_use(args))


def _check_place(path: Path, *, force: bool) -> None:
    if path.exists() and not force:
        raise UsageError(f"{path}: exists already; choose another name")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} does not exist")
