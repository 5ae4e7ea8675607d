"""``gpuwatch`` and ``python -m gpuwatch``."""

from __future__ import annotations

import sys


def main() -> int:
    """Run gpuwatch and return the exit code; Ctrl-C while it is still being loaded is one, too."""
    try:
        from gpuwatch.cli import main as run  # noqa: PLC0415  # loading takes a while, and may be interrupted

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
