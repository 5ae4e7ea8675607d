"""What ``report`` and ``compare`` share: the rules that judge, and a file that appears when it is complete."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.cli import UsageError

if TYPE_CHECKING:
    from gpuwatch.alerts.rulefile import RuleSet
    from gpuwatch.report.document import Document

PAGE = (".html", ".htm")
TEXT = (".md", ".markdown")


def check(output: str, *, force: bool = False) -> None:
    """Say early that an output is none.

    Raises:
        UsageError: the ending is neither of HTML nor of Markdown, the file exists, or its folder does not.
    """
    if output == "-":
        return
    path = Path(output)
    if path.suffix.lower() not in (*PAGE, *TEXT):
        raise UsageError(f"-o {output}: the name must end in .html or .md")
    if path.exists() and not force:
        raise UsageError(f"{output}: exists already; choose another name, or --force")
    if not path.parent.is_dir():
        raise UsageError(f"{output}: the folder {path.parent} does not exist")


def render(document: Document, output: str) -> str:
    """Return a document as HTML or Markdown, as the ending of `output` says."""
    from gpuwatch.report import html, markdown  # noqa: PLC0415  # --help does not need them

    return html.write(document) if Path(output).suffix.lower() in PAGE else markdown.write(document)


def write(output: str, text: str, *, force: bool = False) -> None:
    """Write to stdout, or to a file that appears when it is complete.

    Raises:
        UsageError: the file cannot be written.
    """
    if output == "-":
        sys.stdout.write(text)
        return
    check(output, force=force)
    path = Path(output)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        half.write_text(text, encoding="utf-8")
        half.replace(path)
    except OSError as error:
        raise UsageError(f"{output}: {error.strerror}") from None
    finally:
        half.unlink(missing_ok=True)


def rules_of(config: str | None) -> RuleSet:
    """Return the shipped rules and those that a configuration names.

    Raises:
        ConfigError: the configuration is wrong.
    """
    from gpuwatch.alerts import rulefile  # noqa: PLC0415  # --help does not need them
    from gpuwatch.config import load  # noqa: PLC0415

    own = load(config).rules if config else ()
    return rulefile.load(rulefile.shipped_paths(), [Path(path).expanduser() for path in own])
