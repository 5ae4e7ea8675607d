"""HTTP/1.1 messages of a server that only answers GET and HEAD: strict reading of request heads, writing of answers.

Source: RFC 9110 and RFC 9112. Whatever could be read in two ways (two Host fields, folded lines, spaces before a
colon, a body of unclear length) is refused.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
import zlib
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_HEAD = 16 * 1024
MAX_TARGET = 4 * 1024
MAX_FIELDS = 100

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_COMPRESS_FROM = 1024
GZIP_LEVEL = 1
"""A page of 300 KB shrinks to a tenth at level 1 already; more would take several times as long."""
_GZIP_WINDOW = 31


class BadRequestError(Exception):
    """A request that is refused with `status`; the message goes to the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request. Names of `headers` are lower case; `host` is without the port."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    host: str
    keep_alive: bool

    def header(self, name: str) -> str:
        """Return a header field, or the empty string."""
        return self.headers.get(name, "")


@dataclass(frozen=True, slots=True)
class Response:
    """An answer. `zipped` is the body as gzip where that exists already."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    zipped: bytes | None = field(default=None, repr=False)


def refused(status: int, text: str, *headers: tuple[str, str]) -> Response:
    """Return an answer of one line."""
    return Response(status, f"{text}\n".encode(), headers=headers)


def read_head(data: bytes) -> Request:
    """Read a request head, up to and without the empty line.

    Raises:
        BadRequestError: It is not one, too large, or of another version than HTTP/1.0 and 1.1.
    """
    try:
        first, *lines = data.decode("latin-1").lstrip("\r\n").split("\r\n")
        method, target, version = first.split(" ")
    except ValueError:
        raise BadRequestError(400, "this is no HTTP request") from None
    if not _TOKEN.fullmatch(method):
        raise BadRequestError(400, "this is no HTTP request")
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        known = re.fullmatch(r"HTTP/\d(\.\d)?", version)
        raise BadRequestError(505 if known else 400, "HTTP/1.1 is spoken here")
    if len(target) > MAX_TARGET:
        raise BadRequestError(414, f"the address is over {MAX_TARGET} bytes")
    headers = _fields(lines)
    authority, path, query = _target(target)
    host = _host(authority or headers.get("host"), version)
    if "transfer-encoding" in headers:
        raise BadRequestError(400, "a request with Transfer-Encoding is not read")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise BadRequestError(400, "Content-Length is no number")
    words = {word.strip().lower() for word in headers.get("connection", "").split(",")}
    stays = "close" not in words if version == "HTTP/1.1" else "keep-alive" in words
    return Request(method, path, query, headers, host, stays and not length.strip("0"))


def _fields(lines: Sequence[str]) -> dict[str, str]:
    if len(lines) > MAX_FIELDS:
        raise BadRequestError(431, f"more than {MAX_FIELDS} header fields")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadRequestError(400, "a header field is malformed")
        name, value = name.lower(), value.strip(" \t")
        if name in headers:
            if name in ("host", "content-length", "authorization"):
                raise BadRequestError(400, f"the header field {name} is given twice")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    return headers


def _target(target: str) -> tuple[str | None, str, dict[str, str]]:
    """Return (authority of an absolute address, path, query)."""
    if not target.isascii() or not target.isprintable():
        raise BadRequestError(400, "the address is malformed")
    try:
        parts = urlsplit(target if not target.startswith("//") else "/" + target)
        query = parse_qs(parts.query, keep_blank_values=True, max_num_fields=20)
    except ValueError:
        raise BadRequestError(400, "the address is malformed") from None
    if parts.scheme not in ("", "http", "https") or (not parts.scheme and not target.startswith("/")):
        raise BadRequestError(400, "the address is malformed")
    return parts.netloc or None, parts.path or "/", {name: values[-1] for name, values in query.items()}


def _host(text: str | None, version: str) -> str:
    """Return the host that a request names, in lower case and without brackets; empty where HTTP/1.0 names none."""
    if text is None:
        if version == "HTTP/1.0":
            return ""
        raise BadRequestError(400, "the header field Host is missing")
    match = _HOST.fullmatch(text)
    if match is None or int(match[2] or 0) > 65535:
        raise BadRequestError(400, "the header field Host is malformed")
    return match[1].strip("[]").rstrip(".").lower()


def is_loopback(host: str) -> bool:
    """Say whether a host name means this machine and cannot be made to mean another: what DNS rebinding needs."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def host_refusal(host: str, *, local: bool, names: Sequence[str]) -> str:
    """Return why a request for `host` is not answered, or the empty string.

    Args:
        host: What the request named; HTTP/1.0 may name nothing.
        local: Whether we listen on a loopback address only. Then a foreign name can only come from a page in a
            browser whose name was made to point here, or from a proxy, whose names must be configured.
        names: Names that are configured. Elsewhere than on loopback any name is right where none is.
    """
    if not host or is_loopback(host) or host in names or (not local and not names):
        return ""
    if not local:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            pass
        else:
            return ""
    return f"{host} is not a name of this server; [serve] hosts lists them"


def credentials(header: str) -> tuple[str, str] | None:
    """Return user and password of an ``Authorization: Basic`` field, or None."""
    kind, _, encoded = header.partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    user, colon, password = text.partition(":")
    return (user, password) if colon else None


def quality(header: str, wanted: str) -> float:
    """Return the weight (0 to 1) that an Accept or Accept-Encoding field gives to `wanted` by name; 0: not named."""
    best = 0.0
    for part in header.lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        if name != wanted:
            continue
        weight = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        try:
            best = max(best, min(1.0, float(weight)))
        except ValueError:
            continue
    return best


def write(request: Request | None, response: Response, extra: Sequence[tuple[str, str]], *, close: bool) -> bytes:
    """Return the bytes of an answer; with gzip where the client takes it and it pays, without body for HEAD."""
    body, headers = response.body, [*response.headers]
    takes_gzip = request is not None and quality(request.header("accept-encoding"), "gzip") > 0
    if response.zipped is not None or len(body) >= _COMPRESS_FROM:
        headers.append(("Vary", "Accept-Encoding"))
        if takes_gzip:
            body = response.zipped if response.zipped is not None else zipped(body)
            headers.append(("Content-Encoding", "gzip"))
    try:
        phrase = HTTPStatus(response.status).phrase
    except ValueError:
        phrase = ""
    lines = [
        f"HTTP/1.1 {response.status} {phrase}",
        f"Date: {formatdate(usegmt=True)}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in (*headers, *extra)),
        f"Connection: {'close' if close else 'keep-alive'}",
    ]
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    return head if request is not None and request.method == "HEAD" else head + body


def zipped(body: bytes) -> bytes:
    """Return `body` as gzip (RFC 1952)."""
    zipper = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    return zipper.compress(body) + zipper.flush()
