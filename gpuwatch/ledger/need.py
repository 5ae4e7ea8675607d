"""What is asked of a set of GPUs: models, how each is launched, and the requests that must fit at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuwatch.ledger.budget import Residents, residents
from gpuwatch.ledger.kv import bytes_per_token
from gpuwatch.ledger.loaded import taken_slack
from gpuwatch.ledger.pool import pool_of, request_bytes, spare_bytes
from gpuwatch.ledger.quantisation import DTYPE_BYTES, NAMES, by_name, of_flag, stored_bits
from gpuwatch.ledger.weights import adapter_bytes, buffer_bytes, weight_bytes

if TYPE_CHECKING:
    from gpuwatch.ledger.budget import Deployment
    from gpuwatch.ledger.model import Model

GROWTH = 1.2
"""A plan fits when the KV cache may turn out this much larger than computed: padding, peaks, prefix copies."""
LEAST_BITS = 1.5
"""Bits that a weight takes at least, however it is stored: GGUF's smallest types have 1.56, BitNet's 1.58."""
FOUR_BIT_BYTES = 0.56
"""Bytes of a parameter of a 4-bit model all in all: embeddings and norms stay wider. Seen: 0.5 to 0.6."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One model and how it is launched; `requests` of `deployment.context` tokens must fit at the same time.

    `parameters` and `weights_bytes` replace what the config gives, for the whole model. `uncounted` are bytes on each
    card that the engine's pool has less than the arithmetic gives: what an engine that runs was seen to lack.
    """

    model: Model
    deployment: Deployment
    requests: int = 1
    parameters: float | None = None
    weights_bytes: float | None = None
    uncounted: float = 0.0

    def with_deployment(self, **changes: object) -> Engine:
        """Return the same engine, launched differently."""
        return replace(self, deployment=replace(self.deployment, **changes))  # type: ignore[arg-type]  # named by the caller

    @property
    def residents(self) -> Residents:
        """What it takes on its fullest rank besides the KV cache."""
        taken = residents(self.model, self.deployment)
        whole = self.weights_bytes
        if whole is None and self.parameters is not None:
            whole = self.parameters * bytes_per_parameter(self.model)
        if whole is None:
            return taken
        share = whole / (self.deployment.tp * self.deployment.pp)
        if self.deployment.sharing_dp > 1:  # of what the formula gives, as much as its ranks hold
            alone = replace(self.deployment.split, expert_parallel=1, whole_experts=False)
            share *= weight_bytes(self.model, self.deployment.split) / weight_bytes(self.model, alone)
        split, loading = self.deployment.split, self.deployment.loading
        share += buffer_bytes(self.model, loading) + adapter_bytes(self.model, split, loading)
        share += taken_slack(self.model, split, loading)
        if not loading.towers:
            share -= self.model.tower * DTYPE_BYTES.get(self.model.dtype, 2.0) / self.deployment.tp
        return replace(taken, weights=max(0.0, share - self.deployment.host_weights) + self.deployment.rank_drafting)

    @property
    def weights_known(self) -> bool:
        """Whether it is known how the weights are stored; where it is not, `residents` counts 16 bits, the most."""
        stored = self.model.quantisation
        return stored is None or stored.known or self.weights_bytes is not None

    @property
    def lightest(self) -> Engine:
        """The same engine with the least that its weights can take."""
        stored = self.model.quantisation
        if stored is None or self.weights_known:
            return self
        return replace(self, model=replace(self.model, quantisation=replace(stored, bits=LEAST_BITS)))

    @property
    def kv_bytes(self) -> float:
        """The KV cache of the requests asked for, on one rank, with scales."""
        each = request_bytes(self.model, self.deployment, self.deployment.context)
        return self.requests * each + spare_bytes(self.model, self.deployment)

    @property
    def asked_pool(self) -> float | None:
        """The bytes of the pool that vLLM was told on each rank: it allocates them whatever the card has; None: none.

        SGLang takes a number of tokens as the most, and fewer where it has no room for them.
        """
        deployment = self.deployment
        if deployment.engine != "vllm" or (deployment.kv_bytes is None and deployment.blocks_override is None):
            return None
        return deployment.kv_bytes if deployment.blocks_override is None else pool_of(self.model, deployment, 0.0).bytes

    @property
    def unpacked_bytes(self) -> float:
        """The working copy of one layer's KV cache that a kernel without 4-bit support makes during prefill."""
        if self.deployment.kv_dtype not in ("int4", "fp4"):
            return 0.0
        layers = sum(group.count for group in self.model.attention) or 1
        whole = bytes_per_token(self.model, "auto", self.deployment.attention_tp, self.deployment.dcp) / layers
        return whole * self.deployment.context


def bytes_per_parameter(model: Model) -> float:
    """Return the bytes of a parameter when only their number is known.

    Four-bit weights are really 0.5 to 0.6 bytes a parameter: embeddings and norms stay wider, scales come on top.
    """
    if model.quantisation is None:
        return DTYPE_BYTES.get(model.dtype, 2.0)
    bits = stored_bits(model.quantisation)
    whole = model.quantisation.known and model.quantisation.bits <= 4  # bits
    return max(FOUR_BIT_BYTES, bits / 8) if whole else bits / 8


def with_weights(model: Model, name: str) -> Model:
    """Return the model with its weights stored as `name` says, such as ``int4`` or ``bf16``.

    Raises:
        ValueError: the name is not known.
    """
    packed = by_name(name)
    if packed is not None:
        return replace(model, quantisation=packed)
    if name.lower() not in DTYPE_BYTES:
        raise ValueError(f"{name!r} is no weight type; allowed: {', '.join(NAMES)}")
    return replace(model, dtype=name.lower(), quantisation=None)


def quantised(model: Model, flag: str) -> Model:
    """Return the model with its weights stored as ``--quantization`` says; unchanged where it says none."""
    stored = of_flag(flag)
    return model if stored is None else replace(model, quantisation=stored)


def loaded(engine: Engine, dtype: str) -> Engine:
    """Return the engine with its weights in the type that it loads them in.

    ``--dtype auto`` makes 16 bits of a checkpoint in 32, in vLLM (``config/model.py``) and in SGLang
    (``configs/model_config.py``); another `dtype` is taken as it is. Weights in fewer bits stay as they are.
    """
    model = engine.model
    stored = DTYPE_BYTES.get(model.dtype, 2.0)
    name = {"float": "float32", "half": "float16"}.get(dtype, dtype)
    if name in ("", "auto"):
        name = "bfloat16" if stored > 2 else model.dtype  # bytes
    if name == model.dtype or name not in DTYPE_BYTES:
        return engine
    whole = engine.weights_bytes
    if whole is not None and model.quantisation is None:
        whole *= DTYPE_BYTES[name] / stored
    return replace(engine, model=replace(model, dtype=name), weights_bytes=whole)
