"""Reading the answer of an HTTP server: in pieces as they come, up to a size, and what a refusal says."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from gpuwatch.probes.named_limit import from_fields
from gpuwatch.probes.stream import MOST_CHARACTERS, error_text, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    import requests

    from gpuwatch.probes.stream import Events

MOST_BYTES = 64 * 2**20


def parts(response: requests.Response) -> Iterator[bytes]:
    """Yield what comes as it comes: chunks where the server sends chunks, what is there where it just writes."""
    if "chunked" in response.headers.get("Transfer-Encoding", "").lower():
        yield from response.iter_content(None)
        return
    read1 = getattr(response.raw, "read1", None)  # urllib3 1.26 has none
    if read1 is None:
        yield from response.iter_content(1)
        return
    while part := read1(decode_content=True):
        yield part


def read(response: requests.Response, limit: int = MOST_BYTES) -> bytes:
    """Return the body; what goes over `limit` bytes is not read."""
    pieces, size = [], 0
    for part in response.iter_content(65_536):
        pieces.append(part)
        size += len(part)
        if size > limit:
            response.close()
            break
    return b"".join(pieces)


def take_whole(content: bytes, events: Events) -> None:
    """Take an answer that came in one piece although a stream was asked for."""
    events.feed(b"data: " + content.replace(b"\n", b" ") + b"\n", time.monotonic())
    events.end(time.monotonic())


def refusal(status: int, content: bytes) -> str:
    """Return a status other than 200 with what the body says of it, whole, in one line; web pages say nothing."""
    limit = ""
    try:
        document = json.loads(content)
        text, limit = error_text(document), from_fields(document)
    except (ValueError, RecursionError):
        said = content.decode("utf-8", "replace")
        text = "" if said.lstrip().startswith("<") else one_line(said, MOST_CHARACTERS)
    head = f"HTTP {status} ({limit})" if limit else f"HTTP {status}"
    return f"{head}: {text}" if text else head


def seconds(text: str | None) -> float | None:
    """Return the seconds in a header such as ``Retry-After``; None where it holds none, or a date."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < 1e6 else None
