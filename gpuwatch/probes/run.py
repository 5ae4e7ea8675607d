"""What every probe works with: the client, a deadline, Ctrl-C, progress, and requests side by side."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from gpuwatch.probes import vocabulary
from gpuwatch.probes.exchange import Ask, Reply
from gpuwatch.probes.meter import Meter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuwatch.probes.client import Client, Server
    from gpuwatch.probes.exchange import Prompt
    from gpuwatch.probes.meter import Reading
    from gpuwatch.probes.vocabulary import Vocabulary

Progress: TypeAlias = "Callable[[int, int, str], None]"
GpuMemory: TypeAlias = "Callable[[], Mapping[str, tuple[float, float]]]"
"""Returns used and total bytes of each GPU by its name; empty where none is seen."""
INTERRUPTED = "interrupted"
OUT_OF_TIME = "the time of --for was over"
GONE = "the server is gone"


def _silent(_done: int, _of: int, _words: str) -> None:
    pass


def _no_gpus() -> Mapping[str, tuple[float, float]]:
    return {}


@dataclass(slots=True)
class Run:
    """One run of one probe. Make it with `begin`.

    Attributes:
        client: Has looked at the server.
        server: What it saw.
        vocabulary: Makes prompts.
        deadline: Monotonic time at which the probe has to end.
        request_seconds: Longest time for one request.
        seed: Of everything random.
        cancelled: Set by Ctrl-C (through `cancel`).
        report: Called with (done, of, words) as the probe goes on.
        gpu_memory: Returns used and total bytes of each GPU by its name; empty where none is seen.
        gone: Set when a request found nobody at the address any more.
        sent_back: How often a rate limit sent a request back, which was then sent again.
    """

    client: Client
    server: Server
    vocabulary: Vocabulary
    deadline: float
    request_seconds: float = 300.0
    seed: int = 0
    report: Progress = _silent
    gpu_memory: GpuMemory = _no_gpus
    started: float = field(default_factory=time.time)
    cancelled: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)
    sent_back: int = 0
    _meter: Meter | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def begin(
        cls,
        client: Client,
        *,
        seconds: float = 1800.0,
        request_seconds: float = 300.0,
        seed: int = 0,
        report: Progress = _silent,
        gpu_memory: GpuMemory = _no_gpus,
    ) -> Run:
        """Look at the server, find words for it, and start the clock: `seconds` for the whole probe.

        Raises:
            ProbeError: the probe is impossible.
        """
        deadline = time.monotonic() + seconds
        server = client.look()
        words = vocabulary.find(client)
        run = cls(client, server, words, deadline, request_seconds, seed, report, gpu_memory)
        if server.has_metrics:
            run._meter = Meter(server.url, client.token, verify=client.verify)
        return run

    def cancel(self) -> None:
        """End the probe: requests in progress are dropped, and no further one is sent."""
        self.cancelled.set()
        self.client.cancel()

    @property
    def over(self) -> str:
        """Why the probe has to end now, in the words of `Result.stopped_because`; empty while it may go on."""
        if self.cancelled.is_set():
            return INTERRUPTED
        if self.gone.is_set():
            return GONE
        return OUT_OF_TIME if time.monotonic() >= self.deadline else ""

    def make(self, prompt: Prompt, max_tokens: int, *, salt: str = "", lora: str = "", ignore_eos: bool = False) -> Ask:
        """Return the request; its own time begins when it is sent."""
        return Ask(prompt, max_tokens, self.deadline, salt, lora, ignore_eos)

    def ask(
        self, prompt: Prompt, max_tokens: int, *, salt: str = "", lora: str = "", ignore_eos: bool = False
    ) -> Reply:
        """Send one request and wait for the reply."""
        return self.send(self.make(prompt, max_tokens, salt=salt, lora=lora, ignore_eos=ignore_eos))

    def ask_all(self, asks: Sequence[Ask], concurrency: int) -> list[Reply]:
        """Send requests with at most `concurrency` of them open at a time; return the replies in the same order."""
        if concurrency <= 1 or len(asks) <= 1:
            return [self.send(ask) for ask in asks]
        with ThreadPoolExecutor(min(concurrency, len(asks)), thread_name_prefix="probe") as pool:
            return list(pool.map(self.send, asks))

    def send(self, ask: Ask) -> Reply:
        """Send a request now, or say why not any more; from any thread."""
        now = time.monotonic()
        if self.over:
            return Reply(ok=False, error=self.over, kind="cancelled", started=now, ended=now)
        stop_at = min(ask.stop_at, self.deadline, now + self.request_seconds)
        reply = self.client.complete(replace(ask, stop_at=stop_at))
        if reply.pauses:
            with self._lock:
                self.sent_back += reply.pauses
        if reply.kind == "lost" and not self._alive():
            self.gone.set()
        if reply.kind == "timeout" and self.over == OUT_OF_TIME:
            return replace(reply, kind="cancelled", error=OUT_OF_TIME)
        return reply

    def rate_limited(self) -> tuple[str, ...]:
        """Return a sentence about requests that a rate limit sent back; none where there were none."""
        if not self.sent_back:
            return ()
        what = "A request was" if self.sent_back == 1 else f"{self.sent_back:,} requests were"
        return (f"{what} sent back by a rate limit (HTTP 429 or 503) and sent again after the pause that it wants.",)

    def metrics(self) -> Reading | None:
        """Read the engine's metrics page now; None where there is none, or where it did not answer."""
        return self._meter.read() if self._meter is not None else None

    def close(self) -> None:
        """Close the connections."""
        self.client.close()
        if self._meter is not None:
            self._meter.close()

    def _alive(self) -> bool:
        """Return whether anybody listens at the address."""
        from gpuwatch.model import SourceError  # noqa: PLC0415  # needed only after a failure

        try:
            self.client.document("/v1/models", timeout=5.0)
        except SourceError:
            return False
        return True
