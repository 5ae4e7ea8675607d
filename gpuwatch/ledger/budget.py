"""What an engine takes on one GPU besides weights and KV pool, and what it leaves for the pool.

Source of the budgets: vLLM's ``v1/worker/gpu_worker.py`` (``determine_available_memory``) and ``utils/mem_utils.py``;
SGLang's ``model_executor/pool_configurator.py`` and ``arg_groups/memory_hook.py``. The estimates of what an engine
only knows after it has profiled itself are fitted to figures that engines printed; `docs/ledger.md` has the table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.ledger.kv import KvSettings
from gpuwatch.ledger.loaded import charges_device, taken_bytes
from gpuwatch.ledger.weights import Loading, Split
from gpuwatch.units import GIB, MIB

if TYPE_CHECKING:
    from gpuwatch.ledger.model import Model


SAMPLER_BYTES = 38.6
"""Bytes that the sampler takes for each sequence and vocabulary entry at its peak: logits in two types, sorted values,
their indices, probabilities. Fitted to vLLM 0.6.6; 0.6.4 and 0.10.2 print the same, the step from 64 to 256 sequences
in 0.12.0 gives 34."""
GRAPH_BYTES_PER_LAYER = 16 * MIB
"""CUDA graphs of one layer in all captured sizes. Fitted to 8 to 25 MiB."""
EARLY_CONTEXT_BYTES = 0.23 * GIB
"""What vLLM before 0.9.1 charges for memory outside torch: what libraries take while it profiles itself."""
DEVICE_CONTEXT_BYTES = 0.42 * GIB
"""What those versions charge that look at the whole device: the CUDA context, too. Printed by 0.6.4."""
ENCODER_BYTES = 2.7 * MIB
"""Peak of a tower's profile run, in which vLLM encodes the longest input it takes, for each unit of the tower's width.
Fitted to Gemma 4 (2.4) and Qwen3-VL (3.0); other starts of such models took half of it and less."""
CONTEXT_BYTES = 1.0 * GIB
"""CUDA context, its modules and the allocator's slack. Seen: 0.4 to 0.6 GiB before profiling, 1 to 1.5 in the end."""
COMMUNICATION_BYTES = 0.25 * GIB
"""NCCL and custom all-reduce buffers: this much, and as much again for each doubling of the ranks."""
SGLANG_CONTEXT_BYTES = 0.5 * GIB
"""What a card has less than its size when SGLang looks before it loads weights. Seen: 0.4 to 0.6 GiB."""
SGLANG_TABLES_BYTES = 0.8 * GIB
"""Request and token tables and workspaces of SGLang, which come out of what its fraction leaves. Seen: 0.6 to 1.05
GiB."""

