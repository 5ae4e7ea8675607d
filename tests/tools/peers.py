"""vllm-doctor and vllmstat beside gpuwatch on one real vLLM server: what each says, when, and what of it is wrong.

usage: python tests/tools/peers.py [--quick]         needs `tests/e2e/fetch.sh vllm peers tmux`

Three phases on a pool of 5,120 tokens: a calm load, a storm of 16 requests that do not fit, and the same calm load
after it. An observer of our own reads the page four times a second and is the truth. The table is printed and kept in
the cache folder.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "e2e")]

from follow import Follow  # noqa: E402  # the folders are on the path now
from vllm_server import CACHE, Load, VllmServer, read_page, tokens  # noqa: E402
from watcher import Observer  # noqa: E402

FLAGS = ["--max-model-len", "4096", "--num-gpu-blocks-override", "40", "--max-num-seqs", "16"]
BIN = CACHE / "peers" / "bin"
NAMES_THE_STORM = re.compile(r"kv_preemption_storm|preempt", re.IGNORECASE)
WRONG_WAY = re.compile(r"raise (?:--)?max-num-seqs|increase concurrency", re.IGNORECASE)
TABLE = CACHE / "peers.txt"


@dataclass(slots=True)
class Words:
    """What one program said: each sentence with the times at which it was there, and how often it was asked."""

    program: str
    seen: dict[str, list[float]] = field(default_factory=dict)
    asked: list[float] = field(default_factory=list)
    note: str = ""

    def say(self, when: float, sentences: list[str]) -> None:
        """Add what is there at one time."""
        self.asked.append(when)
        for sentence in sentences:
            self.seen.setdefault(sentence, []).append(when)

    def between(self, begin: float, end: float) -> dict[str, list[float]]:
        """Return the sentences of a span."""
        found = {text: [at for at in times if begin <= at < end] for text, times in self.seen.items()}
        return {text: times for text, times in found.items() if times}


class Doctor(threading.Thread):
    """Asks vllm-doctor again and again; each run is a process that reads the page several times."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(daemon=True)
        self.command = [str(BIN / "vllm-doctor"), "diagnose", "-o", "json", url + "/metrics"]
        self.folder = folder
        self.words = Words("vllm-doctor 0.6.0")
        self.ended = threading.Event()

    def run(self) -> None:
        """Ask until the end."""
        while not self.ended.wait(3):
            try:
                done = subprocess.run(
                    self.command, capture_output=True, text=True, timeout=60, cwd=self.folder, check=False
                )
            except subprocess.TimeoutExpired:
                self.words.note = "did not end within 60 s"
                continue
            try:
                checks = json.loads(done.stdout)["checks"]
            except (ValueError, KeyError):
                self.words.note = f"ended with {done.returncode}: {done.stderr.strip()[-120:]}"
                continue
            found = [check["finding"] for check in checks if check["finding"]]
            self.words.say(time.time(), [f"{f['severity']}: {f['title']} ({f['confidence']})" for f in found])


class Stat(threading.Thread):
    """Reads the advisor of vllmstat off its screen; its JSON has no advice."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.words = Words("vllmstat 0.9.1")
        self.socket = f"peers-{uuid.uuid4().hex[:8]}"
        self.ended = threading.Event()
        self._tmux("new-session", "-d", "-x", "180", "-y", "70", f"{BIN / 'vllmstat'} -u {url} --no-gpu")

    def _tmux(self, *args: str) -> str:
        command = ["tmux", "-L", self.socket, *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout

    def run(self) -> None:
        """Look until the end."""
        while not self.ended.wait(1):
            self.words.say(time.time(), advice(self._tmux("capture-pane", "-p")))
        self._tmux("kill-server")


def advice(screen: str) -> list[str]:
    """Return the sentences of the advisor's box, numbers taken out so that one advice stays one sentence."""
    box = screen.partition("CONFIG ADVISOR")[2].partition("╰")[0]
    lines = [line.strip("│ \n") for line in box.splitlines()]
    text = " ".join(line for line in lines if line)
    items = [item.strip() for item in re.split(r"(?=[✖⚠●✓])", text) if item.strip()]
    return [re.sub(r"\d+(?:\.\d+)?", "N", item) for item in items if item[0] in "✖⚠"]


def spoken(follow: Follow) -> Words:
    """Return what gpuwatch said, second by second."""
    words = Words("gpuwatch")
    views = follow.views()
    for view, following in zip(views, [*views[1:], None], strict=True):
        end = following.time if following else time.time()
        sentences = [
            f"{f['severity']}: {f['id']} {f['labels'].get('target', '')}".strip()
            for f in view.findings
            if f["state"] == "firing"
        ]
        for second in range(max(1, int(end - view.time))):
            words.say(view.time + second, sentences)
    return words


@dataclass(frozen=True, slots=True)
class Phase:
    """A span of the run; `cause` is when its trouble began, or its own begin."""

    name: str
    begin: float
    end: float
    cause: float


