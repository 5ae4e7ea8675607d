"""Errors of NCCL that the warning above them explains: transfers that were given up, ranks that cannot meet."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import faults
from gpuwatch.diagnosis.causes.view import Cause, advise, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, logged
from gpuwatch.diagnosis.finding import NotEnough

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.model import LogEvent


def unexplained(view: View) -> Iterator[Cause | NotEnough]:
    """Judge an error of NCCL by the warning above it; without one, say what would explain it."""
    errors = view.events("nccl_error")
    if not errors or view.events("nccl_shm_failed", "nccl_timeout", "cuda_oom_other", "xid") or faults.faults(view):
        return
    warned = [each for each in view.events("nccl_warning") if each.source == errors[0].source]
    lost = next((each for each in warned if _OF_NETWORK.search(each.field("msg")) is not None), None)
    shared = next((each for each in warned if _SHARED_GPU.search(each.field("msg")) is not None), None)
    apart = next((each for each in warned if _NO_WAY.search(each.field("msg")) is not None), None)
    if shared is not None:
        yield _one_gpu(shared, errors[0])
    elif lost is not None:
        yield _network(lost, errors[0])
    elif apart is not None:
        yield _no_way(view, apart, errors[0])
    elif warned:
        said = warned[0]
        yield NotEnough(
            "nccl_hang",
            f"why NCCL failed; it says: {said.field('msg')} [{PurePath(said.source).name}:{said.line}]",
        )
    else:
        yield NotEnough(
            "nccl_hang", "why NCCL failed: run once with NCCL_DEBUG=INFO, its line before the error names the call"
        )


# net_ib.cc and socket.cc of NCCL 2.18 to 2.28: a transfer that the card or the kernel gave up.
_OF_NETWORK = re.compile(
    r"NET/IB ?: ?Got (?:completion|async)(?=.*?from peer (?P<peer>[^ <]+))?(?=.*?status=(?P<status>\d+))?"
    r"(?=.*?\b(?P<card>(?:mlx|bnxt|irdma|efa)\w+))?"
    r"|(?:[Cc]onnection closed by remote peer|socketProgress\w*|Call to recv from) (?P<peer2>[\w.:-]+)"
)
_NO_ANSWER = 12
"""IBV_WC_RETRY_EXC_ERR: the other side did not acknowledge before the retries ran out."""


def _network(event: LogEvent, error: LogEvent) -> Cause:
    """Explain a transfer between nodes that was given up."""
    found = _OF_NETWORK.search(event.field("msg"))
    peer, card, status = "", "", ""
    if found is not None:
        peer, card, status = found["peer"] or found["peer2"] or "", found["card"] or "", found["status"] or ""
    what = " did not answer before the retries ran out" if status == str(_NO_ANSWER) else " was lost"
    cause = f"The network between the ranks failed: {peer or 'the other side'}{what}{f' over {card}' if card else ''}."
    return Cause(
        "nccl_hang",
        Explanation(
            f"{cause} Either that node's rank had ended, or its link, the switch or this card had failed.",
            0.8,
            (logged(event), logged(error), ruled_out("GPU memory and the model: the failed call is a transfer", event)),
            (
                advise(f"what does the log of {peer or 'the other node'} say then: a rank that ended comes first"),
                advise(
                    f"else the link, on both nodes: ibstat{f' {card}' if card else ''}, perfquery, dmesg -T | grep mlx5"
                ),
                advise("short breaks of a link: more patience", "NCCL_IB_TIMEOUT", None, "22"),
            ),
        ),
        event.time,
    )


# init.cc of NCCL 2.8 to 2.28; the number is the address on the PCI bus without separators.
_SHARED_GPU = re.compile(
    r"Duplicate GPU detected ?: rank (?P<one>\d+) and rank (?P<other>\d+) both on CUDA device (?P<bus>\w+)"
)
# socket.cc of NCCL 2.4 to 2.28.
_NO_WAY = re.compile(
    r"Connect to (?P<to>[\w.:%]+)<(?P<port>\d+)> (?:failed ?: ?(?P<why>[\w ]+)|returned \d+\((?P<why2>[^)]+)\))"
)
_OWN = re.compile(r"^(?:docker|lo$|virbr|br-|cni|veth|podman|flannel)")
_NCCL_HOST = re.compile(r"([\w.-]+):\d+:\d+ \[\d+\] ")
_OWN_ADDRESS = re.compile(r"^(?:127\.|172\.17\.0\.1$)")


def _one_gpu(event: LogEvent, error: LogEvent) -> Cause:
    """Explain two ranks of one group that were put on the same GPU."""
    found = _SHARED_GPU.search(event.field("msg"))
    one, other, bus = (found["one"], found["other"], found["bus"]) if found is not None else ("", "", "")
    return Cause(
        "nccl_hang",
        Explanation(
            f"Ranks {one} and {other} of one group were put on the same GPU (PCI bus {bus}), and NCCL refuses that.",
            0.95,
            (logged(event), logged(error), ruled_out("the network and GPU memory: no transfer was tried", event)),
            (
                advise(
                    "each rank needs a GPU of its own: as many GPUs in nvidia-smi -L of this container as ranks times "
                    "replicas"
                ),
                advise(
                    "what each process is told: one that starts its own rank (external launcher, Ray, data parallel by "
                    "hand) has to name its own card",
                    "CUDA_VISIBLE_DEVICES",
                ),
            ),
        ),
        event.time,
        title="NCCL refuses the group: two ranks have one GPU",
    )


def _host(event: LogEvent) -> str:
    """Return the host that NCCL names in front of its lines, or the empty string."""
    found = _NCCL_HOST.search(event.text)
    return found[1] if found is not None else ""


def _no_way(view: View, event: LogEvent, error: LogEvent) -> Cause:
    """Explain an address of another rank that cannot be reached, while the group is formed."""
    found = _NO_WAY.search(event.field("msg"))
    to, port, why = (
        (found["to"], found["port"], (found["why"] or found["why2"]).strip()) if found is not None else ("", "", "")
    )
    cards = [each for each in view.events("nccl_interface") if each.source == event.source]
    named = next((each for each in cards if each.field("address") == to), None)
    card = named.field("card") if named is not None else ""
    own = _OWN.match(card) is not None or _OWN_ADDRESS.match(to) is not None
    hosts = {_host(each) for each in (event, *(each for each in cards if each.field("address") == to))}
    several = len(hosts - {""}) > 1 or (view.run_of(event).number("flag.nnodes") or 1) > 1
    shown = f"{to} ({card})" if card else to
    cause = f"A rank could not be reached at {shown}, port {port}: {why}."
    if own:
        cause += (
            " That address is on every machine, for its own containers or itself: "
            + ("" if several else "where the ranks are on several nodes, ")
            + "NCCL took the wrong network card, and the ranks of other nodes look for each other at home."
            + ("" if several else " On one node: that rank's process had ended.")
        )
    else:
        cause += (
            " Its process had ended, its address is not on a network that this node reaches, or a firewall is between."
        )
    return Cause(
        "nccl_hang",
        Explanation(
            cause,
            0.92 if own and several else 0.7,
            (
                logged(event),
                *([logged(named)] if named is not None else []),
                logged(error),
                ruled_out("GPU memory and the model: the failed call is a connection", event),
            ),
            (
                advise(
                    "the card that reaches the other node, on every node (ip route get ADDRESS names it); "
                    "GLOO_SOCKET_IFNAME as well",
                    "NCCL_SOCKET_IFNAME",
                    card or None,
                ),
                advise("try it by hand: ping, and nc -vz between the nodes; ports are chosen anew at each start"),
                advise("where it was the right card: the log of the other rank says whether it ended first"),
            ),
        ),
        event.time,
        title="The ranks do not reach each other",
    )