PREFILL_SHARDS_UNTIL = (0, 30)
"""Up to here prefill context parallelism divided the tokens of the KV pool as decode context parallelism does."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """How an engine is launched. `capacity` is the memory of one GPU in bytes; `fraction` is the reserve fraction.

    `sequences` is the limit of the batch, `chunk` the token budget of a step. `version` is () when not known.
    `host_weights` are bytes of weights that each rank leaves in host memory, `host_cache` bytes of host memory in all
    for KV blocks. `prefix_caching` and `chunked` prefill None: as the engine chooses. `asynchronous` scheduling has two
    steps under way. `dp` are data-parallel groups of `ranks` GPUs each; of them `sharing_dp` divide the experts among
    them, in whole experts with `expert_parallel`. `dp_attention` are those within the tensor ranks (SGLang).
    `fraction_told` says whether `fraction` was asked for: an engine whose own default is too small can be told another.
    `idle_fraction` is one that was asked for and that `kv_bytes` puts out of use. `chunk_told`: so was `chunk`.
    Without `towers` a model of text and images serves text alone. `adapters` are places for LoRA adapters of at most
    `adapter_rank`. `longer_allowed`: a `context` beyond the model's own is forced. A draft model has `drafting` bytes
    of weights in all, and `drafting_share` of the model's own KV for each token. SGLang drafts by the algorithm
    `speculation`, exchanges tokens between experts by DeepEP (`deepep`), and is told to take images (`multimodal`).
    Without `paged_steps` its step is of any size: it does not cut prompts, or only decodes.
    """

    engine: str
    version: tuple[int, ...]
    capacity: float
    tp: int = 1
    pp: int = 1
    dcp: int = 1
    pcp: int = 1
    dp_attention: int = 1
    dp: int = 1
    sharing_dp: int = 1
    expert_parallel: bool = False
    context: int = 4096
    longer_allowed: bool = False
    sequences: int = 256
    chunk: int = 8192
    chunk_told: bool = False
    fraction: float = 0.92
    fraction_told: bool = False
    idle_fraction: float = 0.0
    kv_dtype: str = "auto"
    block_size: int = 16
    eager: bool = False
    prefix_caching: bool | None = None
    chunked: bool | None = None
    hybrid_manager: bool = True
    speculative_tokens: int = 0
    kv_bytes: float | None = None
    blocks_override: int | None = None
    max_total_tokens: int | None = None
    pooling: bool = False
    unified: bool = False
    mig: bool = False
    host_weights: float = 0.0
    host_cache: float = 0.0
    asynchronous: bool = True
    state_dtype: str = "auto"
    towers: bool = True
    adapters: int = 0
    adapter_rank: int = 0
    drafting: float = 0.0
    drafting_share: float = 0.0
    speculation: str = ""
    deepep: bool = False
    multimodal: bool = False
    paged_steps: bool = True

    @property
    def version_text(self) -> str:
        """The engine's version as tables of versions read it; empty where it is not known."""
        return ".".join(map(str, self.version))

    @property
    def ranks(self) -> int:
        """GPUs of one replica: tensor ranks in each pipeline stage, as many times as prefill contexts are divided."""
        return self.tp * self.pp * self.pcp

    @property
    def cards(self) -> int:
        """GPUs in all: those of every data-parallel group."""
        return self.ranks * self.dp

    @property
    def pool_asked(self) -> bool:
        """Whether the size of the pool was asked for, whatever the card has."""
        return any(size is not None for size in (self.kv_bytes, self.blocks_override, self.max_total_tokens))

    @property
    def fraction_asked(self) -> bool:
        """Whether the fraction, or the pool itself, was asked for."""
        return self.fraction_told or self.pool_asked

    @property
    def pools(self) -> int:
        """KV pools that serve different requests: one for each data-parallel group and each group within the ranks."""
        return self.dp * self.dp_attention

    @property
    def split(self) -> Split:
        """How weights are spread."""
        return Split(
            tp=self.tp,
            pp=self.pp,
            attention_tp=self.attention_tp,
            expert_parallel=self.tp * self.sharing_dp,
            whole_experts=self.expert_parallel,
        )

    @property
    def rank_drafting(self) -> float:
        """Bytes of a draft model's weights on one rank."""
        return self.drafting / self.tp

    @property
    def loading(self) -> Loading:
        """Which parts of a model are loaded, and what comes with them."""
        return Loading(self.engine, self.version, self.chunk, self.towers, self.adapters, self.adapter_rank)

    @property
    def attention_tp(self) -> int:
        """Ranks that share one attention: fewer than all under DP attention."""
        return max(1, self.tp // self.dp_attention)

    @property
    def kv_settings(self) -> KvSettings:
        """What decides about the pool's layout."""
        return KvSettings(
            block_size=self.block_size,
            dtype=self.kv_dtype,
            tp=self.attention_tp,
            pp=self.pp,
            dcp=self.dcp,
            pcp=self.pcp if (0, 12) <= self.version < PREFILL_SHARDS_UNTIL else 1,
            max_model_len=self.context,
            batched_tokens=self.chunk,
            in_flight=_in_flight(self),
            prefix_caching=self.prefix_caching is not False,
            state_dtype=self.state_dtype,
            hybrid_manager=self.hybrid_manager,
            speculative_tokens=self.speculative_tokens,
            version=self.version,
        )


def _in_flight(deployment: Deployment) -> int:
    """Return how many steps may be under way: one, or with asynchronous scheduling (vLLM 0.26 and later) two."""
    if deployment.engine != "vllm" or deployment.version < (0, 26):
        return 1
    if not deployment.asynchronous:
        return deployment.pp
    return 2 if deployment.pp == 1 else deployment.pp + 1


@dataclass(frozen=True, slots=True)
class Residents:
    """Bytes on the fullest rank besides the KV pool."""

    weights: float
    activations: float
    graphs: float
    context: float
    communication: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.activations + self.graphs + self.context + self.communication


def activation_bytes(model: Model, deployment: Deployment) -> float:
    """Return the peak of a step: the largest of one layer's forward pass over a chunk, of sampling, and of encoding.

    Forward: three feed-forward widths (gate, up, their product) and three model widths for each token, in 16 bits;
    tensor parallelism divides the feed-forward part. It gives 107 KiB a token for Llama-3.1-8B, as printed. Sampling:
    `SAMPLER_BYTES` for each sequence and vocabulary entry, on every rank. vLLM V0 with chunks profiles no sampling.
    """
    v0_chunks = bool(deployment.version) and deployment.version < (0, 8) and deployment.chunk < deployment.context
    samples = not deployment.pooling and not (deployment.engine == "vllm" and v0_chunks)
    return max(
        forward_bytes(model, deployment),
        sampler_bytes(model, deployment) if samples else 0.0,
        encoder_bytes(model, deployment),
    )


def encoder_bytes(model: Model, deployment: Deployment) -> float:
    """Return the peak of vLLM's profile run of a tower; 0 where it has none to run."""
    encodes = deployment.engine == "vllm" and deployment.towers and model.tower > 0
    return ENCODER_BYTES * model.tower_width if encodes else 0.0


def forward_bytes(model: Model, deployment: Deployment) -> float:
    """Return the peak of the forward pass over one chunk."""
    width = 3 * model.intermediate / deployment.tp
    if model.experts is not None:
        chosen = max(1, model.experts.chosen)
        width = max(width, chosen * (3 * model.experts.width / deployment.tp + 2 * model.hidden))
    return 2.0 * deployment.chunk / deployment.pcp * (width + 3 * model.hidden)


def sampler_bytes(model: Model, deployment: Deployment) -> float:
    """Return the peak of sampling the largest batch."""
    return SAMPLER_BYTES * min(deployment.sequences, deployment.chunk) * model.vocab


def residents(model: Model, deployment: Deployment) -> Residents:
    """Return what an engine takes on its fullest rank besides the KV pool."""
    ranks = deployment.ranks * deployment.sharing_dp
    layers = model.layer_count / deployment.pp
    return Residents(
        weights=max(0.0, taken_bytes(model, deployment.split, deployment.loading) - deployment.host_weights)
        + deployment.rank_drafting,
        activations=activation_bytes(model, deployment),
        graphs=0.0 if deployment.eager else layers * GRAPH_BYTES_PER_LAYER * _captured(deployment.sequences),
        context=CONTEXT_BYTES + (SGLANG_TABLES_BYTES if deployment.engine == "sglang" else 0.0),
        communication=communication_bytes(ranks),
    )


def communication_bytes(ranks: int) -> float:
    """Return what NCCL and custom all-reduce take on each of `ranks` cards."""
    return 0.0 if ranks == 1 else COMMUNICATION_BYTES * (1 + math.log2(ranks))


def _captured(sequences: int) -> float:
    """Return the share of the usual graphs that are captured: sizes reach up to the batch, 512 at most."""
    return min(1.0, max(0.15, math.log2(max(2, sequences)) / 8))


def pool_bytes(model: Model, deployment: Deployment, taken: Residents | None = None) -> float:
    """Return the bytes that the engine has for its KV pool on one GPU; negative when there is nothing left.

    vLLM: its fraction of all memory, less weights, activations and (0.20 and later) graphs; the CUDA context counts
    where the engine was before 0.9.1, later it is outside. SGLang: what is free after loading, less the part of what
    was free before that its fraction leaves.
    """
    if deployment.kv_bytes is not None:
        return deployment.kv_bytes
    taken = taken or residents(model, deployment)
    if deployment.engine == "sglang":
        before = deployment.capacity - SGLANG_CONTEXT_BYTES - taken.communication
        after = before - (taken.weights - deployment.rank_drafting)
        return after - before * (1 - deployment.fraction)
    pool = deployment.capacity * deployment.fraction - taken.weights - taken.activations - taken.communication
    if not deployment.version or deployment.version >= (0, 20):
        pool -= taken.graphs
    if deployment.version and deployment.version < (0, 9, 1):
        pool -= DEVICE_CONTEXT_BYTES if charges_device(deployment.version) else EARLY_CONTEXT_BYTES
    return pool