def faults(words: Words, phase: Phase) -> str:
    """Return what is wrong with what was said in a phase; nothing, where it is right."""
    said = words.between(phase.begin, phase.end)
    wrong = []
    if not [at for at in words.asked if phase.begin <= at < phase.end]:
        return words.note or "said nothing that could be read"
    if phase.name == "storm":
        named = [min(times) for text, times in said.items() if NAMES_THE_STORM.search(text)]
        if not named:
            wrong.append("does not name the storm")
        wrong += [f"advice that makes it worse: {text[:70]}" for text in said if WRONG_WAY.search(text)]
        last = max(at for at in words.asked if at < phase.end)
        if named and not any(last in times for text, times in said.items() if NAMES_THE_STORM.search(text)):
            wrong.append("no longer says so while it lasts")
    elif phase.name == "calm":
        wrong += [f"false alarm: {text[:70]}" for text in said if not text.startswith("info")]
    else:
        late = words.between(phase.end - 20, phase.end)
        wrong += [f"still there: {text[:70]}" for text in late if not text.startswith("info")]
    return "; ".join(wrong)


def rows(programs: list[Words], phases: list[Phase]) -> list[tuple[str, ...]]:
    """Return the lines of the table."""
    found = []
    for phase in phases:
        for words in programs:
            said = words.between(phase.begin, phase.end)
            lines = [
                (text[:88], f"{min(times) - phase.cause:+.0f} s", f"{max(times) - phase.cause:+.0f} s")
                for text, times in sorted(said.items(), key=lambda item: min(item[1]))
            ] or [("nothing", "", "")]
            for number, (text, first, last) in enumerate(lines):
                head = (phase.name, words.program) if number == 0 else ("", "")
                found.append((*head, text, first, last, faults(words, phase) if number == 0 else ""))
    return found


def table(lines: list[tuple[str, ...]]) -> str:
    """Return the table as text."""
    headings = ("phase", "program", "said", "first", "last", "wrong")
    widths = [max(len(line[column]) for line in (headings, *lines)) for column in range(5)]
    text = []
    for line in (headings, *lines):
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        text.append("  ".join((*cells, line[5])).rstrip())
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text) + "\n"


def figures(url: str) -> str:
    """Compare the rate of tokens in vllmstat's JSON with the page's own counter over the same seconds."""
    begun, before = time.monotonic(), read_page(url)("vllm:generation_tokens_total")
    done = subprocess.run(
        [str(BIN / "vllmstat"), "-u", url, "--no-gpu", "--once", "--json"], capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    spent, after = time.monotonic() - begun, read_page(url)("vllm:generation_tokens_total")
    shown = json.loads(done.stdout)["gen_tps"]
    return f"vllmstat --once --json: {shown:.0f} tokens/s; the counter of the page: {(after - before) / spent:.0f}"


def run(quick: bool) -> str:
    """Run the three phases and return the report."""
    calm, storming, after = (20, 40, 60) if quick else (60, 75, 90)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = VllmServer(FLAGS, folder / "vllm.log")
        try:
            server.wait_ready()
            for seed in range(3):
                server.complete(tokens(400, seed), 30)
            doctor, stat = Doctor(server.url, folder), Stat(server.url)
            with Observer(server.url) as truth, Follow("--engine", server.url, "--log", str(server.log)) as follow:
                doctor.start()
                stat.start()
                light = Load()
                begin = time.time()
                light.steady(server, 2, 400, 120, shared=256)
                time.sleep(calm)
                rate = figures(server.url)
                storm = time.time()
                burst = Load()
                burst.burst(server, 16, 600, 1500, seed=3)
                time.sleep(storming)
                over = time.time()
                burst.stop(timeout=180)
                calmed = time.time()
                time.sleep(after)
                light.stop()
                end = time.time()
                doctor.ended.set()
                stat.ended.set()
                doctor.join(70)
                stat.join(30)
                ours = spoken(follow)
        finally:
            server.stop()
    evicted = truth.first_eviction or storm
    phases = [
        Phase("calm", begin, storm, begin),
        Phase("storm", storm, over, evicted),
        Phase("after", calmed, end, calmed),
    ]
    moved = f"{truth.counter_moved - evicted:.0f} s" if truth.counter_moved else "never"
    head = (
        f"first eviction {evicted - storm:.0f} s after the burst, {truth.evictions} seen from outside; the engine's "
        f"counter moved {moved} after the first\nseconds: calm and after from the begin of the phase, storm from the "
        f"first eviction\n{rate}\n\n"
    )
    return head + table(rows([ours, doctor.words, stat.words], phases))


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter phases")
    options = parser.parse_args()
    missing = [name for name in ("vllm-doctor", "vllmstat") if not (BIN / name).exists()]
    if missing or not shutil.which("tmux"):
        print(f"missing: {', '.join(missing) or 'tmux'}; see tests/e2e/fetch.sh", file=sys.stderr)
        return 2
    report = run(options.quick)
    TABLE.write_text(report)
    print(report, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
