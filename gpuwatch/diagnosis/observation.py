"""Engines that do not answer, or answer and stand still; sources that fail."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.context import ENGINE_SCOPE, GPU_SCOPE, SERVER_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import Explanation, Unknown, Verdict, count, excluded, logged, measured, told
from gpuwatch.diagnosis.finding import Advice
from gpuwatch.diagnosis.gpus import known_uuid
from gpuwatch.model import label

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence

SOURCE_SCOPE = ("host", "source", "target", "server")
DEATHS = (
    "out_of_memory_killed",
    "process_killed",
    "torch_oom",
    "cuda_oom_other",
    "gpu_lost",
    "ecc_error",
    "nccl_timeout",
    "cuda_error",
    "worker_dead",
    "engine_start_failed",
    "engine_dead",
)
"""Log events that explain an engine which no longer answers, nearest to the root first."""
TRANSFER = ("flag.kv-transfer-config", "flag.kv-offloading-size", "flag.disaggregation-mode")
"""The flags that let requests wait for a KV cache from another server, or from the host."""
STALLS = ("nccl_timeout", "sglang_watchdog", "rpc_timeout", "shm_broadcast_stall", "nccl_error", "xid")


IDLE = 0.2
"""A GPU that is busy for less than this does not compute."""
SPINS = 0.99
STARVED = 0.5
"""Seconds per second that gpuwatch waits for a processor: over this, what it could not read in time says nothing."""
LONGEST_TIMEOUT = 60.0
"""The most seconds for one poll that gpuwatch's configuration takes."""
FLAPPING = "GpuwatchSourceFlapping"
"""The rule that fires on a source that answers now and then; it may fail at this very moment."""
GPU_STATES: dict[str, tuple[str, tuple[str, ...]]] = {
    "resetting": (
        "needs a reset: the driver refuses calls to it until then, and what runs on it will fail",
        (
            "drain it: stop what uses it, then reset it (nvidia-smi --gpu-reset -i {gpu}) or reboot the machine",
            "read dmesg for the Xid before it, which says why",
        ),
    ),
    "no_permission": (
        "may not be read by this user or container, so that nothing is known about its health",
        (
            "in a container: start it with this GPU (--gpus all); for MIG with NVIDIA_MIG_MONITOR_DEVICES=all",
            "on the host: see who may read /dev/nvidia{gpu} and /dev/nvidiactl",
        ),
    ),
    "failed": (
        "answers no call: every one fails with an error of the driver, so that nothing is known about its health",
        (
            "see what nvidia-smi -i {gpu} says, and read dmesg for an Xid or a failed start of the driver",
            "if it stays so: drain the machine, reset the card or reload the driver",
        ),
    ),
}
"""By state of a GPU that is neither fine nor lost nor hung: what it means, and what helps."""


def engine_down(subject: Subject) -> Verdict:
    """Explain an engine that does not answer."""
    if not subject.server or subject.now("source_up", SERVER_SCOPE, source="engine") != 0:
        return Unknown("the address of an engine whose metrics page cannot be read")
    age = subject.now("source_age_seconds", SERVER_SCOPE, source="engine")
    if age is None:
        evidence = [measured("no page has been read since gpuwatch started", "source_up", 0.0)]
        cause = f"{subject.server} has never answered: the address is wrong, or the engine did not start."
    else:
        text = f"the page was last read {count(age)} s ago"
        evidence = [measured(text, "source_age_seconds", age, "seconds")]
        cause = f"{subject.server} no longer answers."
    processes = subject.now("engine_processes", SERVER_SCOPE)
    if processes is not None:
        text = f"{count(processes)} processes of the engine exist"
        evidence.append(measured(text, "engine_processes", processes))
    confidence = 0.85
    events = subject.events(*DEATHS, seconds=900)
    told = sorted(events, key=lambda event: (DEATHS.index(event.event), event.time))
    if told:
        first = told[0]
        cause = f"{subject.server} is down; its log says why: {_short(first.text)}"
        evidence += [logged(event) for event in told[:3]]
        confidence = 0.95
    elif processes == 0:
        cause = f"{subject.server} is down: its processes are gone."
        confidence = 0.95
    elif processes:
        cause = f"{subject.server} does not answer although its processes exist: it hangs, starts, or is overloaded."
    advice = [Advice("read the end of the engine's log, and dmesg for a process that was killed")]
    if not subject.sglang and age is not None:
        text = "vLLM ends with status 0 when its engine dies: restart it on every exit, not on failure only"
        advice.append(Advice(text))
    return Explanation(cause, confidence, tuple(evidence), tuple(advice))


