"""The facts that logs, launch flags and processes tell about one engine: key, unit, meaning, and the series it becomes.

Three families of keys are open and not in the table: ``flag.NAME`` (a launch flag as given), ``past.EVENT`` (an event
that a log reported before gpuwatch looked; the value is its line) and ``KEY.RANK`` such as ``weights.bytes.TP1`` (what
one rank printed; the plain key holds the value over all ranks).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuwatch.engines.log_pattern import Value

Merge: TypeAlias = Literal["last", "max", "min"]


@dataclass(frozen=True, slots=True)
class FactSpec:
    """One fact. `series` is the metric it is exported as, if any; `merge` says which rank's value is the engine's."""

    key: str
    unit: str
    series: str
    merge: Merge
    meaning: str


# key | unit | series without gpuwatch_engine_config_ | merge over ranks | meaning
_ROWS = """
started                  | | | last | line that began the present run of the server; facts of earlier runs no longer hold
ready                    | | | last | true once the server said that it takes requests
server.url               | | | last | address that the server said it listens on
page.other               | | | last | what the metrics address answers instead of metrics; empty where it answers with some
engine                   | | | last | vllm or sglang
version                  | | | last | version of the engine
model                    | | | last | model path or name
served_model_name        | | | last | name under which the model is served
architecture             | | | last | model class
dtype                    | | | last | type of weights and activations
quantization             | | | last | quantisation of the weights
attention.backend        | | | last | attention implementation
nccl.version             | | | last | NCCL version
command                  | | | last | the launch command
custom_allreduce         | | | last | false where the custom all-reduce is off
custom_allreduce.why     | | | last | why the custom all-reduce is off
world_size               | | | last | ranks in all
tp                       | | tensor_parallel_size | last | tensor-parallel ranks
pp                       | | pipeline_parallel_size | last | pipeline-parallel ranks
dp                       | | data_parallel_size | last | data-parallel ranks
dp_local                 | | data_parallel_size_local | last | data-parallel ranks of this server, where a group spans several
dcp                      | | decode_context_parallel_size | last | decode-context-parallel ranks
pcp                      | | prefill_context_parallel_size | last | prefill-context-parallel ranks
model.kv_heads           | | kv_heads | last | KV heads of the model; 1 for latent attention (MLA)
model.context            | tokens | native_context_tokens | last | longest context that the model's configuration is made for, its rope scaling included
model.config             | | | last | what the memory ledger needs of the model's config.json, as JSON
model.weights_bytes      | bytes | | last | weight files of the model
max_model_len            | tokens | max_model_len_tokens | last | longest request that is accepted
max_num_seqs             | | max_num_seqs | last | most requests in a batch
max_num_batched_tokens   | tokens | max_num_batched_tokens | last | token budget of one step (SGLang: chunked prefill size)
max_prefill_tokens       | tokens | | last | SGLang's token budget of a prefill batch
memory_fraction          | ratio | memory_fraction_ratio | last | vLLM: of total memory; SGLang: of memory free before the weights
memory_fraction.without_graphs | ratio | | last | the fraction that gives the same pool with graphs outside the budget
memory_fraction.same_pool | ratio | | last | the fraction that gives the pool of versions which left graphs outside the budget
prefix_caching           | | | last | whether prefix caching is on
chunked_prefill          | | | last | whether chunked prefill is on
enforce_eager            | | | last | whether CUDA graphs are off
stats_log                | | | last | false where the engine said that it prints no statistics
hybrid_kv_manager        | | | last | false where the engine said that it treats all layers as full attention
platform.wsl             | | | last | true where the engine noticed WSL
gpu.total_bytes          | bytes | | max | memory of the device, as the engine saw it
gpu.free_at_start_bytes  | bytes | | min | memory free before the engine took any
gpu.used_at_start_bytes  | bytes | | max | memory in use before the engine took any
budget.bytes             | bytes | | min | memory that the engine may use
weights.bytes            | bytes | weights_bytes | max | model weights per GPU
activation.bytes         | bytes | activation_peak_bytes | max | activation peak that the engine profiled
nontorch.bytes           | bytes | | max | memory outside torch's allocator, as profiled
consumed.bytes           | bytes | | max | weights and memory outside torch together, as profiled
peak_torch.bytes         | bytes | | max | highest use of torch's allocator while profiling
graph.bytes              | bytes | graph_bytes | max | CUDA graphs
graph.estimated_bytes    | bytes | | max | CUDA graphs as estimated before the pool was sized
kv.bytes                 | bytes | kv_cache_bytes | min | KV pool per GPU
kv.short_bytes           | bytes | | max | by how much memory fell short before there was any for a KV pool
kv.tokens                | tokens | | last | tokens that the KV pool holds
kv.swa_tokens            | tokens | | last | tokens that the sliding-window pool holds
kv.blocks                | | | last | KV blocks in use
kv.blocks_profiled       | | kv_cache_profiled_blocks | last | KV blocks that profiling found room for, before an override
kv.blocks_override       | | | last | KV blocks forced by --num-gpu-blocks-override
kv.cpu_blocks            | | | last | KV blocks on the host (vLLM V0)
kv.block_size            | tokens | | last | tokens in one block
kv.dtype                 | | | last | type of the KV cache
kv.format                | | | last | layout of a KV cache with one latent head for all heads (MLA)
kv.offload_per_rank_bytes | bytes | | last | host memory that each rank takes for KV blocks (LMCache)
kv.unscaled              | | kv_cache_unscaled | last | true where a quantised KV cache runs with scaling factors of 1.0, false where it needs none
max_concurrency          | | max_concurrency | last | requests of full length that the pool holds
avail.after_weights_bytes | bytes | | min | memory free after the weights (SGLang)
avail.after_pool_bytes   | bytes | | min | memory free after the KV pool (SGLang)
avail.at_end_bytes       | bytes | | min | memory free when the server was ready (SGLang)
load.begun               | | | last | the engine began to load the weights (vLLM)
load.seconds             | seconds | | max | time to load the weights
graph.seconds            | seconds | | max | time to capture CUDA graphs
start.seconds            | seconds | | last | time to profile, create the pool and warm up
host.total_bytes         | bytes | | last | memory of the host, as the engine saw it
swap.bytes               | bytes | | last | swap space for KV blocks in all (vLLM V0)
"""


def _table(rows: str) -> Iterator[FactSpec]:
    for row in rows.strip().splitlines():
        key, unit, series, merge, meaning = (part.strip() for part in row.split("|", 4))
        assert merge in ("last", "max", "min"), row
        name = "gpuwatch_engine_config_" + series if series else ""
        yield FactSpec(key, unit, name, merge, meaning)  # type: ignore[arg-type]  # asserted above


FACTS: dict[str, FactSpec] = {spec.key: spec for spec in _table(_ROWS)}
"""Every fact by key."""


def config_series(facts: Mapping[str, Value]) -> list[tuple[str, float]]:
    """Return (metric name, value) for the numeric facts that are series, in the order of the table."""
    rows = []
    for key, spec in FACTS.items():
        value = facts.get(key)
        if spec.series and isinstance(value, (int, float)) and math.isfinite(value):
            rows.append((spec.series, float(value)))
    return rows
