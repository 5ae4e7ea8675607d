"""What a screen is connected to: snapshots as they come, and questions to the thread that owns the store."""

from __future__ import annotations

import logging
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatch.snapshot import Snapshot

T = TypeVar("T")

log = logging.getLogger(__name__)


class Subscribers:
    """Who wants snapshots. Callbacks run on the pipeline thread and must return at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: tuple[Callable[[Snapshot], None], ...] = ()

    def __bool__(self) -> bool:
        """Whether anybody listens."""
        return bool(self._callbacks)

    def add(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """Call `callback` with every snapshot from now on; the returned function ends that."""
        with self._lock:
            self._callbacks = (*self._callbacks, callback)

        def remove() -> None:
            with self._lock:
                self._callbacks = tuple(item for item in self._callbacks if item is not callback)

        return remove

    def publish(self, snapshot: Snapshot) -> None:
        """Hand `snapshot` to every subscriber; one that fails does not stop the others."""
        for callback in self._callbacks:
            try:
                callback(snapshot)
            except Exception:
                log.exception("a subscriber failed")


class Question(Generic[T]):
    """A function to be run on the pipeline thread, and the future of its result."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self.future: Future[T] = Future()
        self._ask = ask

    def run(self) -> None:
        """Run the function, unless nobody waits any more."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self._ask())
        except Exception as error:  # noqa: BLE001  # handed to whoever asked
            self.future.set_exception(error)


class Questions:
    """The queue through which other threads ask the pipeline thread."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Question[object]] = queue.Queue()

    def put(self, ask: Callable[[], T]) -> Future[T]:
        """Have `ask` run on the pipeline thread; its result or error comes through the future."""
        question = Question(ask)
        self._queue.put(question)  # type: ignore[arg-type]  # the queue does not look at results
        return question.future

    def answer_for(self, seconds: float) -> None:
        """Answer questions for `seconds`; returns early after one, so that the caller can look at its clock."""
        try:
            self._queue.get(timeout=max(0.0, seconds)).run()
        except queue.Empty:
            return