def engine_stalled(subject: Subject) -> Verdict:
    """Explain a page that stands still while requests are open."""
    frozen = subject.now("engine_page_frozen_seconds")
    if frozen is None:
        return Unknown("the engine's page, read twice")
    running, waiting = subject.now("engine_requests_running"), subject.now("engine_requests_waiting")
    evidence: list[Evidence] = [
        measured(
            f"no value of the page has changed for {count(frozen)} s", "engine_page_frozen_seconds", frozen, "seconds"
        )
    ]
    for name, value in (("running", running), ("waiting", waiting)):
        if value is not None:
            evidence.append(measured(f"{count(value)} requests {name}", f"engine_requests_{name}", value))
    cause = (
        "The front end still answers, but the engine behind it makes no step: a scheduler or worker is dead or hangs."
    )
    left = subject.now("engine_processes", SERVER_SCOPE)
    before = subject.over("max_over_time", "engine_processes", f"{math.ceil(frozen) + 60}s", SERVER_SCOPE)
    ended = left is not None and before is not None and left < before
    if left is not None and before is not None and ended:
        gone = f"{count(before - left)} of {count(before)} processes of the engine ended"
        evidence.append(measured(f"{gone} about the time the page stood still", "engine_processes", left))
        cause = f"The front end still answers, but a part of the engine behind it has died: {gone}."
    events = subject.events(*STALLS, seconds=900)
    evidence += [logged(event) for event in events[-3:]]
    if any(event.event == "nccl_timeout" for event in events):
        cause = "A collective operation between the ranks never ended; the engine makes no step."
    busy = _busy(subject)
    if busy is not None:
        evidence.append(_told_busy(*busy))
    restart = Advice("restart the engine; before that, save the stacks (py-spy dump) of its scheduler and workers")
    hung = _hung_driver(subject)
    if hung is not None and not ended:
        cause = (
            "The front end still answers, but the engine behind it makes no step, and calls to the GPU driver do not "
            "return: what asks the driver waits with it."
        )
        text = "settle driver_unresponsive first: processes that hang in the driver do not end, and a restart waits too"
        return Explanation(cause, 0.85, (*evidence, hung), (Advice(text),))
    if running == 0 and not events and not ended:
        return _nothing_runs(subject, cause, evidence, restart)
    return Explanation(cause, 0.9 if events or ended else 0.75, tuple(evidence), (restart,))


def _nothing_runs(subject: Subject, cause: str, evidence: list[Evidence], restart: Advice) -> Explanation:
    """Explain requests that wait where none runs: for a KV cache from elsewhere, or for a grammar."""
    transfer = _takes_kv_caches(subject)
    if transfer is not None:
        cause = (
            "Nothing runs and requests wait: either the KV cache that they need does not come from the prefill server, "
            "or the scheduler hangs. The page does not tell which."
        )
        first = Advice("look at the prefill server, and at the link and the log lines of the transfer")
        return Explanation(cause, 0.5, (*evidence, transfer), (first, restart))
    deferred = subject.now("engine_requests_waiting_by_reason", reason="deferred")
    known = subject.now("engine_config_kv_transfer", SERVER_SCOPE) == 0 or bool(subject.flags())
    if deferred is None and not known:
        cause += " Or it is a decode server whose prefill server does not deliver: its launch flags are not known."
        return Explanation(cause, 0.5, tuple(evidence), (restart,))
    if not deferred:
        return Explanation(cause, 0.75, tuple(evidence), (restart,))
    text = f"{count(deferred)} of the requests that wait are deferred: the engine puts them off itself"
    evidence.append(measured(text, "engine_requests_waiting_by_reason", deferred))
    grammar = "a grammar (structured output: a JSON schema, a regular expression) that is not compiled to its end"
    if known:
        evidence.append(
            excluded("a KV cache from elsewhere: no launch flag names one", "engine_config_kv_transfer", 0.0)
        )
        cause = f"Nothing runs, and the requests that wait are put off: they wait for {grammar}."
    else:
        cause = (
            f"Nothing runs, and the requests that wait are put off: they wait for {grammar}, or for a KV cache from "
            "another server. The launch flags, which tell which, are not known."
        )
    first = Advice("look for the request with structured output that came before the stall, and keep it out")
    return Explanation(cause, 0.8 if known else 0.5, tuple(evidence), (first, restart))


