"""Errors that are about one request: the client is told, and the engine goes on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.view import FRAMES_BEFORE, group

if TYPE_CHECKING:
    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.model import LogEvent

# What both engines, FastAPI, pydantic and Jinja raise on what a client sent, whatever the words.
_TYPES = (
    "VLLMValidationError",
    "VLLMNotFoundError",
    "RequestValidationError",
    "ClientDisconnect",
)
# A start fails with these as well, over the files of a model.
_TYPES_SERVING = ("HTTPException", "BadRequestError", "JSONDecodeError", "TemplateError")
_WORDS = re.compile(
    r"maximum context length|context length is only|reduce the length of the (?:input|message|prompt)"
    r"|[Rr]equested token count exceeds|longer than the (?:model's|maximum) context length"
    r"|max_(?:completion_)?tokens.{0,40} (?:too large|must be at least)|[Pp]rompt cannot be empty"
)
# The modules of both servers that read requests and write answers; no other part of an engine runs in them.
_SERVER = re.compile(
    r"\b(?:serving(?:_\w+)?|protocol|http_server|tokenizer_manager|chat_utils|preprocess)\.py:\d+\]|\[http_server\]"
)


def refused(event: LogEvent) -> bool:
    """Whether an error says by itself that it is about what a client sent."""
    return group(event, "type").endswith(_TYPES) or _WORDS.search(event.text) is not None


def only(view: View, event: LogEvent) -> bool:
    """Whether an error is about one request only: by its words, or by the part of a server that told it."""
    if refused(event):
        return True
    run = view.run_of(event)
    if event.event != "exception" or not _serves(view, run, event):
        return False
    if group(event, "type").endswith(_TYPES_SERVING) or _SERVER.search(event.text):
        return True
    return any(
        each.source == event.source and 0 <= event.line - each.line <= FRAMES_BEFORE
        for each in view.events("request_failed")
    )


def _serves(view: View, run: Run, event: LogEvent) -> bool:
    """Whether the server took requests before the line of an error."""
    return any((fact.line or 0) < event.line for fact in run.all("ready")) or any(
        run.holds(each) and each.line < event.line for each in view.events("stats")
    )
