"""``gpuwatch bundle``: recordings, log excerpts, flags and versions of an incident in one file, without secrets."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gpuwatch.cli import FINE, NOTHING, WRONG, UsageError, watching
from gpuwatch.cli.signals import run_for

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from gpuwatch.cli.hidden import Hidden
    from gpuwatch.model import Fact
    from gpuwatch.pipeline.postmortem import PostMortem
    from gpuwatch.report.probes import ProbeData

NAME = "bundle"
HELP = "pack recordings, log excerpts, flags and versions of an incident into one file, with secrets cut out"

DEFAULT_SECONDS = 10.0
MAX_SECONDS = 24 * 3600.0
ENDINGS = (".tar.gz", ".tgz")
README = """What is in here was packed by `gpuwatch bundle` to be handed on.

findings.md      what gpuwatch concludes, with evidence and advice
findings.json    the same as `gpuwatch diagnose --json` prints it
facts.json       launch flags, versions and sizes that the logs, pages and command lines state
doctor.json      what gpuwatch can see on the machine (only where it was packed there)
recordings/      play one with `gpuwatch tui --replay FILE`, judge one with `gpuwatch diagnose FILE`
probes/          results of probes; show them with `gpuwatch report RECORDING --probe FILE`
logs/            the recognised lines of each log, with their numbers; other lines are not in here
manifest.json    the inputs, and what was left out and why

Keys, tokens, passwords, prompts, answers, user names and home folders were cut out. Hosts, addresses and the UUIDs of
GPUs have other names, the same ones throughout. Look through it before you hand it on.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        help="recordings, logs and other files; without any, this machine is watched",
    )
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the bundle: NAME.tar.gz")
    parser.add_argument(
        "--for", dest="seconds", metavar="SECONDS", type=float, help="how long this machine is watched (default: 10)"
    )
    parser.add_argument("--engine", metavar="URL", action="append", default=[], help="engine to watch")
    parser.add_argument("--log", metavar="LOG", action="append", default=[], help="engine log to watch and to pack")
    parser.set_defaults(interval=None)


def run(args: argparse.Namespace) -> int:
    """Pack, and return the exit code."""
    _check(args)
    from tempfile import TemporaryDirectory  # noqa: PLC0415  # no other command needs it

    with TemporaryDirectory(prefix="gpuwatch-") as folder:
        files, machine = list(args.files), None
        if not files:
            files, machine = _watch(args, Path(folder) / "now.rec")
        bundle = Bundle(PurePath(args.output).name.partition(".")[0] or "bundle")
        code = bundle.fill(files, args, machine)
        for path, why in bundle.left_out:
            print(f"gpuwatch bundle: {path}: {why}", file=sys.stderr)
        if code == FINE:
            bundle.save(args.output)
    if args.json:
        from gpuwatch.cli import output  # noqa: PLC0415  # --help does not need it

        output.print_json({"schema": output.SCHEMA, "bundle": args.output, **bundle.manifest()})
    elif code == NOTHING:
        why = "in no file was anything recognised" if args.files else "no GPU, engine or log answered"
        print(f"gpuwatch bundle: nothing to pack: {why}", file=sys.stderr)
    elif code == FINE and not args.quiet:
        print(f"{args.output}: {Path(args.output).stat().st_size / 1000:,.0f} kB")
        for name in bundle.names:
            print(f"  {name}")
    return code


def _check(args: argparse.Namespace) -> None:
    """Refuse what cannot work before anything is done.

    Raises:
        UsageError: it cannot.
    """
    output = Path(args.output)
    if not args.output.endswith(ENDINGS):
        raise UsageError(f"-o {args.output}: the name must end in .tar.gz or .tgz")
    if os.path.lexists(output):
        raise UsageError(f"{output}: exists already; choose another name")
    if not output.parent.is_dir():
        raise UsageError(f"{output}: the folder {output.parent} does not exist")
    for name in args.files:
        if name == "-" or (Path(name).exists() and not Path(name).is_file()):
            raise UsageError(f"{name}: is no regular file; save it to one first")
    if args.seconds is not None and not 1 <= args.seconds <= MAX_SECONDS:
        raise UsageError(f"--for is {args.seconds:g}; allowed: 1 to {MAX_SECONDS:g} seconds")
    if args.files and (args.engine or args.log or args.seconds is not None):
        raise UsageError("files are packed as they are; --engine, --log and --for are for watching this machine")


def _watch(args: argparse.Namespace, path: Path) -> tuple[list[str], list[dict[str, Any]] | None]:
    """Record this machine for a while; return what there is to pack, and what can be seen of the machine."""
    from dataclasses import asdict  # noqa: PLC0415  # --help does not need any of these

    from gpuwatch.cli import doctor  # noqa: PLC0415
    from gpuwatch.clock import SystemClock  # noqa: PLC0415
    from gpuwatch.pipeline.live import Live  # noqa: PLC0415

    config = watching.config_of(args)
    seconds = args.seconds if args.seconds is not None else DEFAULT_SECONDS
    if not args.quiet:
        print(f"gpuwatch: watching this machine for {seconds:g} s", file=sys.stderr, flush=True)
    live = Live(config, SystemClock())
    live.record(str(path))
    run_for(seconds, live)
    states = live.pipeline.source_states(live.clock.now())
    if not any(state.age is not None for state in states if state.kind in ("nvml", "engine", "log")):
        return [], None
    logs = [state.target for state in states if state.kind == "log" and Path(state.target).is_file()]
    return [str(path), *logs], [asdict(check) for check in doctor.examine(config, live.clock)]


