"""Reading a model's ``config.json``: nested parts, several spellings, and an account of what is absent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST = 10**12
"""No count in a config is larger; one that is, is an error in the file."""
_RANGES = {
    "num_hidden_layers": (1, 10_000),
    "hidden_size": (1, 10**7),
    "vocab_size": (1, 10**9),
    "head_dim": (1, 10**6),
    "max_position_embeddings": (1, 10**12),
}
"""Least and largest of counts that no model has 0 of; of others 0 is allowed, too."""

_SPELLINGS = {
    "hidden_size": ("n_embd", "n_embed", "d_model", "dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers", "decoder_layers"),
    "num_attention_heads": ("n_head", "n_heads", "decoder_attention_heads"),
    "num_key_value_heads": (
        "num_kv_heads",
        "n_head_kv",
        "n_kv_heads",
        "kv_n_heads",
        "multi_query_group_num",
        "num_attention_groups",
    ),
    "intermediate_size": ("ffn_hidden_size", "n_inner", "ffn_dim", "decoder_ffn_dim"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length", "model_max_length", "max_target_positions"),
    "num_experts": ("n_routed_experts", "num_local_experts", "moe_num_experts", "num_routed_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "moe_top_k", "moe_topk", "moe_k", "top_k_experts"),
    "n_shared_experts": ("moe_num_shared_experts", "num_shared_experts"),
    "head_dim": ("kv_channels", "attention_head_dim", "hidden_size_per_head"),
    "moe_intermediate_size": ("expert_ffn_hidden_size",),
    "shared_expert_intermediate_size": ("share_expert_dim",),
    "mamba_n_heads": ("mamba_num_heads", "n_mamba_heads"),
    "mamba_d_head": ("mamba_head_dim", "mamba_headdim", "hidden_size_per_head"),
    "mamba_n_groups": ("n_groups", "mamba_ngroups"),
    "sliding_window": ("sliding_window_size",),
    "vocab_size": ("padded_vocab_size",),
}
_INNER = ("attn_config", "ffn_config")
"""Parts of a text model's config that hold its own fields (DBRX, MPT)."""
NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "language_model")
"""Parts of the config of a model of several kinds of input that are the text model's own."""

LAYER_LISTS = ("layer_types", "layers_block_type", "hybrid_override_pattern")
"""Fields that name the kind of each layer."""

_GEMMA3 = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
}
"""Defaults of transformers' ``Gemma3TextConfig``, which the configurations of text and images leave out."""


class ModelConfigError(ValueError):
    """A config cannot be used: the message says which field holds what, and what is allowed."""


class Fields:
    """The fields of a model's config, its text part first. Collects what was missing and what is worth a note."""

    def __init__(self, config: Mapping[str, Any], outer: Mapping[str, Any] | None = None) -> None:
        self.outer = config if outer is None else outer
        self.own = config
        self.missing: list[str] = []
        self.notes: list[str] = []

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Fields:
        """Return the fields of a whole ``config.json``; the text model's part is found where there are several.

        Raises:
            ModelConfigError: a part is no object.
        """
        own = config
        while True:
            for name in NESTED:
                if not isinstance(own.get(name), (dict, type(None))):
                    raise ModelConfigError(f"{name} is {str(own[name])[:40]!r}; an object is expected")
            inner = next((own[name] for name in NESTED if isinstance(own.get(name), dict)), None)
            if inner is None:
                return cls(own, config)
            own = inner

    @property
    def architecture(self) -> str:
        """The first architecture's name, or the model type."""
        names = self.own.get("architectures") or self.outer.get("architectures") or []
        first = names[0] if isinstance(names, list) and names else ""
        return str(first or self.own.get("model_type") or self.outer.get("model_type") or "")

    def value(self, name: str) -> object:
        """Return a field under any of its spellings, from the text part, else from the whole; None when absent."""
        parts = (part for name in _INNER if isinstance(part := self.own.get(name), dict))
        for source in (self.own, *parts, self.outer):
            for spelling in (name, *_SPELLINGS.get(name, ())):
                if source.get(spelling) is not None:
                    return source[spelling]
        if name == "num_hidden_layers":
            return self._layers_named()
        gemma3 = name in _GEMMA3 and "gemma3forconditionalgeneration" in self.architecture.lower()
        return _GEMMA3[name] if gemma3 else None

    def _layers_named(self) -> int | None:
        """Return how many layers a list of their kinds names, as where a config leaves their number to it."""
        for name in LAYER_LISTS:
            listed = self.own.get(name)
            if isinstance(listed, (list, str)) and listed:
                return len(listed)
        return _GEMMA3["num_hidden_layers"] if "gemma3forconditionalgeneration" in self.architecture.lower() else None

    def number(self, name: str) -> int | None:
        """Return a count, or None when it is absent.

        Raises:
            ModelConfigError: it is no whole number of 0 to `LARGEST`, or of its own range.
        """
        value = self.value(name)
        if value in (None, "auto"):  # "auto": follows from other fields
            return None
        if isinstance(value, list) and value:  # one number a layer (OpenELM, DeciLM); the largest is an upper bound
            self.note(f"{name} differs between layers; the largest is used")
            value = max((item for item in value if isinstance(item, (int, float))), default=None)
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not whole:
            raise ModelConfigError(f"{name} is {str(value)[:40]!r}; a whole number is expected")
        low, high = _RANGES.get(name, (0, LARGEST))
        if not low <= value <= high:
            raise ModelConfigError(f"{name} is {f'{int(value):,}'[:40]}; allowed: {low} to {high:,}")
        return int(value)

    def need(self, name: str) -> int:
        """Return a count; 0, and an entry in `missing`, when it is absent."""
        value = self.number(name)
        if value is None:
            self.lack(name)
            return 0
        return value

    def text(self, name: str) -> str:
        """Return a text, or the empty string."""
        value = self.value(name)
        return value if isinstance(value, str) else ""

    def flag(self, name: str) -> bool | None:
        """Return a truth value, or None when it is absent."""
        value = self.value(name)
        return value if isinstance(value, bool) else None

    def listed(self, name: str) -> list[object]:
        """Return a list, empty when it is absent."""
        value = self.value(name)
        return value if isinstance(value, list) else []

    def part(self, name: str) -> Fields | None:
        """Return a nested object, or None. What it lacks is lacking here."""
        value = self.value(name)
        if not isinstance(value, dict):
            return None
        inner = Fields(value)
        inner.missing, inner.notes = self.missing, self.notes
        return inner

    def lack(self, name: str) -> None:
        """Note that a field is needed and absent."""
        if name not in self.missing:
            self.missing.append(name)

    def note(self, text: str) -> None:
        """Note something that a person should know."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def hidden(self) -> int:
        """The width of the model."""
        return self.need("hidden_size")

    @property
    def q_heads(self) -> int:
        """Query heads of a layer."""
        return self.need("num_attention_heads")

    @property
    def kv_heads(self) -> int:
        """KV heads of a layer: all query heads where the config names none, one for multi-query attention."""
        several = self.flag("multi_query")
        if several is None and "gptbigcode" in self.architecture.lower():
            several = True  # the default of its configuration class
        if several and not self.flag("new_decoder_architecture"):
            return 1
        return self.number("num_key_value_heads") or self.q_heads

    @property
    def head_dim(self) -> int:
        """Elements of a head: ``head_dim``, else the model's width by its query heads (as transformers does)."""
        stated = self.number("head_dim")
        if stated:
            return stated
        heads = self.q_heads
        return self.hidden // heads if heads else 0
