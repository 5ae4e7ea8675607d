"""Launch commands and starts that failed for a plain reason: flags, port, model, type, driver."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import ports, refused_values, unmet
from gpuwatch.diagnosis.causes.heads import indivisible, uneven_experts
from gpuwatch.diagnosis.causes.view import Cause, advise, group, number, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, logged
from gpuwatch.diagnosis.finding import Evidence, NotEnough
from gpuwatch.engines.flag_names import misnamed_flag
from gpuwatch.engines.flag_versions import always_risky, risky_flags, unknown_flag
from gpuwatch.engines.version import parse_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.engines.flag_versions import FlagProblem
    from gpuwatch.model import Fact, LogEvent

ENGINE_PROGRAMS = ("vllm", "sglang", "launch_server", "api_server")
_OPTION = re.compile(r"^--[a-z][\w-]*$", re.IGNORECASE)


def flags(view: View) -> Iterator[Cause | NotEnough]:
    """Judge launch flags: refused by the engine in its log, or not known to this version by the tables."""
    refused = tuple(event for event in view.events("unknown_flag") if _of_engine(view, event))
    invalid = tuple(
        event
        for event in view.events("flag_value_invalid")
        if _of_engine(view, event) and not (unmet.explained_here(event) and unmet.survived(view, event))
    )
    yield from (_refused(view, event) for event in refused[:1])
    for event in invalid[:1]:
        yield _bad_value(event, view.run_of(event))
    for event in view.events("unknown_flag", "flag_value_invalid")[:1]:
        if not refused and not invalid:
            prog = event.field("prog")
            yield NotEnough(
                "flag_unknown", f"what started {prog}: it refused an argument, and is not known as an engine"
            )
    seen = {name for event in refused for name in event.field("args").split()}
    problems = [(problem, fact) for problem, fact in _problems(view) if f"--{problem.flag}" not in seen]
    unknown = [(problem, fact) for problem, fact in problems if problem.kind == "unknown"]
    # A log that is watched live is that of an engine that took its flags.
    live = not view.incident.inputs
    values = [] if invalid or live else list(refused_values.problems(view, _engine_of(view)))
    bad = {problem.flag for problem, _ in values}
    risky = [(problem, fact) for problem, fact in problems if problem.kind == "risky" and problem.flag not in bad]
    if values and not (refused or unknown):
        cause = _listed("flag_unknown", values, "This engine does not take the value, and will not start with it")
        yield replace(cause, title="A launch flag has a value that no engine takes")
    unknown += values if unknown else []
    if unknown and not refused:
        yield _listed("flag_unknown", unknown, "This engine does not have the flag, and will not start with it")
    if risky:
        yield _listed("flag_risky", risky, "A flag is set with a known trap")
    yield from _of_another(view)


NAMES = {"vllm": "vLLM", "sglang": "SGLang"}


def _of_another(view: View) -> Iterator[Cause]:
    """Say that a launch command is one of another engine than all logs are of: it is left aside."""
    logs = {given.engine: given for given in view.incident.inputs if given.kind == "engine_log" and given.engine}
    started = [fact for fact in view.incident.facts if fact.source == "--flags" and fact.key == "engine"]
    for fact in started[:1]:
        engine = str(fact.value)
        if not logs or engine in logs:
            continue
        other, given = next(iter(logs.items()))
        yield Cause(
            "flag_unknown",
            Explanation(
                f"The command starts {NAMES.get(engine, engine)} and the log is one of {NAMES.get(other, other)}: it "
                "is the command of another engine, and was left aside.",
                0.9,
                (
                    Evidence(f"the command is one of {NAMES.get(engine, engine)}", fact.source, fact.line, "engine"),
                    Evidence(f"{given.path} is a log of {NAMES.get(other, other)}", given.path),
                ),
                (advise("give the command that started the engine of this log", "--flags"),),
            ),
            severity="info",
        )


def _of_engine(view: View, event: LogEvent) -> bool:
    """Whether it was an engine that refused an argument: by its name, or because something else shows one."""
    prog = event.field("prog")
    return not prog or any(word in prog for word in ENGINE_PROGRAMS) or _has_engine(view)


def _has_engine(view: View) -> bool:
    """Whether anything shows an engine; a log that is watched live is that of one."""
    inputs = view.incident.inputs
    return not inputs or any(given.engine for given in inputs) or any(run.text("engine") for run in view.runs)


def _listed(id_: str, problems: list[tuple[FlagProblem, Fact]], what: str) -> Cause:
    evidence = [
        Evidence(problem.text, fact.source, fact.line, fact.key, problem.value or str(fact.value), "")
        for problem, fact in problems
    ]
    advice = [
        advise(
            problem.text,
            f"--{problem.flag}",
            problem.value or None,
            problem.instead or problem.proposed or "(leave it out)",
        )
        for problem, _ in problems
    ]
    names = ", ".join(f"--{problem.flag}" for problem, _ in problems)
    return Cause(
        id_,
        Explanation(
            f"{what}: {names}. {_sentence(problems[0][0].text)}.",
            0.85,
            tuple(evidence),
            tuple(advice),
        ),
    )


def _sentence(text: str) -> str:
    """Return a text as the beginning of a sentence; the engine's name keeps its small letter."""
    return text if text.startswith(tuple(NAMES.values())) else text[0].upper() + text[1:]


