"""Is the advertised length real: does it fit, was the model made for it, is it accepted, and is all of it read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.finding import Advice, Evidence, Finding
from gpuwatch.probes import truncation
from gpuwatch.probes.limits import Pool, read_pool
from gpuwatch.probes.ramp_verdict import findings as pool_findings
from gpuwatch.probes.refusal import Refused, limit_of, longer, refused, too_large
from gpuwatch.probes.result import Result
from gpuwatch.probes.truncation import Short, fate
from gpuwatch.probes.vocabulary import GUESSED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuwatch.model import Fact, LogEvent
    from gpuwatch.probes.exchange import Kind, Reply
    from gpuwatch.probes.result import Figure, Value
    from gpuwatch.probes.run import Run
    from gpuwatch.probes.truncation import Fate
    from gpuwatch.probes.vocabulary import Vocabulary

NAME = "context"
OUTPUT = 8
BEYOND = 64
"""Tokens over the limit of the request that has to be refused."""
_ASSUMED = (2048, 8192, 32_768)
"""Lengths that are tried where the server states no limit."""
_ENDING = ("failed", "limited", "login")
"""What ends the probe without ``--to-the-end``: a server with errors of its own is left alone, so that it survives."""
_EVENTS = ("rope_beyond_native", "rope_key_unknown", "prompt_too_long", "max_model_len_exceeds_kv")


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """What to try and what is known besides.

    Attributes:
        length: The length to test instead of what the server states; None: that.
        facts: Facts from logs, launch flags and model files, by key (`engines.facts`).
        events: Recognised log lines.
        to_the_end: Send the full length although it can never fit into the KV pool.
    """

    length: int | None = None
    facts: Mapping[str, Fact] = field(default_factory=dict)
    events: tuple[LogEvent, ...] = ()
    to_the_end: bool = False


@dataclass(frozen=True, slots=True)
class _Try:
    """One request: what was sent (tokens: prompt only), and what came of it."""

    what: str
    tokens: int
    reply: Reply
    words: Vocabulary

    @property
    def outcome(self) -> Fate | Kind:
        reply = self.reply
        if not reply.answered:
            return reply.kind
        return fate(reply, self.tokens, self.words)

    @property
    def accepted(self) -> bool:
        """Whether the server began to answer."""
        return self.outcome in ("whole", "cut", "not counted", "ignored")

    @property
    def answered(self) -> bool:
        """Whether the server took the request or refused it for what it is; a refused login says nothing of it."""
        return self.accepted or self.outcome == "refused"

    @property
    def refusal(self) -> Refused:
        """The request, as one that was refused."""
        return Refused(self.tokens, OUTPUT, self.reply.error, self.reply.sent_bytes, self.words.exact)

    @property
    def ends(self) -> bool:
        """Whether this answer ends the probe without ``--to-the-end``."""
        return self.outcome in _ENDING

    def row(self) -> dict[str, Value]:
        reply = self.reply
        return {
            "request": self.what,
            "sent_tokens": self.tokens,
            "counted_tokens": reply.prompt_tokens,
            "outcome": self.outcome,
            "http_status": reply.status or None,
            "ttft_s": reply.ttft,
            "detail": reply.error,
        }


def probe(run: Run, options: ContextOptions) -> Result:
    """Compare what is stated about the context length, and try it."""
    pool = read_pool(run.metrics(), run.server.engine) or _printed(run, options)
    stated = run.server.max_model_len
    wanted = options.length or stated
    tries: list[_Try] = []
    for what, tokens in _plan(wanted, stated, pool, options):
        if run.over:
            break
        run.report(len(tries), 4, f"{what}: {tokens:,} tokens")
        reply = run.ask(run.vocabulary.prompt(tokens, f"{run.seed}/{run.started}/{what}"), OUTPUT)
        if reply.kind == "cancelled":
            break
        tries.append(_Try(what, tokens, reply, run.vocabulary))
        if reply.kind == "lost" or run.gone.is_set() or (tries[-1].ends and not options.to_the_end):
            break
    stopped = run.over or _gave_up(tries, options)
    accepted = max((each.tokens + OUTPUT for each in tries if each.accepted), default=0)
    found = (
        *pool_findings(run, pool, accepted),
        *_rope(run, wanted, options, accepted),
        *_refused(run, tries, wanted),
        *_truncation(run, tries),
    )
    return Result(
        probe=NAME,
        server=run.server,
        started=run.started,
        complete=not stopped,
        stopped_because=stopped,
        facts=tuple(_facts(run, pool, tries, options)),
        rows=tuple(each.row() for each in tries),
        findings=found,
        conclusion=(*_conclusion(run, wanted, pool, tries, options), *run.rate_limited()),
        advice=tuple(advice for finding in found for advice in finding.advice),
    )


def _printed(run: Run, options: ContextOptions) -> Pool | None:
    """Return the pool as the engine's log states it, for a server without a metrics page."""
    tokens = _number(options.facts.get("kv.tokens"))
    if tokens is None or tokens < 1:
        return None
    block = int(_number(options.facts.get("kv.block_size")) or 1)
    return Pool(int(tokens), block, int(tokens) // block - (1 if run.server.engine == "vllm" else 0))


def _plan(
    wanted: int | None, stated: int | None, pool: Pool | None, options: ContextOptions
) -> Iterator[tuple[str, int]]:
    """Yield name and prompt length of the requests: half, full, and over the limit."""
    if wanted is None:
        for number, tokens in enumerate(_ASSUMED, 1):
            if _beyond(tokens, pool, options):
                assert pool is not None
                if pool.usable - OUTPUT >= 1:
                    yield "as long as fits", pool.usable - OUTPUT
                return
            yield f"length {number}", tokens
        return
    full = max(1, wanted - OUTPUT)
    fits = full if pool is None or options.to_the_end else min(full, pool.usable - OUTPUT)
    if fits < 1:
        return
    if fits // 2 >= 16:
        yield "half", fits // 2
    yield ("full length" if fits == full else "as long as fits"), fits
    if stated is not None and wanted >= stated:
        yield "over the limit", stated + BEYOND


def _beyond(tokens: int, pool: Pool | None, options: ContextOptions) -> bool:
    """Return whether a prompt of so many tokens is not sent, as it can never fit into the KV pool with its answer."""
    return pool is not None and not options.to_the_end and tokens + OUTPUT > pool.usable


def _gave_up(tries: list[_Try], options: ContextOptions) -> str:
    last = tries[-1].reply if tries else None
    if last is None or not (last.kind == "lost" or (tries[-1].ends and not options.to_the_end)):
        return ""
    more = "; nothing more is sent, so that the server survives" if last.kind == "failed" else ""
    return f"the request of {tries[-1].tokens:,} tokens: {last.error}{more}"


def _facts(run: Run, pool: Pool | None, tries: list[_Try], options: ContextOptions) -> Iterator[Figure]:
    native, printed = options.facts.get("model.context"), options.facts.get("kv.tokens")
    yield "answered", any(each.answered for each in tries) if tries else None, ""
    yield "max_model_len", run.server.max_model_len, "tokens"
    yield "kv_pool_tokens", pool.tokens if pool else None, "tokens"
    yield "kv_pool_usable_tokens", pool.usable if pool else None, "tokens"
    yield "kv_pool_tokens_printed", _number(printed), "tokens"
    yield "native_context", _number(native), "tokens"
    for event in options.events:
        if event.event in _EVENTS:
            yield f"log_{event.event}", f"{event.source}:{event.line}", ""


def _number(fact: Fact | None) -> float | None:
    if fact is None or isinstance(fact.value, (str, bool)):
        return None
    return float(fact.value)


def _conclusion(
    run: Run, wanted: int | None, pool: Pool | None, tries: list[_Try], options: ContextOptions
) -> Iterator[str]:
    limit, native = run.server.max_model_len, _number(options.facts.get("model.context"))
    yield f"The server states {limit:,} tokens." if limit is not None else "The server does not state its limit."
    if pool is not None and wanted is not None:
        if pool.usable < wanted:
            yield f"The KV pool has room for {pool.usable:,} tokens: the length of {wanted:,} is not real."
        else:
            yield f"The KV pool holds {pool.usable / wanted:.1f} requests of {wanted:,} tokens."
    elif pool is None:
        yield "The size of the KV pool is not known: the server has no metrics page that tells it."
    elif _beyond(_ASSUMED[-1], pool, options):
        yield f"The KV pool has room for {pool.usable:,} tokens: longer prompts can never fit, and were not sent."
    bad = _short(tries, wanted)
    yield from _not_real(bad, wanted, limit, guessed=run.vocabulary.guessed)
    yield from _why_refused(bad or next((each for each in tries if each.outcome == "refused"), None), tries, limit)
    if native is None:
        yield "What the model was made for is not known; --model-config FILE or --log FILE tells it."
    elif wanted is not None:
        word = "within" if wanted <= native else "beyond"
        yield f"That is {word} the {native:,.0f} tokens that the model was made for, scaling included."
    for each in tries:
        yield _said(each)
    if any(each.outcome == "whole" for each in tries):
        yield "That all tokens were counted does not show that the model finds what they say (gpuwatch probe needle)."


def _not_real(bad: _Try | None, wanted: int | None, stated: int | None, *, guessed: bool) -> Iterator[str]:
    """Say what the shortest request that was refused within the length to test means; `guessed`: its length is."""
    if guessed:
        yield GUESSED
    if bad is None or wanted is None:
        return
    if longer(bad.reply.error, stated, OUTPUT):
        yield (
            f"The request of {bad.tokens:,} tokens was longer by the words of its refusal: what the server counts is "
            "not the whole prompt."
        )
    elif not guessed:
        yield f"The length of {wanted:,} is not real: refused at {bad.tokens:,}."


def _said(each: _Try) -> str:
    about, guessed = "about " if each.words.guessed else "", each.words.guessed
    what, counted = f"{about}{each.tokens:,} tokens ({each.what})", each.reply.prompt_tokens
    texts = {
        "whole": "accepted, and all of them counted",
        "cut": f"accepted, but only {counted or 0:,} counted: the prompt was cut",
        "ignored": "accepted, but not one token was generated: the prompt was ignored",
        "not counted": "accepted; the server does not count prompt tokens, so a cut cannot be seen",
        "refused": "refused",
        "login": "the login was refused, which says nothing about the length",
    }
    text = texts.get(each.outcome, f"no answer ({each.outcome})")
    if each.what == "over the limit" and each.outcome == "refused":
        text = "refused with an error, as it has to be"
    elif each.what == "over the limit" and each.outcome == "whole":
        text = "accepted, and all of them counted: the limit is not what the server states"
    elif guessed and each.outcome == "not counted" and not each.reply.ran_on:
        beyond = ", nor whether it was over the limit" if each.what == "over the limit" else ""
        text = f"accepted; how many tokens it has is a guess, so a cut cannot be seen{beyond}"
    elif each.reply.ran_on:
        text = "accepted; max_tokens is ignored, so the count that comes at the end was not seen, and no cut could be"
    elif each.reply.error:
        text += f": {each.reply.error}"
    return f"{what}: {text.rstrip('.')}."


def _short(tries: list[_Try], wanted: int | None) -> _Try | None:
    """Return the shortest request within the length to test that the server refused."""
    within = [each for each in tries if each.outcome == "refused" and each.tokens + OUTPUT <= (wanted or 0)]
    return min(within, key=lambda each: each.tokens, default=None)


def _below(tries: list[_Try], bad: _Try) -> int | None:
    """Return the tokens of the longest accepted request that is shorter than `bad`, prompt and answer."""
    return max((each.tokens + OUTPUT for each in tries if each.accepted and each.tokens < bad.tokens), default=None)


def _why_refused(bad: _Try | None, tries: list[_Try], stated: int | None) -> Iterator[str]:
    """Say what a refusal names as the limit where the server states another one or none, or that it is about bytes."""
    if bad is None:
        return
    limit = limit_of(bad.refusal, stated, _below(tries, bad))
    if limit is not None:
        what = "prompt and answer together" if limit.counts == "request" else "for the prompt"
        yield f"By the words of its refusal the server takes {limit.tokens:,} tokens, {what}."
    elif too_large(bad.refusal):
        yield "HTTP 413 is about the size of the body in bytes: what stands in front of the engine takes no larger one."


def _refused(run: Run, tries: list[_Try], wanted: int | None) -> Iterator[Finding]:
    """Judge requests that are refused although they are within what the server states."""
    bad, stated = _short(tries, wanted), run.server.max_model_len
    if bad is None or stated is None or bad.tokens + OUTPUT > stated:
        return
    if run.vocabulary.guessed or longer(bad.reply.error, stated, OUTPUT):
        return
    yield refused(run, bad.refusal, _below(tries, bad))


def _rope(run: Run, wanted: int | None, options: ContextOptions, accepted: int) -> Iterator[Finding]:
    """Judge a length beyond what the model's positions are made for."""
    fact = options.facts.get("model.context")
    native = _number(fact)
    lines = [event for event in options.events if event.event in ("rope_beyond_native", "rope_key_unknown")]
    if fact is None or native is None or wanted is None or wanted <= native:
        return
    sglang, stated = run.server.engine == "sglang", run.server.max_model_len
    if accepted > native:
        length = f"a request of {accepted:,} tokens was accepted"
    elif stated is not None and wanted <= stated:
        length = f"the server states a limit of {stated:,} tokens"
    else:
        length = f"a length of {wanted:,} tokens was asked for"
    factor = -(-wanted // int(native))
    yield Finding(
        id="rope_context",
        severity="warning",
        title="The context is longer than the model was made for",
        cause=(
            f"Positions beyond {native:,.0f} were never trained and are not scaled: answers that need them turn to "
            "nonsense, without an error."
        ),
        confidence=0.9,
        evidence=(
            Evidence(
                length,
                f"{run.server.url}/v1/models",
                name="gpuwatch_engine_config_max_model_len_tokens",
                value=float(wanted),
                unit="tokens",
            ),
            Evidence(
                f"the model is made for {native:,.0f}, scaling included",
                fact.source,
                fact.line,
                fact.key,
                native,
                "tokens",
            ),
            *(Evidence(event.text, event.source, event.line, event.event) for event in lines[-2:]),
        ),
        advice=(
            Advice(
                "accept no more than the model is made for",
                "--context-length" if sglang else "--max-model-len",
                str(wanted),
                f"{native:.0f}",
            ),
            Advice(
                "or scale the positions, if the model's authors say how (YaRN)",
                "--json-model-override-args" if sglang else "--hf-overrides",
                None,
                f'{{"rope_scaling": {{"rope_type": "yarn", "factor": {factor}.0, '
                f'"original_max_position_embeddings": {native:.0f}}}}}',
            ),
        ),
        since=int(run.started * 1000),
    )


def _truncation(run: Run, tries: list[_Try]) -> tuple[Finding, ...]:
    """Judge prompts that were cut or ignored without an error."""
    bad = []
    for each in tries:
        outcome = each.outcome
        if outcome in ("cut", "ignored"):
            bad.append(Short(each.tokens, each.reply.prompt_tokens, "cut" if outcome == "cut" else "ignored"))
    whole = max((each.tokens for each in tries if each.outcome == "whole"), default=None)
    return truncation.finding(run, bad, whole, OUTPUT)
