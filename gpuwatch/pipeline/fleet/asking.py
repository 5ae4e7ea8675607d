"""Many questions to one Prometheus: a few threads, one deadline for all of them, and patience with what fails."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gpuwatch.model import Reason
from gpuwatch.promql.remote import RemoteError
from gpuwatch.promql.values import PromQLError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from gpuwatch.promql.remote import RemoteQuerier

THREADS = 6
"""Queries in flight at once; a Prometheus runs 20 for all its users unless it was told otherwise."""
SILENT_FOR_ALL = 2
"""Queries of a round that run into their time limit while none was answered: then the rest is not asked."""
LONGEST_REST = 32
"""Most rounds that a query which keeps failing is left out."""

_HOPELESS = frozenset({Reason.UNREACHABLE, Reason.UNAUTHORIZED, Reason.NOT_METRICS})
"""Failures that concern the server and not the query: the rest of the round would fail the same way."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a question has no answer."""

    reason: Reason
    text: str


@dataclass(frozen=True, slots=True)
class Round:
    """The answers of one round by key. `down` is why the server as a whole did not answer; `seconds` it took."""

    found: Mapping[Hashable, Any]
    failed: Mapping[Hashable, Failure]
    seconds: float
    down: Failure | None = None


class _Open(Generic[T]):
    """A round that is under way; the threads and the one who waits share it."""

    def __init__(self, keys: set[Hashable]) -> None:
        self.changed = threading.Condition()
        self.left = keys
        self.found: dict[Hashable, T] = {}
        self.failed: dict[Hashable, Failure] = {}
        self.silent = 0
        self.down: Failure | None = None
        self.over = False

    def settle(self, key: Hashable, value: T | None, failure: Failure | None) -> None:
        """Take in one answer; those that come after the end are dropped."""
        with self.changed:
            if self.over:
                return
            self.left.discard(key)
            if failure is None:
                self.found[key] = value  # type: ignore[assignment]  # without a failure there is a value
            else:
                self.failed[key] = failure
                self.silent += failure.reason is Reason.TIMEOUT
                silent_for_all = self.silent >= SILENT_FOR_ALL and not self.found
                if self.down is None and (failure.reason in _HOPELESS or silent_for_all) and not self.found:
                    self.down = failure
            self.changed.notify()


class Asker:
    """Asks a Prometheus from a few threads of its own. `ask` and `close` are for one thread.

    Args:
        make: Makes the querier of one thread.
        threads: How many questions may be under way at once.
    """

    def __init__(self, make: Callable[[], RemoteQuerier], threads: int = THREADS) -> None:
        self._work: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._queriers = [make() for _ in range(threads)]
        self._rest: dict[Hashable, tuple[int, int, Failure]] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(querier,), name="prometheus", daemon=True)
            for querier in self._queriers
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, questions: Mapping[Hashable, Callable[[RemoteQuerier], Any]], deadline: float) -> Round:
        """Answer all `questions` within `deadline` seconds; what is late, or rests after failures, has a reason.

        A question that failed while others were answered is left out of the next round, then of two, of four, ….
        """
        begun = time.monotonic()
        resting = self._resting(questions)
        asked = [key for key in questions if key not in resting]
        open_ = _Open[Any](set(asked))
        for key in asked:
            self._work.put((open_, key, questions[key]))
        with open_.changed:
            while open_.left and open_.down is None:
                wait = begun + deadline - time.monotonic()
                if wait <= 0:
                    break
                open_.changed.wait(wait)
            open_.over = True
            late = Failure(Reason.TIMEOUT, f"no answer within {deadline:g} s")
            missing = open_.down or late
            failed = {**open_.failed, **dict.fromkeys(open_.left, missing)}
            down = open_.down or (next(iter(failed.values()), None) if not open_.found else None)
        if down is None:
            self._remember(asked, failed)
        return Round(open_.found, {**failed, **resting}, time.monotonic() - begun, down)

    def close(self) -> None:
        """End every request and every thread; waits for none."""
        for _ in self._threads:
            self._work.put(None)
        for querier in self._queriers:
            querier.close()

    def _resting(self, questions: Mapping[Hashable, Any]) -> dict[Hashable, Failure]:
        """Return the questions that are left out this time, with their last failure."""
        resting = {}
        for key in questions:
            failures, rounds, failure = self._rest.get(key, (0, 0, None))
            if failure is not None and rounds > 0:
                self._rest[key] = (failures, rounds - 1, failure)
                resting[key] = failure
        return resting

    def _remember(self, asked: list[Hashable], failed: Mapping[Hashable, Failure]) -> None:
        """Note how long each failing question rests."""
        for key in asked:
            if key in failed:
                failures = self._rest.get(key, (0, 0, None))[0] + 1
                self._rest[key] = (failures, min(2 ** (failures - 1), LONGEST_REST), failed[key])
            else:
                self._rest.pop(key, None)

    def _run(self, querier: RemoteQuerier) -> None:
        try:
            self._answer(querier)
        finally:
            querier.close()  # once more: a connection may have been opened since

    def _answer(self, querier: RemoteQuerier) -> None:
        while (job := self._work.get()) is not None:
            open_, key, question = job
            if open_.over or open_.down is not None:
                continue
            try:
                value, failure = question(querier), None
            except RemoteError as error:
                value, failure = None, Failure(error.reason, str(error))
            except PromQLError as error:
                value, failure = None, Failure(Reason.FAILED, str(error))
            except Exception as error:  # noqa: BLE001  # a thread that dies would leave its questions open
                value, failure = None, Failure(Reason.FAILED, f"internal error: {type(error).__name__}: {error}")
            open_.settle(key, value, failure)