def _problems(view: View) -> Iterator[tuple[FlagProblem, Fact]]:
    """Return what is wrong with the flags of every run and command, each flag once."""
    said: set[str] = set()
    tagged = {fact.source: str(fact.value) for fact in view.incident.facts if fact.key == "version"}
    for run in view.runs:
        engine = run.text("engine") or _engine_of(view)
        if engine not in ("vllm", "sglang"):
            continue
        version = run.text("version") or _version_of(view)
        given: dict[str, Fact] = {fact.key: fact for fact in (*run.facts, *run.loose.values())}
        command = given.get("command")
        names = _options(str(command.value)) if command is not None else []
        # A command that names its own version, by the tag of an image, is one of that version.
        own = tagged.get(command.source, version) if command is not None and command.source != run.source else version
        for name in names:
            problem = misnamed_flag(engine, own, name) or unknown_flag(engine, own, name)
            if problem is not None and command is not None and name not in said:
                said.add(name)
                yield problem, command
        # A list of arguments that the engine printed itself holds what it took; only what it was told can be wrong.
        values = {key[5:]: fact for key, fact in given.items() if key.startswith("flag.")}
        told = {name: fact.value for name, fact in values.items()}
        traps = risky_flags(engine, version, told) if parse_version(version) else always_risky(engine, told)
        for problem in traps:
            if problem.flag not in said and _was_chosen(run, problem.flag, values[problem.flag]):
                said.add(problem.flag)
                yield problem, values[problem.flag]


def _was_chosen(run: Run, flag: str, fact: Fact) -> bool:
    """Whether a flag was set by somebody: SGLang prints all its arguments, defaults among them."""
    if run.text("engine") != "sglang" or fact.source == "--flags":
        return True
    return f"--{flag}" in run.text("command")


def _engine_of(view: View) -> str:
    return next((given.engine for given in view.incident.inputs if given.engine), "")


def _version_of(view: View) -> str:
    return next((given.engine_version for given in view.incident.inputs if given.engine_version), "")


def _options(command: str) -> list[str]:
    """Return the long options in a command, without dashes and values; ``key=value`` pairs in JSON are none."""
    try:
        words = shlex.split(command.replace("\\\n", " "))
    except ValueError:
        words = command.split()
    after = 0
    for at, word in enumerate(words):
        if word == "serve" or word.endswith(("launch_server", "api_server")):
            after = at
    names = [word.partition("=")[0] for word in words[after:]]
    return [name[2:] for name in names if _OPTION.match(name)]


