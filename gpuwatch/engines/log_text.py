"""Log text made fit to show and keep: no terminal codes, no prompts, no keys, bounded length."""

from __future__ import annotations

import re

CUT = "<redacted>"

# ECMA-48: CSI, OSC and the other string sequences, then two-character escapes; a sequence that is cut off goes as well.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*(?:[@-~]|$)"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)"
    r"|\x1b[ -/]*[0-~]?"
    r"|\x9b[0-?]*[ -/]*(?:[@-~]|$)"
    r"|[\x90\x98\x9d-\x9f][^\x07\x1b\x9c]*(?:\x07|\x9c|\x1b\\|$)"
)
# C0 and C1 controls, and characters that reorder text or end a line where no one sees it.
_CONTROLS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_SUSPECT = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def clean(text: str) -> str:
    """Remove terminal sequences and control characters; a tab becomes four spaces, trailing space goes."""
    if _SUSPECT.search(text) is not None:
        text = _CONTROLS.sub("", _ESCAPES.sub("", text).replace("\t", "    "))
    return text.rstrip()


def limit(text: str, length: int) -> str:
    """Return at most `length` characters, the last being an ellipsis where something is missing."""
    return text if len(text) <= length else text[: length - 1] + "…"


# Lines that carry a request, an answer or a batch: everything after the head goes.
_BODIES = (
    re.compile(
        r"(?P<keep>\b(?:Received request|Generated response|Request) [\w.:-]{1,80}(?: details| JSON body)?:).*",
        re.DOTALL,
    ),
    re.compile(r"(?P<keep>\bGenerated response \S{1,80}(?: \([^)]*\))?:).*", re.DOTALL),
    re.compile(r"(?P<keep>(?:^|\] |\b(?:DEBUG|INFO|WARNING|ERROR):? +)(?:Receive|Finish):).*", re.DOTALL),
    # SGLang's requests as JSON (0.5.7 on), and what a parser of tool calls could not read.
    re.compile(r"(?P<keep>\"event\": ?\"request\.\w{1,20}\").*", re.DOTALL),
    re.compile(
        r"(?P<keep>\b(?:parsing|extracting|invalid) tool[ _]calls?\b[^:{'\"]{0,40}:?).*", re.DOTALL | re.IGNORECASE
    ),
    re.compile(
        r"(?P<keep>\bDumping (?:input data for V1 LLM engine \(\S+\)|input data|scheduler output for model execution|"
        r"scheduler stats)).*",
        re.DOTALL,
    ),
    # A field that holds text of a request, in a printed dict, dataclass or JSON.
    re.compile(
        r"(?P<keep>['\"]?\b(?:prompt|prompts|prompt_token_ids|prompt_embeds|input_ids|output_ids|token_ids|messages|input_text|"
        r"origin_input_text|decoded_text|generated_text|outputs?|completion|input_value)['\"]?\s*[:=]\s*)(?=['\"\[{(])"
        r".*",
        re.DOTALL,
    ),
    # The same under more general names, where quotes or braces show that it is data and not code.
    re.compile(
        r"(?P<keep>\\*['\"](?:content|text|query|question|inputs?|messages?|instructions?|documents?|prompts?|completion"
        r"|arguments|tool_calls|reasoning(?:_content)?)"
        r"\\*['\"]\s*[:=]\s*)(?=[bru]?\\*['\"\[{(]).*",
        re.DOTALL,
    ),
    re.compile(
        r"(?P<keep>(?<![\w.#-])(?:content|text|query|question|inputs?|messages?|instructions?|prompts?|completion)"
        r"\s*[:=]\s*)(?=[bru]?\\*['\"\u201c]).*",
        re.DOTALL | re.IGNORECASE,
    ),
    # Without quotes: a number or a name that is passed on is no text of a request.
    re.compile(
        r"(?P<keep>(?<![\w.#-])(?P<name>prompts?|question|completion)(?:\s*:\s+|=))"
        r"(?!(?:None|True|False|null|-?\d[\d.,]*|(?P=name)|self\.\S*)\s*(?:[,;)\]}]|$)|<redacted>)\S.*",
        re.DOTALL | re.IGNORECASE,
    ),
    re.compile(
        r"(?P<keep>(?<![\w.#-])(?:answer|reply)=|(?<![\w.#-])(?:answer|reply|response|chunk|passage|snippet|excerpt)"
        r"\s*[:=]\s*(?=[bru]?\\*['\"\u201c]))(?!<redacted>)\S.*",
        re.DOTALL | re.IGNORECASE,
    ),
    re.compile(
        r"(?P<keep>(?:^|[\])] |\b(?:DEBUG|INFO|WARNING|ERROR):? +)(?:input|query|text|content|user|human|assistant): +)"
        r"(?!-?\d[\d.,]*\s*$|<redacted>)\S.*",
        re.DOTALL | re.IGNORECASE,
    ),
)
_BODY_WORDS = re.compile(
    r"received request|generated response|request \S|receive:|finish:|dumping |prompt|_ids|message|text|outputs?['\"]?\s*[:=]"
    r"|completion|input|content|query|question|instruction|document|user:|human:|assistant:|arguments|tool[ _]call|reasoning"
    r"|answer|reply=|reply['\" ]*:|response|chunk['\" ]*[:=]|passage|snippet|excerpt|request\.",
    re.IGNORECASE,
)
# Of a request line the path stays; a query may be what somebody typed.
_QUERIES = (
    re.compile(r"(?P<keep>\"(?:GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) [^\s\"?]*\?)[^\"]*?(?= HTTP/\d|\"|$)"),
    # What signs an address of a store for whoever has it: S3, Google, Azure, CloudFront.
    re.compile(
        r"(?P<keep>[?&](?:X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)|AWSAccessKeyId|GoogleAccessId"
        r"|Signature|Policy|Key-Pair-Id|sig|sign|auth_key|hmac)=)[^&\s\"'<>]+",
        re.IGNORECASE,
    ),
    re.compile(
        r"(?P<keep>[?&](?:q|query|prompt|text|input|question|messages?|content|search)=)[^&\s\"']+", re.IGNORECASE
    ),
)

