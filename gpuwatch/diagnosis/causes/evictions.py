"""Pods that Kubernetes evicted: because their node ran low, or because they crossed a limit of their own.

Messages: ``pkg/kubelet/eviction/eviction_manager.go`` and ``helpers.go`` of Kubernetes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moments
from gpuwatch.diagnosis.causes.view import Cause, advise, amount, group, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, logged, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.diagnosis.finding import Advice
    from gpuwatch.model import LogEvent

_VOLUME = re.compile(r"Usage of EmptyDir volume \W*(?P<volume>[\w.-]+)\W* exceeds the limit \W*(?P<limit>\d[\w.]*\w)")
_POD = re.compile(r"[Pp]od ephemeral local storage usage exceeds the total limit of containers (?P<limit>\d[\w.]*\w)")
_CONTAINER = re.compile(
    r"[Cc]ontainer (?P<container>[\w.-]+) exceeded its local ephemeral storage limit \W*(?P<limit>\d[\w.]*\w)"
)
_LOW = re.compile(
    r"low on resource: (?P<resource>[\w-]+)(?:\. Threshold quantity: (?P<threshold>\w+), available: (?P<free>\w+))?"
)
_USING = re.compile(r"[Cc]ontainer (?P<name>[\w.-]+) was using (?P<used>\w+), request is (?P<request>\w+)")
_QUANTITY = re.compile(r"^(\d+(?:\.\d+)?)([KMGT]i?)?$")


def evicted(view: View) -> Iterator[Cause]:
    """Judge evictions, those first that tell of a limit of the pod's own."""
    events = moments.nearest(view.events("pod_evicted"), moments.ends(view))
    if not events:
        return
    for regex in (_VOLUME, _CONTAINER, _POD):
        for event in events:
            found = regex.search(event.text)
            if found is not None:
                yield _own_limit(view, event, found)
                return
    yield _node(view, events)


def _own_limit(view: View, event: LogEvent, found: re.Match[str]) -> Cause:
    """Explain a pod that filled more of a volume, or of the node's disk, than its own specification allows."""
    told, limit = found.groupdict(), found["limit"]
    volume, container = told.get("volume"), told.get("container")
    shared = volume is not None and "shm" in volume.lower()
    where = "of its containers together" if container is None else f"of the container {container}"
    what, key = f"the limit on ephemeral-storage {where}", "resources.limits.ephemeral-storage"
    if volume is not None:
        what, key = f"the limit of its own volume {volume}", f"volumes[{volume}].emptyDir.sizeLimit"
    cause = f"Kubernetes evicted the pod: it crossed {what}, {limit}."
    if shared:
        cause += " The volume is the engine's shared memory, /dev/shm, by its name."
    return Cause(
        "k8s_evicted",
        Explanation(
            cause,
            0.93,
            (logged(event), ruled_out("the node: it did not run low, the limit is one of the pod", event)),
            tuple(_more(key, limit, volume, shared)),
        ),
        event.time,
        severity=moments.milder(event, moments.ends(view)),
        apart=moments.related(event, moments.ends(view)) is False,
    )


def _more(key: str, limit: str, volume: str | None, shared: bool) -> Iterator[Advice]:
    yield advise("raise the limit: it tells that it is too low, and not by how much", key, limit, _doubled(limit))
    if shared or volume is not None:
        yield advise(
            "where the volume is memory (medium: Memory), raise the container's memory limit by as much: what lies in "
            "it counts against that limit",
            "resources.limits.memory",
        )
    if not shared:
        yield advise("or put models and caches on a volume that outlives the pod")


def _doubled(limit: str) -> str | None:
    found = _QUANTITY.match(limit)
    return f"{2 * float(found[1]):g}{found[2] or ''}" if found is not None else None


def _node(view: View, events: list[LogEvent]) -> Cause:
    """Explain an eviction by a node that ran low, or one that does not say why."""
    event = events[0]
    text = " ".join(each.text for each in events)
    low, named = _LOW.search(text), next((group(each, "resource") for each in events if group(each, "resource")), "")
    lower = text.lower()
    resource = named or (low["resource"] if low is not None else "")
    resource = resource or ("ephemeral-storage" if "ephemeral" in lower else "memory" if "memory" in lower else "")
    remedy = {
        "memory": "request as much memory as the engine needs, so that the node is not overcommitted",
        "ephemeral-storage": "put models and caches on a volume; raise the limit on ephemeral-storage",
    }.get(resource, "kubectl describe pod names the resource that ran out")
    using = _USING.search(text)
    current = using["request"] if using is not None and resource == "memory" else None
    return Cause(
        "k8s_evicted",
        Explanation(
            "Kubernetes evicted the pod" + (f": the node ran low on {resource}{_figures(low)}." if resource else "."),
            0.93,
            (*(logged(each) for each in events[:2]), ruled_out("the engine: the node asked for the place back", event)),
            (
                advise(remedy, "resources.requests.memory", current, using["used"])
                if using is not None and resource == "memory"
                else advise(remedy),
            ),
        ),
        event.time,
        severity=moments.milder(event, moments.ends(view)),
        apart=moments.related(event, moments.ends(view)) is False,
    )


def _figures(low: re.Match[str] | None) -> str:
    """Return how much was left and how much must be, in words."""
    if low is None or not low["threshold"]:
        return ""
    least, free = amount(low["threshold"]), amount(low["free"])
    if least is None or free is None:
        return f" ({low['free']} left, {low['threshold']} must be)"
    return f" ({size(free)} left, {size(least)} must be)"