class Bundle:
    """What is packed, by name. `left_out` are inputs that could not be read, and why."""

    def __init__(self, folder: str) -> None:
        from gpuwatch.cli.hidden import Hidden  # noqa: PLC0415  # --help does not need it

        self.hidden: Hidden = Hidden()
        self.left_out: list[tuple[str, str]] = []
        self._folder = folder
        self._members: dict[str, bytes] = {}
        self._inputs: list[dict[str, Any]] = []

    @property
    def names(self) -> list[str]:
        """The names of what is packed."""
        return list(self._members)

    def fill(self, files: Sequence[str], args: argparse.Namespace, machine: list[dict[str, Any]] | None) -> int:
        """Judge the files and take what may be handed on of them; return the exit code."""
        from gpuwatch.cli import writing  # noqa: PLC0415  # --help does not need any of these
        from gpuwatch.pipeline.postmortem import investigate  # noqa: PLC0415

        if not files:
            return NOTHING
        result = investigate(files, "", time.time_ns() // 1_000_000, lambda: writing.rules_of(args))
        self.left_out += result.refused
        if not result.inputs:
            return WRONG
        probes = self._probes([given.path for given in result.inputs if given.kind == "unknown"])
        if not probes and all(given.kind == "unknown" or given.path in result.empty for given in result.inputs):
            return NOTHING
        facts: list[Fact] = []
        recordings = [given.path for given in result.inputs if given.kind == "recording"]
        for path in recordings:
            facts += self._learn(path)
        for path in recordings:
            self._recording(path)
        for path, probe in probes.items():
            self._probe(path, probe)
        for given in result.inputs:
            if given.kind not in ("recording", "flags") and given.path not in probes:
                facts += self._excerpt(given.path)
        self._findings(result)
        self._facts(facts)
        if machine is not None:
            self._json("doctor.json", [{key: self._text(value) for key, value in check.items()} for check in machine])
        self._json("manifest.json", self.manifest())
        self._members["README.txt"] = README.encode()
        return FINE

    def save(self, output: str) -> None:
        """Write the file; it appears when it is complete.

        Raises:
            UsageError: it cannot be written.
        """
        path = Path(output)
        half = path.with_name(f".{path.name}.{os.getpid()}")
        now = int(time.time())
        try:
            import tarfile  # noqa: PLC0415  # no other command needs it

            with tarfile.open(half, "x:gz") as archive:
                for name, content in self._members.items():
                    about = tarfile.TarInfo(f"{self._folder}/{name}")
                    about.size, about.mtime, about.mode = len(content), now, 0o644
                    archive.addfile(about, io.BytesIO(content))
            os.link(half, path)
        except FileExistsError:
            raise UsageError(f"{output}: exists already; choose another name") from None
        except OSError as error:
            raise UsageError(f"{output}: {error.strerror}") from None
        finally:
            half.unlink(missing_ok=True)

    def manifest(self) -> dict[str, Any]:
        """Return what went in, what came of it, and what was left out."""
        from gpuwatch import __version__  # noqa: PLC0415  # --help does not need it

        return {
            "gpuwatch": __version__,
            "created": int(time.time() * 1000),
            "inputs": self._inputs,
            "left_out": [{"path": self._text(path), "why": self._text(why)} for path, why in self.left_out],
            "members": sorted(self._members),
        }

    # The parts

    def _learn(self, path: str) -> list[Fact]:
        """Take note of the names in a recording; return its facts, the newest of each."""
        from gpuwatch.diagnosis.context import Facts  # noqa: PLC0415  # --help does not need it
        from gpuwatch.recording import Reader  # noqa: PLC0415  # as above
        from gpuwatch.sources.files.read import playable  # noqa: PLC0415  # as above

        facts = Facts()
        with playable(path) as file:
            reader = Reader(file)
            self.hidden.host(reader.header.host)
            for tick in reader.ticks():
                self.hidden.learn(tick)
                for batch in tick.batches:
                    facts.update(batch.facts)
        return list(facts.all())

    def _recording(self, path: str) -> None:
        """Write a recording again, with other names."""
        from dataclasses import replace  # noqa: PLC0415  # --help does not need any of these
        from tempfile import TemporaryDirectory  # noqa: PLC0415  # no other command needs it

        from gpuwatch.recording import Reader, Writer  # noqa: PLC0415
        from gpuwatch.sources.files.read import playable  # noqa: PLC0415

        with playable(path) as file, TemporaryDirectory(prefix="gpuwatch-") as folder:
            reader = Reader(file)
            header = replace(
                reader.header, host=self.hidden.host(reader.header.host), note=self.hidden.text(reader.header.note)
            )
            writer = Writer(Path(folder) / "copy.rec", header)
            for tick in reader.ticks():
                batches, forgotten = self.hidden.tick(tick)
                for target in forgotten:
                    writer.forget(target)
                for batch in batches:
                    writer.write(batch)
                writer.tick(tick.time)
            writer.close()
            if writer.error:
                raise UsageError(writer.error)
            self._add("recordings", path, ".rec", (Path(folder) / "copy.rec").read_bytes())
            cut = reader.cut.replace(file, path)
        self._inputs.append({"path": self._name(path), "kind": "recording", "ticks": writer.ticks, "note": cut})

    def _probes(self, paths: Sequence[str]) -> dict[str, ProbeData]:
        """Return the results of probes among files that nothing else was recognised in."""
        from gpuwatch.report.probes import ProbeFileError, read  # noqa: PLC0415  # --help does not need it

        found = {}
        for path in paths:
            with suppress(ProbeFileError):
                found[path] = read(path)
        return found

    def _probe(self, path: str, probe: ProbeData) -> None:
        """Write the result of a probe with other names; it holds no prompt and no answer."""
        server, host = probe.data.get("server"), None
        if isinstance(server, dict):
            with suppress(ValueError):
                host = urlsplit(str(server.get("url"))).hostname
        if host:
            self.hidden.host(host)
        content = json.dumps(self._everywhere(probe.data), indent=1, ensure_ascii=False)
        self._add("probes", path, ".json", f"{content}\n".encode("utf-8", "replace"))
        self._inputs.append({"path": self._name(path), "kind": f"result of probe {probe.name}"})

    def _excerpt(self, path: str) -> list[Fact]:
        """Keep the recognised lines of a file; return its facts."""
        from gpuwatch.sources.files.lines import recognise  # noqa: PLC0415  # --help does not need it
        from gpuwatch.sources.files.opening import UnreadableError, open_input  # noqa: PLC0415  # as above
        from gpuwatch.sources.files.read import read_file  # noqa: PLC0415  # as above
        from gpuwatch.sources.files.scan import Scanner  # noqa: PLC0415  # as above

        try:
            text = read_file(path, time.time_ns() // 1_000_000)
            scanner = Scanner()
            opened = open_input(path)
            try:
                for block in opened.blocks():
                    scanner.feed(block)
            finally:
                opened.close()
        except UnreadableError as error:
            self.left_out.append((path, str(error)))
            return []
        hits = [hit for hit in scanner.finish() if recognise(hit.data, hit.pattern) is not None]
        lines = [f"{hit.number}: {self.hidden.text(hit.data.decode('utf-8', 'replace'))}\n" for hit in hits]
        if not lines:
            self.left_out.append((path, "nothing was recognised in it"))
        else:
            self._add("logs", path, ".txt", "".join(lines).encode("utf-8", "replace"))
        self._inputs.append({"path": self._name(path), "kind": text.kind, "lines": text.lines, "kept": len(lines)})
        return list(text.facts)

    def _findings(self, result: PostMortem) -> None:
        from gpuwatch.cli import output  # noqa: PLC0415  # --help does not need it
        from gpuwatch.cli.markdown import report  # noqa: PLC0415  # as above

        self._members["findings.md"] = ("\n".join(map(self.hidden.text, report(result).split("\n"))) + "\n").encode(
            "utf-8", "replace"
        )
        found = output.report_json([], result.findings, result.not_enough)
        self._json("findings.json", self._everywhere({**found, "inputs": self._inputs}))

    def _facts(self, facts: list[Fact]) -> None:
        hidden = map(self.hidden.fact, facts)
        self._json(
            "facts.json",
            [
                {"server": fact.server, "key": fact.key, "value": fact.value, "source": fact.source, "line": fact.line}
                for fact in hidden
            ],
        )

    def _everywhere(self, data: Any) -> Any:
        """Return JSON data with every text in it made fit to hand on."""
        if isinstance(data, dict):
            return {
                key: self.hidden.host(value) if key == "host" and isinstance(value, str) else self._everywhere(value)
                for key, value in data.items()
            }
        if isinstance(data, list):
            return [self._everywhere(item) for item in data]
        return self._text(data)

    def _text(self, value: Any) -> Any:
        return self.hidden.text(value) if isinstance(value, str) else value

    def _json(self, name: str, data: Any) -> None:
        self._members[name] = (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "replace")

    def _add(self, folder: str, path: str, ending: str, content: bytes) -> None:
        stem = self._name(path).removesuffix(ending)
        name, number = f"{folder}/{stem}{ending}", 2
        while name in self._members:
            name, number = f"{folder}/{stem}-{number}{ending}", number + 1
        self._members[name] = content

    def _name(self, path: str) -> str:
        """Return the last part of a path without what is nobody's business."""
        return self.hidden.text(PurePath(path).name).replace("/", "_") or "stdin"
