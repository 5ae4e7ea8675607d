"""The launch flags of vLLM and SGLang that gpuwatch uses: how they are spelt, what they hold, which fact they are.

Source: ``engine/arg_utils.py`` and ``entrypoints/openai/cli_args.py`` of vLLM, ``srt/server_args.py`` of SGLang.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.engines.sizes import count_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatch.engines.log_pattern import Value


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `kind` is int, float, bool, text, or secret: of a secret only the presence is kept.

    `fact` is the key in `engines.facts` that the flag sets, if any. A bool with `off` set turns its fact off.
    """

    name: str
    aliases: tuple[str, ...]
    kind: str
    fact: str
    off: bool = False


# name | further spellings | kind | fact (! in front: the flag turns it off)
_VLLM_ROWS = """
model                        | | text | model
served-model-name            | | text | served_model_name
host                         | | text |
port                         | | int |
uds                          | | text |
root-path                    | | text |
ssl-certfile                 | | text |
ssl-keyfile                  | | text |
api-key                      | | secret |
hf-token                     | | secret |
tensor-parallel-size         | -tp | int | tp
pipeline-parallel-size       | -pp | int | pp
data-parallel-size           | -dp | int | dp
data-parallel-size-local     | -dpl | int | dp_local
data-parallel-rank           | -dpn | int |
data-parallel-external-lb    | -dpe | bool |
data-parallel-hybrid-lb      | -dph | bool |
decode-context-parallel-size | -dcp | int | dcp
prefill-context-parallel-size | -pcp | int | pcp
enable-expert-parallel       | | bool |
api-server-count             | -asc | int |
nnodes                       | -n | int |
node-rank                    | -r | int |
headless                     | | bool |
device-ids                   | | text |
max-model-len                | | int | max_model_len
max-num-seqs                 | | int | max_num_seqs
max-num-batched-tokens       | | int | max_num_batched_tokens
max-num-partial-prefills     | | int |
long-prefill-token-threshold | | int |
scheduler-reserve-full-isl   | | bool |
max-num-queued-reqs          | | int |
gpu-memory-utilization       | device-memory-utilization | float | memory_fraction
kv-cache-memory-bytes        | kv-cache-memory | int |
num-gpu-blocks-override      | | int | kv.blocks_override
block-size                   | | int | kv.block_size
swap-space                   | | float |
cpu-offload-gb               | | float |
kv-offloading-size           | | float |
kv-cache-dtype               | | text |
calculate-kv-scales          | | bool |
mamba-ssm-cache-dtype        | | text |
dtype                        | | text |
quantization                 | -q | text | quantization
load-format                  | | text |
enforce-eager                | | bool | enforce_eager
enable-prefix-caching        | | bool | prefix_caching
enable-chunked-prefill       | | bool | chunked_prefill
chunked-prefill-size         | | int |
async-scheduling             | | bool |
enable-sleep-mode            | | bool |
enable-lora                  | | bool |
max-loras                    | | int |
max-lora-rank                | | int |
speculative-config           | -sc | text |
spec-tokens                  | | int |
config                       | | text |
enable-dbo                   | | bool |
max-cudagraph-capture-size   | | int |
cudagraph-capture-sizes      | | text |
kv-cache-dtype-skip-layers   | | text |
mm-ipc-gpu-memory-gb         | | float |
speculative-model            | | text |
num-speculative-tokens       | | int |
speculative-draft-tensor-parallel-size | -spec-draft-tp | int |
speculative-model-quantization | | text |
speculative-max-model-len    | | int |
ngram-prompt-lookup-max      | | int |
ngram-prompt-lookup-min      | | int |
limit-mm-per-prompt          | | text |
mm-processor-cache-gb        | | float |
mm-processor-kwargs          | | text |
hf-overrides                 | | text |
rope-scaling                 | | text |
rope-theta                   | | float |
attention-backend            | | text |
disable-custom-all-reduce    | | bool |
disable-hybrid-kv-cache-manager | | bool |
kv-transfer-config           | | text |
kv-cache-metrics             | | bool |
enable-mfu-metrics           | | bool |
show-hidden-metrics-for-version | | text |
disable-log-stats            | | bool |
disable-log-requests         | | bool |
enable-log-requests          | | bool |
distributed-executor-backend | | text |
performance-mode             | | text |
preemption-mode              | | text |
num-scheduler-steps          | | int |
"""