def _takes_kv_caches(subject: Subject) -> Evidence | None:
    """Return what says that the engine takes KV caches from elsewhere; None where nothing does."""
    for key in TRANSFER:
        fact = subject.fact(key)
        if fact is not None and fact.value not in ("", "null", 0):
            return told(fact, f"the engine takes KV caches from elsewhere (--{key.removeprefix('flag.')})")
    if subject.now("engine_config_kv_transfer", SERVER_SCOPE) == 1:
        text = "the engine takes KV caches from elsewhere, as its launch flags say"
        return measured(text, "engine_config_kv_transfer", 1.0)
    asked = subject.now("engine_external_prefix_cache_queries_total")
    if asked:
        text = f"the engine has looked for {count(asked)} tokens in a KV connector"
        return measured(text, "engine_external_prefix_cache_queries_total", asked, "tokens")
    for labels, _ in subject.context.samples(subject.select("engine_info", SERVER_SCOPE)):
        role = label(labels, "role")
        if role in ("prefill", "decode"):
            return measured(f"the engine is the {role} server of a pair", "engine_info", 1.0)
    return None


def _hung_driver(subject: Subject) -> Evidence | None:
    """Return for how long the driver of the engine's GPUs has not answered; None where it does."""
    placed = f"max_over_time({subject.select('gpu_engine', SERVER_SCOPE)}[10m])"
    one = f"max(gpuwatch_gpu_unresponsive_seconds and on (host, uuid) {placed}) > 5"
    here = f"({placed} or {subject.select('engine_processes', SERVER_SCOPE)} > 0)"
    whole = f"max({subject.select('host_nvml_unresponsive_seconds', ('host',))} and on (host) {here}) > 5"
    for name, expr, what in (
        ("host_nvml_unresponsive_seconds", whole, "an NVML call on this machine"),
        ("gpu_unresponsive_seconds", one, "a driver call to a GPU of the engine"),
    ):
        seconds = subject.ask(expr)
        if seconds is not None:
            return measured(f"{what} has not returned for {count(seconds)} s", name, seconds, "seconds")
    return None


def source_degraded(subject: Subject) -> Verdict:
    """Explain a source that fails, or a GPU without readings. The reason itself is in the state of the source."""
    if "uuid" in subject.labels:
        return _unreadable_gpu(subject)
    source, target = subject.labels.get("source", ""), subject.labels.get("target", "")
    age = subject.now("source_age_seconds", SOURCE_SCOPE)
    failures = subject.over("increase", "source_failures_total", "5m", SOURCE_SCOPE)
    share = subject.over("avg_over_time", "source_up", "2m", SOURCE_SCOPE)
    evidence = []
    if age is not None:
        evidence.append(measured(f"last read {count(age)} s ago", "source_age_seconds", age, "seconds"))
    if share is not None:
        text = f"{share * 100:.0f} % of the polls of the last 2 minutes worked"
        evidence.append(measured(text, "source_up", share, "ratio"))
    if failures:
        text = f"about {count(failures)} polls failed in 5 minutes"
        evidence.append(measured(text, "source_failures_total", failures))
    if not evidence:
        return Unknown("the state of the source")
    down = subject.now("source_up", SOURCE_SCOPE) == 0 and subject.alert != FLAPPING
    if down:
        cause = f"{source} {target} can no longer be read: what it showed is old, and rules that need it cannot judge."
    else:
        cause = f"{source} {target} answers only now and then: its series have gaps, and rules that need it judge late."
    took = subject.over("max_over_time", "source_poll_seconds", "2m", SOURCE_SCOPE)
    if not down and took is not None and took > 1:
        evidence.append(measured(f"a poll took up to {took:.1f} s", "source_poll_seconds", took, "seconds"))
    advice = Advice("run gpuwatch doctor: it says what is missing and how to fix it")
    late = subject.over("max_over_time", "source_failing", "2m", SOURCE_SCOPE, reason="timeout")
    if source == "engine" and late and took is not None and took < LONGEST_TIMEOUT:
        advice = _longer_timeout(took)
    starved = subject.over("max_over_time", "process_starved_ratio", "1m", ("host",))
    slow = any(subject.now("source_failing", SOURCE_SCOPE, reason=reason) == 1 for reason in ("timeout", "hung"))
    if down and slow and starved is not None and starved > STARVED:
        text = f"threads of gpuwatch waited {starved:.1f} s in each second for a processor"
        evidence.append(measured(text, "process_starved_ratio", starved, "ratio"))
        cause = (
            f"{source} {target} is not read in time because gpuwatch itself gets no processor; its state is unknown."
        )
        text = "give gpuwatch a share of the processors: CPUWeight=500 for its unit, nice -n -5, or a core of its own"
        advice = Advice(text)
    return Explanation(cause, 0.9, tuple(evidence), (advice,))


