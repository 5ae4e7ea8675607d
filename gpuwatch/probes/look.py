"""Who a server is, asked before a probe: model, longest request, engine, version, and what it takes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from gpuwatch.engines.catalog import detect
from gpuwatch.engines.info import EngineInfo, read_models, read_server_info, read_version
from gpuwatch.model import Reason, SourceError
from gpuwatch.probes.client import ProbeError, Server
from gpuwatch.probes.exchange import Ask
from gpuwatch.sources.engine.connect import proxies_for
from gpuwatch.sources.engine.exposition import ExpositionParser
from gpuwatch.sources.engine.http import Client as PageClient
from gpuwatch.sources.engine.source import ACCEPT

if TYPE_CHECKING:
    from gpuwatch.engines.metric import Kind
    from gpuwatch.probes.client import Client

SAMPLE = "one two three four five six seven eight"
PAGE_BYTES = 16 * 2**20
_PLAIN_IDS = tuple(range(300, 308))
"""Ids that every vocabulary of a served model has; asked of vLLM only, which refuses ids that it does not have."""


def look(client: Client, model: str) -> Server:
    """Return what the server of `client` says and does; `model` is the model to use, empty for the first one.

    Raises:
        ProbeError: nothing answers, it is no OpenAI-compatible server, or it does not serve `model`.
    """
    rows = _models(client)
    info = read_models(EngineInfo("vllm"), {"data": rows})
    names = [str(row["id"]) for row in rows]
    chosen = model or (info.models[0] if info.models else "")
    if not chosen:
        raise ProbeError(f"{client.url}/v1/models lists no model")
    if chosen not in names:
        raise ProbeError(f"--model {chosen}: not served at {client.url}; served: {', '.join(names[:8])}")
    kind = _page_kind(client)
    engine = _engine(rows, kind)
    version, limit = _version(client, engine)
    own = next((row.get("max_model_len") for row in rows if row["id"] == chosen), None)
    server = Server(
        url=client.url,
        engine=engine,
        version=version,
        model=chosen,
        max_model_len=own if isinstance(own, int) and own > 0 else info.max_model_len or limit,
        has_metrics=kind is not None,
        adapters=tuple(str(row["id"]) for row in rows if row.get("parent")),
    )
    client.server, client.model = server, chosen
    ids = client.tokenize(SAMPLE) or (_PLAIN_IDS if engine == "vllm" else None)
    return replace(server, takes_token_ids=ids is not None and _takes(client, ids))


def _models(client: Client) -> list[dict[str, Any]]:
    url = f"{client.url}/v1/models"
    try:
        status, document = client.document("/v1/models", timeout=min(client.timeout, 20.0))
    except SourceError as error:
        raise ProbeError(str(error), 3) from None
    if status in (401, 403):
        raise ProbeError(f"HTTP {status} from {url}: {_hint(client)}")
    if status >= 500:
        raise ProbeError(f"HTTP {status} from {url}: the server is not ready", 3)
    rows = document.get("data") if isinstance(document, dict) else None
    if status != 200 or not isinstance(rows, list):
        raise ProbeError(f"HTTP {status} from {url}: no OpenAI-compatible server with /v1/models")
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]


def _hint(client: Client) -> str:
    """Return what a refused login means: with a key, and without one."""
    return "the key was refused" if client.token else "name the variable that holds the key with --token-env"


def _page_kind(client: Client) -> Kind | None:
    """Return the engine whose metrics page the server has, or None."""
    reader = PageClient(verify=client.verify, proxies=proxies_for(client.url))
    try:
        answer = reader.get(client.url + "/metrics", timeout=10.0, limit=PAGE_BYTES, accept=ACCEPT, token=client.token)
    except SourceError:
        return None
    finally:
        reader.close()
    if answer.status != 200:
        return None
    detected = detect(ExpositionParser().parse(answer.body).layout.names())
    return detected.kind if detected is not None else None


def _engine(rows: list[dict[str, Any]], kind: Kind | None) -> Literal["vllm", "sglang", "other"]:
    if kind is not None:
        return kind
    owners = {row.get("owned_by") for row in rows}
    return "vllm" if "vllm" in owners else "sglang" if "sglang" in owners else "other"


def _version(client: Client, engine: Literal["vllm", "sglang", "other"]) -> tuple[str, int | None]:
    """Return the version and, where only this page says it, the longest request."""
    if engine == "other":
        return "", None
    read = read_version if engine == "vllm" else read_server_info
    info = EngineInfo(engine)
    for path in ("/version",) if engine == "vllm" else ("/server_info", "/get_server_info"):
        try:
            status, document = client.document(path)
        except SourceError as error:
            if error.reason is Reason.UNREACHABLE:
                raise ProbeError(str(error), 3) from None
            continue
        if status == 200:
            info = read(info, document)
            break
    return info.version, info.max_model_len


def _takes(client: Client, ids: tuple[int, ...]) -> bool:
    """Try whether a prompt of token ids is taken as one prompt: the server must count as many tokens as were sent.

    Raises:
        ProbeError: the server has no ``/v1/completions``, sends it elsewhere, or wants a key.
    """
    reply = client.complete(Ask(ids, 1, time.monotonic() + client.timeout))
    if reply.status in (401, 403):
        raise ProbeError(f"{client.url}/v1/completions: {reply.error.rstrip('.')}; {_hint(client)}")
    if reply.status in (404, 405, 501):
        raise ProbeError(f"{client.url}/v1/completions: {reply.error}; probes need the completions API")
    if reply.kind == "failed" and not reply.status:
        raise ProbeError(reply.error)
    if reply.kind == "timeout":
        raise ProbeError(f"{client.url} did not answer a prompt of {len(ids)} tokens within {client.timeout:g} s", 3)
    if reply.kind == "lost":
        raise ProbeError(reply.error, 3)
    counted = reply.prompt_tokens
    return reply.ok and counted is not None and len(ids) <= counted <= len(ids) + 1