_SGLANG_ROWS = """
model-path                   | model | text | model
served-model-name            | | text | served_model_name
host                         | | text |
port                         | | int |
ssl-certfile                 | | text |
ssl-keyfile                  | | text |
api-key                      | | secret |
admin-api-key                | | secret |
tp-size                      | tp tensor-parallel-size | int | tp
pp-size                      | pp pipeline-parallel-size | int | pp
dp-size                      | dp data-parallel-size | int | dp
ep-size                      | ep expert-parallel-size | int |
dcp-size                     | | int | dcp
enable-dp-attention          | | bool |
nnodes                       | | int |
node-rank                    | | int |
base-gpu-id                  | | int |
gpu-id-step                  | | int |
context-length               | | int | max_model_len
mem-fraction-static          | | float | memory_fraction
max-running-requests         | | int | max_num_seqs
max-total-tokens             | | int |
max-prefill-tokens           | | int | max_prefill_tokens
chunked-prefill-size         | | int | max_num_batched_tokens
page-size                    | | int | kv.block_size
schedule-conservativeness    | | float |
schedule-policy              | | text |
load-balance-method          | | text |
enable-mixed-chunk           | | bool |
allow-auto-truncate          | | bool |
kv-cache-dtype               | | text |
dtype                        | | text |
quantization                 | | text | quantization
disable-radix-cache          | | bool | !prefix_caching
radix-eviction-policy        | | text |
enable-metrics               | | bool |
enable-metrics-for-all-schedulers | | bool |
decode-log-interval          | | int |
log-requests                 | | bool |
log-requests-level           | | int |
attention-backend            | | text |
disable-cuda-graph           | | bool | enforce_eager
cuda-graph-max-bs            | | int |
cuda-graph-max-bs-decode     | | int |
swa-full-tokens-ratio        | | float |
mamba-full-memory-ratio      | | float |
enable-hierarchical-cache    | | bool |
hicache-ratio                | | float |
hicache-size                 | | int |
speculative-algorithm        | | text |
moe-a2a-backend              | | text |
enable-deepep-moe            | | bool |
enable-multimodal            | | bool |
speculative-num-draft-tokens | | int |
enable-lora                  | | bool |
lora-paths                   | | text |
json-model-override-args     | | text |
config                       | | text |
attn-dp-size                 | attention-data-parallel-size | int |
enable-two-batch-overlap     | | bool |
ep-num-redundant-experts     | | int |
moe-dense-tp-size            | | int |
cpu-offload-gb               | | float |
enable-unified-memory        | | bool |
disaggregation-mode          | | text |
disable-custom-all-reduce    | | bool |
watchdog-timeout             | | float |
load-format                  | | text |
device                       | | text |
"""

# Names in "Initializing a V1 LLM engine (v…) with config: …" that are facts of their own.
_CONFIG = {
    "model": ("model", "text"),
    "served_model_name": ("served_model_name", "text"),
    "dtype": ("dtype", "text"),
    "quantization": ("quantization", "text"),
    "kv_cache_dtype": ("kv.dtype", "text"),
    "max_seq_len": ("max_model_len", "int"),
    "tensor_parallel_size": ("tp", "int"),
    "pipeline_parallel_size": ("pp", "int"),
    "data_parallel_size": ("dp", "int"),
    "decode_context_parallel_size": ("dcp", "int"),
    "enforce_eager": ("enforce_eager", "bool"),
    "enable_prefix_caching": ("prefix_caching", "bool"),
    "enable_chunked_prefill": ("chunked_prefill", "bool"),
    "chunked_prefill_enabled": ("chunked_prefill", "bool"),
}
_TRUE_FALSE = {"true": True, "false": False, "1": True, "0": False}
PRESENT = "set"
"""The value that stands for a secret."""