_KEY_NAME = (
    r"(?:[\w.-]*(?:api[_-]?key|apikey|secret|passw(?:or)?d|credential|private[_-]?key|access[_-]?key)[\w-]*"
    r"|(?<=['\"])auth(?=['\"])"
    r"|[\w.-]*(?:hf|auth|access|bearer|api|session|refresh|id|github|gitlab|hub|wandb|sas)[_-]?token|token)"
)
_VALUE = r"(?:\[[^\]]*\]?|\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?|[^\s,;)}\]&\"']+)"
_PROSE = r"(?:is|was|to|or|and|for|flag|option|argument|when|with|if|in|on)\b"
_SECRETS = (
    # A chat template given as text, and not as a file or by name, holds a system prompt: several words, or Jinja.
    re.compile(
        r"(?P<keep>(?<![\w-])--chat[-_]template(?:\s+|=)|['\"]?\bchat_template['\"]?\s*[:=]\s*)"
        r"(?:\"(?=[^\"]*[\s{])(?:[^\"\\]|\\.)*\"?|'(?=[^']*[\s{])(?:[^'\\]|\\.)*'?)",
        re.IGNORECASE,
    ),
    re.compile(
        rf"(?P<keep>(?<![\w-])--chat[-_]template(?:\s+|=))(?!['\"<-]|\S*/|\S*\.(?:jinja2?|j2|json|txt)\b|{_PROSE})"
        rf"(?:\{{.*?|\S+\s+(?!-|{_PROSE})\S.*?)(?=\s--?[a-z]|$)",
        re.IGNORECASE,
    ),
    re.compile(
        rf"(?P<keep>(?<![\w-])--?{_KEY_NAME}(?:\s+|=))(?!-){_VALUE}(?:\s+(?!-|\S*:(?:\s|$|//))[^\s,]{{8,}})*",
        re.IGNORECASE,
    ),
    re.compile(
        rf"(?P<keep>(?<![\w#-])['\"]?{_KEY_NAME}['\"]?\s*[:=]\s*)(?!None\b|True\b|False\b|null\b){_VALUE}",
        re.IGNORECASE,
    ),
    re.compile(
        r"(?P<keep>\b(?:Authorization|Proxy-Authorization|X-Api-Key)['\"]?\s*[:=]\s*['\"]?)[^'\",]+", re.IGNORECASE
    ),
    # A cookie of a browser or a gateway logs in whoever has it; its attributes have commas in their dates.
    re.compile(
        r"(?P<keep>\b(?:Set-)?Cookies?['\"]?\s*(?::\s*['\"]?|=\s*))(?:\{[^}]*\}?|[^'\"\s{][^'\"]*|['\"][^'\"]*)",
        re.IGNORECASE,
    ),
    re.compile(  # headers as ASGI has them
        r"(?P<keep>\(\s*b?['\"](?:set-cookie|cookie|(?:proxy-)?authorization|x-api-key)['\"],\s*b?['\"])[^'\"]+",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<keep>\bBearer\s+)[\w.~+/=-]{16,}", re.IGNORECASE),
    re.compile(r"(?P<keep>\b[a-z][a-z0-9+.-]*://)[^/\s@'\"]+(?=@)", re.IGNORECASE),
    re.compile(
        r"(?P<keep>)\b(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|glpat-[\w-]{16,}|A[KS]IA[0-9A-Z]{16}"
        r"|AIza[\w-]{30,}|ya29\.[\w.-]{16,}|gsk_\w{16,}|r8_\w{16,}|npm_\w{30,}|pypi-[\w-]{30,}"
        r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|nvapi-[\w-]{16,}"
        r"|xox[a-z]-[\w-]{10,}|github_pat_\w{16,})"
    ),
)
_SECRET_WORDS = re.compile(
    r"key|token|secret|passw|credential|auth|chat[-_]template|bearer|@|hf_|sk-|gh[pousr]_|glpat|A[KS]IA|eyJ|nvapi|xox[a-z]-|github_pat"
    r"|cookie|AIza|ya29|gsk_|r8_|npm_|pypi-",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """Cut prompts, answers, API keys, tokens and passwords out of a cleaned line; everything else stays as it is.

    Bodies of requests go from their first field to the end of the line, queries of addresses as a whole. Of a secret
    the name stays.
    """
    if _BODY_WORDS.search(text) is not None:
        for body in _BODIES:
            text = body.sub(
                lambda found: found["keep"] + (" " if found["keep"][-1:] in ":)" else "") + CUT, text, count=1
            )
    if "?" in text:
        for query in _QUERIES:
            text = query.sub(lambda found: found["keep"] + CUT, text)
    if _SECRET_WORDS.search(text) is not None:
        for secret in _SECRETS:
            text = secret.sub(lambda found: found["keep"] + CUT, text)
    return text


# What a program says of itself under a name that requests have as well.
_OWN = re.compile(r"message\\*['\"]?\s*[:=]\s*$", re.IGNORECASE)


def body_start(text: str) -> int:
    """Return where the body of a request begins in a cleaned line; its length where it holds none."""
    if _BODY_WORDS.search(text) is None:
        return len(text)
    starts = (_start(body, text) for body in _BODIES)
    return min((start for start in starts if start is not None), default=len(text))


def _start(body: re.Pattern[str], text: str) -> int | None:
    found = body.search(text)
    while found is not None and _OWN.search(found["keep"]) is not None:
        found = body.search(text, found.end("keep"))
    return None if found is None else found.end("keep")


_BRACKETS = re.compile(r"\\.|['\"\[{()}\]]")


def leaves_open(text: str) -> bool:
    """Return whether a cleaned line holds the body of a request that goes on in the next line.

    It does when a quote or a bracket of it is not closed, and when it has none that would say where it ends.
    """
    if _BODY_WORDS.search(text) is None:
        return False
    starts = [found.end("keep") for body in _BODIES if (found := body.search(text)) is not None]
    if not starts:
        return False
    quote, depth, marks = "", 0, 0
    for found in _BRACKETS.finditer(text, min(starts)):
        mark = found.group()
        if quote:
            quote = "" if mark == quote else quote
        elif mark in ("'", '"'):
            quote, marks = mark, marks + 1
        elif len(mark) == 1:
            depth, marks = depth + (1 if mark in "[{(" else -1), marks + 1
    return bool(quote) or depth > 0 or not marks
