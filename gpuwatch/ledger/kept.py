"""Which modules a quantised checkpoint leaves in the model's own type, by the names that its config lists.

Sources: ``should_ignore_layer`` of compressed-tensors (whole names, or ``re:`` and an expression from the start of the
name), ``is_layer_skipped`` of AWQ and GPTQ (a part of the name), ``modules_to_not_convert`` of transformers and
``exclude_modules`` of ModelOpt (wildcards).
"""

from __future__ import annotations

import re
from functools import lru_cache

PREFIXES = ("model.layers.", "model.language_model.layers.", "language_model.model.layers.", "backbone.layers.")
"""What names of modules begin with, before the number of a layer."""
_NUMBERED = re.compile(r"(?:^|\.)layers\.(?P<at>\d+|N)(?:\.(?P<rest>.+))?$")
"""A module of one layer; a recording has N in place of its number."""
_ELSEWHERE = re.compile(r"vision|visual|audio|tower|mm_proj|multi_modal|patch|(^|\.)mtp\.|merger", re.IGNORECASE)
"""Modules of towers and drafts, which are counted elsewhere."""
_NESTED = re.compile(r"\([^()]*[*+}][^()]*\)[*+{]")
"""Expressions whose matching may take for ever."""
LONGEST, MOST_EXPRESSIONS, MOST_LAYERS = 300, 256, 512


def share(kept: tuple[str, ...], modules: tuple[str, ...], layers: int) -> float:
    """Return the share of `layers` in which a module of one of these names (``self_attn.q_proj``) is in the list.

    The names are those that models of several kinds have for the same matrix: it counts where one of them is listed.
    """
    return max((_share(kept, module, max(1, min(layers, MOST_LAYERS))) for module in modules), default=0.0)


@lru_cache(maxsize=1024)
def _share(kept: tuple[str, ...], module: str, layers: int) -> float:
    numbered, everywhere, expressions = _sorted(kept)
    words = module.split(".")
    parents = {".".join(words[:end]) for end in range(1, len(words) + 1)}
    if any(f".{name}." in f".layers.{module}." for name in everywhere) or any(
        ("N", name) in numbered for name in parents
    ):
        return 1.0
    found = {at for at, rest in numbered if rest in parents or not rest}
    for at in range(layers) if expressions else ():
        names = [f"{prefix}{at}.{module}" for prefix in PREFIXES]
        if any(each.match(name) for each in expressions for name in names):
            found.add(str(at))
    return min(1.0, len(found) / layers)


@lru_cache(maxsize=64)
def _sorted(kept: tuple[str, ...]) -> tuple[frozenset[tuple[str, str]], tuple[str, ...], tuple[re.Pattern[str], ...]]:
    """Return modules of single layers, those of all, and expressions."""
    numbered: set[tuple[str, str]] = set()
    everywhere: list[str] = []
    expressions: list[re.Pattern[str]] = []
    for entry in kept:
        word = entry.strip()
        word = word if word.startswith("re:") else word.strip(".")
        if word.startswith("re:") or "*" in word:
            pattern = _expression(word)
            if pattern is not None and len(expressions) < MOST_EXPRESSIONS:
                expressions.append(pattern)
        elif not _ELSEWHERE.search(word):
            match = _NUMBERED.search(word)
            if match is not None:
                numbered.add((match["at"], (match["rest"] or "").removesuffix(".weight")))
            elif word:
                everywhere.append(word)
    return frozenset(numbered), tuple(everywhere), tuple(expressions)


def _expression(word: str) -> re.Pattern[str] | None:
    """Return the expression of an entry; None for one that is none, or is too costly."""
    if len(word) > LONGEST:
        return None
    if not word.startswith("re:"):  # wildcards, of a module or of what is in it
        plain = ".*".join(map(re.escape, word.removesuffix(".weight").split("*")))
        return re.compile(rf"(?:.*\.)?{plain}(?:\..*)?$")
    text = word[3:]
    if _NESTED.search(text):
        return None
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError):
        return None
