"""Reports that the screen writes: on a key, and of the whole run when it is left."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.cli import UsageError

if TYPE_CHECKING:
    import argparse

    from gpuwatch.recording import Keep

DEMO = Path(__file__).resolve().parent.parent / "data" / "demo.rec"
_SPOOL_BYTES = 256 * 10**6
"""Most that is kept of a run whose recording nobody asked for: about two days."""
_NOTHING = "nothing is recorded yet: press r first, or start with --report FILE or --record FILE"


class Reports:
    """What is recorded or played, and the reports of it.

    With ``--report`` and without ``--record`` the run is recorded to a temporary file, which goes at the end.

    Args:
        args: The command line of the screen.

    Raises:
        UsageError: the report cannot be written where ``--report`` says.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._wanted: str = args.report or ""
        self._args = args
        self._quiet: bool = args.quiet
        self._folder: Path | None = None
        self.recording: str | None = args.replay or (str(DEMO) if args.demo else args.record)
        """The recording that a report would be of, if there is one."""
        self.shown: str | None = None
        """The recording that is on the screen in place of what is recorded: the demo that was opened with a key."""
        if self._wanted:
            self._check()

    @property
    def keep(self) -> Keep | None:
        """How much is kept of a recording that nobody asked for; None: there is none."""
        from gpuwatch.recording import Keep  # noqa: PLC0415  # --help does not need it

        return Keep(_SPOOL_BYTES) if self._folder is not None else None

    def spool(self) -> None:
        """Record to a temporary file where a report is wanted and nothing is recorded otherwise."""
        if self._wanted and self.recording is None:
            from tempfile import mkdtemp  # noqa: PLC0415  # most reports need no folder

            self._folder = Path(mkdtemp(prefix="gpuwatch-"))
            self.recording = str(self._folder / "run.rec")

    def write(self) -> str:
        """Write a report of what was recorded so far, in the present folder; return its name.

        Raises:
            RuntimeError: nothing was recorded.
            UsageError: the recording cannot be read or the report not be written.
        """
        path = f"gpuwatch-{time.time():.0f}.html"
        self._write(path, self.shown or self.recording)
        return path

    def finish(self) -> bool:
        """Write what ``--report`` asks for and take the temporary recording away; return whether that failed."""
        try:
            if self._wanted:
                self._write(self._wanted, self.recording)
                if not self._quiet:
                    print(f"gpuwatch tui: report in {self._wanted}", file=sys.stderr)
        except (RuntimeError, UsageError) as error:
            print(f"gpuwatch tui: {error}", file=sys.stderr)
            return True
        finally:
            if self._folder is not None:
                from shutil import rmtree  # noqa: PLC0415  # most reports need no folder

                rmtree(self._folder, ignore_errors=True)
        return False

    def _check(self) -> None:
        from gpuwatch.cli import writing  # noqa: PLC0415  # only where a report is wanted

        if self._wanted == "-":
            raise UsageError("--report: the screen has the terminal; name a file that ends in .html or .md")
        writing.check(self._wanted)

    def _write(self, output: str, recording: str | None) -> None:
        from gpuwatch.cli import writing  # noqa: PLC0415  # only where a report is wanted
        from gpuwatch.cli.report import text_of  # noqa: PLC0415  # as above

        if recording is None:
            raise RuntimeError(_NOTHING)
        text, ticks, _ = text_of(recording, output, writing.rules_of(self._args))
        if not ticks:
            raise RuntimeError(f"{recording}: holds no complete tick")
        writing.write(output, (text,))
