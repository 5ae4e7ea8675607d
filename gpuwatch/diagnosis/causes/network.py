"""Errors of NCCL that the warning above them explains: transfers between nodes that were given up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

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
    if not errors or view.events("nccl_shm_failed", "nccl_timeout", "cuda_oom_other", "xid"):
        return
    warned = [each for each in view.events("nccl_warning") if each.source == errors[0].source]
    lost = next((each for each in warned if _OF_NETWORK.search(each.field("msg")) is not None), None)
    if lost is not None:
        yield _network(lost, errors[0])
    elif warned:
        yield NotEnough("nccl_hang", f"why NCCL failed; it says: {warned[0].field('msg')} [line {warned[0].line}]")
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