def _longer_timeout(took: float) -> Advice:
    """Return the advice to wait longer for an engine's page than the `took` seconds after which polls were given up."""
    text = (
        "the page comes later than gpuwatch waits for it: raise timeout (seconds) in this engine's [[engine]] section"
    )
    return Advice(text, "timeout", None, f"{min(LONGEST_TIMEOUT, 2 * math.ceil(took)):g}")


def _unreadable_gpu(subject: Subject) -> Verdict:
    """Explain a GPU that is there and gives no or not all readings."""
    state = subject.labels.get("state", "")
    gpu, uuid = subject.labels.get("gpu", ""), subject.labels.get("uuid", "")
    if state not in GPU_STATES or subject.now("gpu_state", GPU_SCOPE, state=state) is None:
        return Unknown("the state of the GPU")
    meaning, advice = GPU_STATES[state]
    evidence = [measured(f"the driver's answers put GPU {gpu} in the state {state}", "gpu_state", 1.0)]
    fine = [1 for _, value in subject.context.samples(subject.select("gpu_state", ("host",), state="ok")) if value == 1]
    if fine:
        evidence.append(measured(f"GPUs that are read: {len(fine)}", "gpu_state", float(len(fine))))
    evidence += [logged(event) for event in subject.events("xid", "gpu_lost", "ecc_error", seconds=900)[-2:]]
    index = gpu.partition(":")[0]
    return Explanation(
        f"GPU {gpu}{known_uuid(uuid)} {meaning}.",
        0.95,
        tuple(evidence),
        tuple(Advice(text.replace("{gpu}", index)) for text in advice),
    )


def _busy(subject: Subject) -> tuple[float, int] | None:
    """Return how busy the busiest GPU of the engine is, and how many it has; None where that is not known."""
    placed = subject.select("gpu_engine", SERVER_SCOPE)
    busy = subject.context.samples(f"{placed} * on (host, uuid) group_left () gpuwatch_gpu_busy_ratio")
    return (max(value for _, value in busy), len(busy)) if busy else None


def _told_busy(busy: float, gpus: int) -> Evidence:
    """Say how busy the GPUs are, and what that means where it is clear. A collective spins while it waits."""
    if busy < IDLE:
        meaning = ": it computes nothing" if gpus == 1 else ": none of them computes"
    elif busy > SPINS and gpus > 1:
        meaning = ": one that is always busy may wait in a collective for another"
    else:
        meaning = "; whether it computes or waits, that does not tell"
    subject = "the engine's GPU is" if gpus == 1 else f"the busiest of the engine's {gpus} GPUs is"
    return measured(f"{subject} {busy * 100:.0f} % busy{meaning}", "gpu_busy_ratio", busy, "ratio")


def _short(text: str, most: int = 160) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


DIAGNOSES = (
    Diagnosis("engine_down", "critical", "The engine does not answer", engine_down, SERVER_SCOPE),
    Diagnosis(
        "engine_stalled",
        "critical",
        "Requests are open and nothing moves",
        engine_stalled,
        ENGINE_SCOPE,
    ),
    Diagnosis(
        "source_degraded",
        "warning",
        "A source of measurements fails",
        source_degraded,
        (*SOURCE_SCOPE, "uuid"),
    ),
)
"""The findings of this family."""
