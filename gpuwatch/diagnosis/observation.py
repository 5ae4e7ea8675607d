"""Engines that do not answer; sources that fail; GPUs without readings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.context import GPU_SCOPE, SERVER_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import Explanation, Unknown, Verdict, count, logged, measured
from gpuwatch.diagnosis.finding import Advice
from gpuwatch.diagnosis.gpus import known_uuid
from gpuwatch.engines.flag_versions import available
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
STARVED = 0.5
"""Seconds per second that gpuwatch waits for a processor: over this, what it could not read in time says nothing."""
LOOPBACK = ("127.", "localhost:", "[::1]:")
"""How servers begin whose address refuses at once where nothing listens: a time-out there is a program that is slow."""
LONGEST_TIMEOUT = 60.0
"""The most seconds for one poll that gpuwatch's configuration takes."""
DRIVER: dict[str, tuple[str, str]] = {
    "driver_mismatch": (
        "the driver was replaced while it ran, and differs in version from its library (libnvidia-ml.so.1)",
        "drain the machine, then reload the kernel module (rmmod and modprobe nvidia) or reboot; start containers anew",
    ),
    "no_driver": (
        "the driver is not loaded any more, or its library is gone",
        "load the driver (modprobe nvidia) until nvidia-smi lists the GPUs; start a container with --gpus all",
    ),
    "no_permission": (
        "this user or container may not use the driver any more",
        "see who may read /dev/nvidiactl and /dev/nvidia0; in a container: start it with --gpus all",
    ),
}
"""By reason for which NVML as a whole fails: what it means, and what helps."""
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
    late = subject.now("source_failing", SERVER_SCOPE, source="engine", reason="timeout") == 1
    if told:
        first = told[0]
        cause = f"{subject.server} is down; its log says why: {_short(first.text)}"
        evidence += [logged(event) for event in told[:3]]
        confidence = 0.95
    elif processes == 0:
        cause = f"{subject.server} is down: its processes are gone."
        confidence = 0.95
    elif late:
        return _too_late(subject, evidence, processes)
    elif processes:
        cause = f"{subject.server} does not answer although its processes exist: it hangs, starts, or is overloaded."
    advice = [Advice("read the end of the engine's log, and dmesg for a process that was killed")]
    if not subject.sglang and age is not None and not processes:
        text = "vLLM ends with status 0 when its engine dies: restart it on every exit, not on failure only"
        advice.append(Advice(text))
    return Explanation(cause, confidence, tuple(evidence), tuple(advice))


def _too_late(subject: Subject, evidence: list[Evidence], processes: float | None) -> Explanation:
    """Explain a page that does not come in the time for which gpuwatch waits: nothing says that the engine ended."""
    took = subject.over("max_over_time", "source_poll_seconds", "2m", SERVER_SCOPE, source="engine")
    text = "polls end without a complete answer, and none is refused"
    evidence.append(measured(text, "source_failing", 1.0))
    within = ""
    if took is not None:
        within = f" within {took:.1f} s, which is as long as gpuwatch waits"
        text = f"a poll was given up after {took:.1f} s"
        evidence.append(measured(text, "source_poll_seconds", took, "seconds"))
    known = subject.server.startswith(LOOPBACK) or bool(processes)
    cause = f"{subject.server} does not answer{within}: its front end is overloaded or hangs" + (
        "." if known else ", or its machine or the network does not answer."
    )
    advice = [Advice("see whether its page comes at all, and after how long: curl -m 60 -o /dev/null URL/metrics")]
    if took is not None and took < LONGEST_TIMEOUT:
        advice.append(_longer_timeout(took))
    text = "look at the processor time of its front end (top): one that is busy all the time answers late"
    advice.append(Advice(text + _more_front_ends(subject)))
    return Explanation(cause, 0.8 if known else 0.6, tuple(evidence), tuple(advice))


def _more_front_ends(subject: Subject) -> str:
    """Return what lets several processes do the work of a front end, unless it is known that the engine lacks it."""
    version = subject.version
    if subject.sglang or (version is not None and not available("vllm", version, "api-server-count")):
        return ""
    return f"; vLLM{' 0.9.1 and newer' if version is None else ''} shares the work among more (--api-server-count)"


def source_degraded(subject: Subject) -> Verdict:
    """Explain a source that fails, or a GPU without readings."""
    if "uuid" in subject.labels:
        return _unreadable_gpu(subject)
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
    source, target = subject.labels.get("source", ""), subject.labels.get("target", "")
    who = source if target in ("", source) else f"{source} {target}"
    took = subject.over("max_over_time", "source_poll_seconds", "2m", SOURCE_SCOPE)
    advice = Advice("run gpuwatch doctor: it says what is missing and how to fix it")
    late = subject.over("max_over_time", "source_failing", "2m", SOURCE_SCOPE, reason="timeout")
    if source == "engine" and late and took is not None and took < LONGEST_TIMEOUT:
        advice = _longer_timeout(took)
    if subject.now("source_up", SOURCE_SCOPE) == 0 and subject.alert != FLAPPING:
        return _silent(subject, who, evidence, advice)
    cause = f"{who} answers only now and then: its series have gaps, and rules that need it judge late."
    if took is not None and took > 1:
        evidence.append(measured(f"a poll took up to {took:.1f} s", "source_poll_seconds", took, "seconds"))
    return Explanation(cause, 0.9, tuple(evidence), (advice,))


def _silent(subject: Subject, who: str, evidence: list[Evidence], advice: Advice) -> Explanation:
    """Explain a source that gives nothing any more, by the reason with which its polls fail."""
    reason = _reason(subject)
    starved = subject.over("max_over_time", "process_starved_ratio", "1m", ("host",))
    if reason in ("timeout", "hung") and starved is not None and starved > STARVED:
        text = f"threads of gpuwatch waited {starved:.1f} s in each second for a processor"
        evidence.append(measured(text, "process_starved_ratio", starved, "ratio"))
        cause = f"{who} is not read in time because gpuwatch itself gets no processor; its state is unknown."
        text = "give gpuwatch a share of the processors: CPUWeight=500 for its unit, nice -n -5, or a core of its own"
        return Explanation(cause, 0.9, tuple(evidence), (Advice(text),))
    cause = f"{who} can no longer be read: what it showed is old, and rules that need it cannot judge."
    if reason:
        evidence.append(measured(f"its polls fail with the reason: {reason.replace('_', ' ')}", "source_failing", 1.0))
    if who == "nvml" and reason in DRIVER:
        meaning, text = DRIVER[reason]
        cause = f"The GPUs can no longer be read: {meaning}. What was shown of them is old."
        advice = Advice(text)
    return Explanation(cause, 0.9, tuple(evidence), (advice,))


def _reason(subject: Subject) -> str:
    """Return why the polls of a source fail now; the empty string where that is not known."""
    found = subject.context.samples(subject.select("source_failing", SOURCE_SCOPE))
    return next((label(labels, "reason") for labels, value in found if value == 1), "")


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


def _short(text: str, most: int = 160) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


DIAGNOSES = (
    Diagnosis("engine_down", "critical", "The engine does not answer", engine_down, SERVER_SCOPE),
    Diagnosis(
        "source_degraded",
        "warning",
        "A source of measurements fails",
        source_degraded,
        (*SOURCE_SCOPE, "uuid"),
    ),
)
"""The findings of this family."""