def _refused(view: View, event: LogEvent) -> Cause:
    run = view.run_of(event)
    args = event.field("args").split()
    names = [arg.partition("=")[0] for arg in args if arg.startswith("-")]
    engine = "sglang" if "sglang" in event.field("prog") or "launch_server" in event.field("prog") else "vllm"
    version = run.text("version") or _version_of(view)
    advice = []
    stray = [arg for arg in args if not arg.startswith("-") and "/" in arg]
    server = event.field("prog").rpartition("/")[2]
    if not names and stray and ("api_server" in server or "launch_server" in server):
        flag = "--model" if engine == "vllm" else "--model-path"
        text = f"{server} takes the model with a flag, where vllm serve takes it bare"
        advice.append(advise(text, flag, None, stray[0]))
    for name in names[:3]:
        bare = name.lstrip("-")
        known = misnamed_flag(engine, version, bare, refused=True) or unknown_flag(engine, version, bare)
        instead = known.instead if known is not None else ""
        advice.append(
            advise(
                known.text if known is not None else "leave it out, or look it up in --help of this version",
                name,
                None,
                instead or "(leave it out)",
            )
        )
    return Cause(
        "flag_unknown",
        Explanation(
            f"The engine did not start: it does not know {', '.join(names) or event.field('args') or 'an argument'}.",
            0.97,
            (logged(event),),
            tuple(advice) or (advise("compare the command with --help of this version; a stray word counts, too"),),
        ),
        event.time,
    )


def _bad_value(event: LogEvent, run: Run) -> Cause:
    if event.field("heads"):
        heads, ranks = int(number(event, "heads") or 1), int(number(event, "tp") or 1)
        return indivisible(heads, ranks, (logged(event),), event.time)
    if event.field("experts"):
        return uneven_experts(int(number(event, "experts") or 1), int(number(event, "ep") or 1), event, run)
    if unmet.explained_here(event):
        return unmet.bad_value(event, run)
    flag = event.field("flag").split("/")[-1].strip()
    missing = event.field("missing")
    why = event.field("why")
    choices = re.search(r"choose from ([^)]*)", why)
    cause = f"The engine did not start: {flag} has a value that it does not take ({why})."
    if missing:
        cause = f"The engine did not start: it was not told {missing}."
    return Cause(
        "flag_unknown",
        Explanation(
            cause,
            0.95,
            (logged(event),),
            (advise(f"one of {choices[1]}" if choices else "see --help of this version", flag or missing, None, None),),
        ),
        event.time,
    )


def port(view: View) -> Iterator[Cause | NotEnough]:
    """Judge a port that is taken, where something else shows that it is an engine that wanted it."""
    inputs = view.incident.inputs
    for event in view.events("port_in_use")[:1]:
        if not _has_engine(view):
            yield NotEnough(
                "port_in_use",
                "a line or the launch command of the engine: an address is taken, and any program may have wanted it",
            )
            return
        own = not inputs or any(given.engine and given.path == event.source for given in inputs)
        run = view.run_of(event)
        if event.field("meeting"):
            yield ports.meeting_point(event, run, 0.95 if own else 0.7)
            return
        if event.field("queue"):
            yield ports.queue(event, run, 0.95 if own else 0.7)
            return
        taken = number(event, "port") or run.number("flag.port")
        shown = f"Port {taken:.0f}" if taken else "The port"
        ready = run.fact("ready")
        after = ready is not None and (ready.line or 0) > event.line
        yield Cause(
            "port_in_use",
            Explanation(
                f"{shown} is taken: another server listens there."
                + (" What answered afterwards is that other server, not this one." if after else ""),
                0.96 if own else 0.7,
                (logged(event),),
                (
                    advise(
                        "use a free port", "--port", int(taken) if taken else None, int(taken) + 1 if taken else None
                    ),
                    advise(
                        f"or end who holds it: ss -ltnp 'sport = :{taken:.0f}'"
                        if taken
                        else "or end who holds it: ss -ltnp"
                    ),
                ),
            ),
            event.time,
        )


