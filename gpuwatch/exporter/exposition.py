"""The pages of `/metrics`: at most one rendering per tick and format, on demand."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gpuwatch.exporter.http_message import zipped
from gpuwatch.exporter.render import Renderer

if TYPE_CHECKING:
    from gpuwatch.exporter.render import Format
    from gpuwatch.store import Column


class Exposition:
    """Holds the newest values that the pipeline handed over, and the pages made of them.

    `update` is called by the pipeline's thread and keeps references only; whoever asks for a page renders it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._columns: tuple[Column, ...] = ()
        self._rendered: tuple[Column, ...] = ()
        self._renderers: dict[Format, Renderer] = {"text": Renderer("text"), "openmetrics": Renderer("openmetrics")}
        self._pages: dict[tuple[Format, bool], bytes] = {}

    def update(self, columns: tuple[Column, ...]) -> None:
        """Take the newest values of a tick."""
        self._columns = columns

    def columns(self) -> tuple[Column, ...]:
        """Return the newest values, for a collector; empty before the first tick."""
        return self._columns

    def page(self, form: Format, *, gzip: bool = False) -> bytes:
        """Return the page of the newest values, compressed (RFC 1952) where `gzip` is set."""
        with self._lock:
            columns = self._columns
            if columns is not self._rendered:
                self._rendered = columns
                self._pages.clear()
            page = self._pages.get((form, gzip))
            if page is None:
                page = self._pages.get((form, False)) or self._renderers[form].page(columns)
                self._pages[form, False] = page
                if gzip:
                    page = self._pages[form, True] = zipped(page)
            return page
