"""``gpuwatch diagnose`` on large logs: speed against grep on the same file in cache, memory, and a small log.

python tests/bench/bench_diagnose.py [MEGABYTES]
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from rig import GPUWATCH, finished  # noqa: E402  # the folder is put on the path just above
from table import Row, print_table  # noqa: E402

FIXTURE = HERE.parent / "fixtures" / "logs" / "vllm_0_31_0_killed.log"
GREP = ["grep", "-cE", "ERROR|Xid|out of memory|Traceback"]
FULL, QUICK, SMALL = 1000, 128, 2
REPEATED = 32 << 20


def rows(quick: bool) -> list[Row]:
    """Measure; 1 GB unless `quick`."""
    with tempfile.TemporaryDirectory() as folder:
        large, small = Path(folder) / "large.log", Path(folder) / "small.log"
        write(large, QUICK if quick else FULL)
        write(small, SMALL)
        return [*_large(large), *_small(small)]


def _large(path: Path) -> list[Row]:
    megabytes = path.stat().st_size / 1e6
    grep = min(finished([*GREP, str(path)]).seconds for _ in range(3))
    runs = [finished([*GPUWATCH, "diagnose", str(path)]) for _ in range(2)]
    seconds, memory = min(run.seconds for run in runs), max(run.memory for run in runs)
    what = f"diagnose {megabytes:,.0f} MB of log"
    against = f"grep {grep:.2f} s"
    speed = megabytes / seconds
    return [
        Row(what, f"{speed:.0f} MB/s", "", None, speed, 100, "MB/s", at_least=True),
        Row(what, f"{seconds:.2f} s", against, seconds / grep, seconds / grep, 8, "x grep"),
        Row(what, f"{memory:.0f} MiB resident", "", None, memory, 150, "MiB"),
    ]


def _small(path: Path) -> list[Row]:
    seconds = min(finished([*GPUWATCH, "diagnose", str(path)]).seconds for _ in range(5))
    return [Row(f"diagnose {SMALL} MB with start-up", f"{seconds:.2f} s", "", None, seconds, 0.5, "s")]


def write(path: Path, megabytes: int) -> None:
    """Write a log in the shape of a real one: a start, then requests, statistics and debug lines, then a death."""
    start, end = FIXTURE.read_text(encoding="utf-8").split("Application startup complete.", 1)
    body = "".join(_second(random.Random(number), number) for number in range(REPEATED // 2000))
    piece = body.encode()
    with path.open("wb") as file:
        file.write(start.encode() + b"Application startup complete.\n")
        while file.tell() < megabytes * 1_000_000:
            file.write(piece[: megabytes * 1_000_000 - file.tell()])
        file.write(b"\n" + end.encode())


def _second(dice: random.Random, number: int) -> str:
    """Return the lines of one step of the statistics: requests, one of them with an id, and the figures."""
    head = "(APIServer pid=3296) INFO"
    clock = f"11-29 {number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}"
    whole = dice.randrange
    lines = [
        f"{head}:     10.0.{whole(255)}.{whole(255)}:{whole(30000, 60000)} - "
        f'"POST /v1/{dice.choice(["completions", "chat/completions"])} HTTP/1.1" 200 OK'
        for _ in range(8)
    ]
    lines.append(f"{head} {clock} [async_llm.py:271] Added request chatcmpl-{dice.randbytes(16).hex()}.")
    lines.append(
        f"{head} {clock} [loggers.py:271] Engine 000: Avg prompt throughput: {dice.random() * 3000:.1f} tokens/s, "
        f"Avg generation throughput: {dice.random() * 900:.1f} tokens/s, Running: {whole(40)} reqs, "
        f"Waiting: {whole(5)} reqs, GPU KV cache usage: {dice.random() * 90:.1f}%, "
        f"Prefix cache hit rate: {dice.random() * 60:.1f}%"
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print."""
    global FULL  # noqa: PLW0603  # the size is asked for on the command line
    FULL = int(sys.argv[1]) if len(sys.argv) > 1 else FULL
    print_table(rows(quick=False))


if __name__ == "__main__":
    main()