def _table(rows: str) -> dict[str, Flag]:
    """Return the flags by every spelling, without leading dashes of the long ones."""
    flags = {}
    for row in rows.strip().splitlines():
        name, aliases, kind, fact = (part.strip() for part in row.split("|"))
        flag = Flag(name, tuple(aliases.split()), kind, fact.lstrip("!"), fact.startswith("!"))
        for spelling in (name, *flag.aliases):
            flags[spelling] = flag
    return flags


FLAGS: dict[str, dict[str, Flag]] = {"vllm": _table(_VLLM_ROWS), "sglang": _table(_SGLANG_ROWS)}
"""Flags by engine and spelling."""


def parse_flags(engine: str, arguments: Sequence[str]) -> dict[str, str]:
    """Return the known flags of a command line by their canonical names; unknown ones and bare words are passed over.

    Takes ``--flag value``, ``--flag=value``, ``--flag_with_underscores``, short forms such as ``-tp 2``, and
    ``--no-flag``. A switch reads ``true`` or ``false``, a secret ``set``. The last one wins, as in argparse.
    """
    table = FLAGS[engine]
    found: dict[str, str] = {}
    for at, argument in enumerate(arguments):
        if not argument.startswith("-"):
            continue
        name, equals, value = argument.partition("=")
        negated, flag = _look_up(table, name)
        if flag is None:
            continue
        following = arguments[at + 1] if at + 1 < len(arguments) else ""
        if flag.kind == "bool":
            given = value if equals else following
            truth = _TRUE_FALSE.get(given.lower(), True) if equals or given.lower() in ("true", "false") else True
            found[flag.name] = "false" if negated or not truth else "true"
        elif flag.kind == "secret":
            found[flag.name] = PRESENT
        elif equals:
            found[flag.name] = value
        elif following and (not following.startswith("-") or following[1:2].isdigit()):
            found[flag.name] = following
    return found


def _look_up(table: Mapping[str, Flag], spelling: str) -> tuple[bool, Flag | None]:
    """Return (whether it was ``--no-…``, the flag)."""
    if not spelling.startswith("--"):
        return False, table.get(spelling)
    name = spelling[2:].replace("_", "-")
    flag = table.get(name)
    if flag is None and name.startswith("no-"):
        flag = table.get(name[3:])
        return (True, flag) if flag is not None and flag.kind == "bool" else (False, None)
    return False, flag


def flag_facts(engine: str, values: Mapping[str, str]) -> dict[str, Value]:
    """Return the facts in launch arguments, by key: ``flag.NAME`` for each known one, and the fact that it sets.

    `values` are names (with dashes or underscores) and printed values, as in ``non-default args`` or a command line.
    Values that mean "not set" give nothing.
    """
    table = FLAGS[engine]
    facts: dict[str, Value] = {}
    for name, text in values.items():
        flag = table.get(name.replace("_", "-"))
        if flag is None or text in ("None", "", "[]", "{}"):
            continue
        value = _value(flag.kind, text)
        facts[f"flag.{flag.name}"] = value
        if flag.fact and not isinstance(value, str):
            if flag.kind == "bool":
                facts[flag.fact] = bool(value) != flag.off
            elif value > 0:
                facts[flag.fact] = value
        elif flag.fact and flag.kind == "text":
            facts[flag.fact] = value
    return facts


def config_facts(values: Mapping[str, str]) -> dict[str, Value]:
    """Return the facts in the configuration that vLLM prints when the engine starts."""
    facts: dict[str, Value] = {}
    for name, (key, kind) in _CONFIG.items():
        text = values.get(name, "None")
        # "auto" follows the model: a fact about the flag, not about the type.
        if text in ("None", "auto"):
            continue
        value = _value(kind, text.removeprefix("torch."))
        if kind == "text" or not isinstance(value, str):
            facts[key] = value
    return facts


def _value(kind: str, text: str) -> Value:
    """Return a printed value as its type; as text where it is none, such as ``auto``."""
    if kind == "secret":
        return PRESENT
    if kind == "bool":
        return _TRUE_FALSE.get(text.lower(), text)
    if kind == "int":
        count = count_of(text)
        return text if count is None else count
    if kind == "float":
        try:
            return float(text)
        except ValueError:
            return text
    return text