def model(view: View) -> Iterator[Cause]:
    """Judge a model that cannot be found, may not be read, or whose hub cannot be reached."""
    missing = tuple(event for event in view.events("model_not_found") if not unmet.explained_here(event))
    denied = view.events("model_access_denied")
    down = view.events("hub_unreachable")
    events = denied or missing or down
    if not events:
        return
    event = events[0]
    run = view.run_of(event)
    name = group(event, "model", "model2", "model3").strip("'\"") or run.text("model") or run.text("flag.model")
    path = name.startswith(("/", "./", "~"))
    if denied:
        cause = f"The hub refuses {name or 'the model'}: it is gated, and the token has no access."
        advice = [advise("ask for access on the model's page and give the token to the server", "HF_TOKEN")]
    elif down and not missing:
        cause = f"{name or 'The model'} is not in the cache and the hub cannot be reached."
        advice = [
            advise(
                "give the machine access, set HF_ENDPOINT to a mirror, or put the files into a folder and name it",
                "--model",
                name or None,
            )
        ]
    else:
        cause = f"{name or 'The model'} is neither a folder with a model nor a name on the hub."
        advice = [
            advise(
                "is the folder there, as this user and inside the container? A path that is missing is taken for a name"
                if path or not name
                else "check the spelling of organisation/name, and whether the model is private",
                "--model",
                name or None,
            ),
        ]
    file = event.field("file")
    if file:
        cause = f"{name} has no {file}: the folder is not a model, or the download is incomplete."
    evidence = [logged(each) for each in (*events[:1], *down[:1] * bool(missing))]
    yield Cause("model_not_found", Explanation(cause, 0.93, tuple(evidence), tuple(advice)), event.time)


def _unquantised(event: LogEvent, name: str, short: str) -> Cause:
    """Explain a quantisation that the GPU has no kernels for: no type of the activations changes that."""
    return Cause(
        "dtype_unsupported",
        Explanation(
            f"The GPU has no kernels for checkpoints quantised as {name}{short}.",
            0.95,
            (
                logged(event),
                ruled_out("the type of the activations: none of them changes what the weights need", event),
            ),
            (
                advise(
                    "a checkpoint in another quantisation that this GPU has, such as gptq, or none",
                    "--quantization",
                    name,
                ),
                advise("or a GPU of the compute capability that is needed"),
            ),
        ),
        event.time,
    )


def types(view: View) -> Iterator[Cause]:
    """Judge a type that the GPU cannot compute in."""
    for event in [each for each in view.events("dtype_unsupported") if not unmet.explained_here(each)][:1]:
        run = view.run_of(event)
        name = group(event, "dtype", "dtype2", "method")
        has, needs = group(event, "has", "cap").rstrip("."), group(event, "needs", "min").rstrip(".")
        short = f": it has compute capability {has}, {needs} is needed" if has and needs else ""
        bf16 = name.lower().startswith("bf")
        proposed = "half" if bf16 else None
        model = event.field("model")
        who = f"The model type {model}" if model else "The GPU or the quantisation"
        if model:
            proposed, name = "bfloat16", "float16"
        others = () if model else (
            advise("or a checkpoint in another quantisation", "--quantization", run.text("quantization") or None),
        )  # fmt: skip
        if event.field("method"):
            yield _unquantised(event, name, short)
            continue
        ok = event.field("ok")
        yield Cause(
            "dtype_unsupported",
            Explanation(
                f"{who} does not take {name}{short}.",
                0.95,
                (logged(event),),
                (
                    advise(
                        "use a type that it has" + (f": {ok}" if ok else ""),
                        "--dtype",
                        run.text("flag.dtype") or run.text("dtype") or None,
                        proposed,
                    ),
                    *others,
                ),
            ),
            event.time,
        )
