"""What vLLM 0.2.7 to 0.33 writes to its log when it starts. Errors are in `vllm_errors`, statistics in `vllm_stats`.

Lines, versions and expressions come from vLLM's sources of the versions named in each row; the names of the groups are
those of the fields in `model.LogEvent`. The word before ``KV cache`` is the device (GPU, CPU, XPU) from 0.30 on.
"""

from __future__ import annotations

from gpuwatch.engines.log_pattern import Maker, Pattern

_VLLM = Maker("vllm")

_NUM = r"-?[\d.]+"


_IDENTITY = (
    _VLLM.fact(
        "api_version",
        "0.2.7-",
        ("API server version ",),
        r"^vLLM API server version (?P<v>\S+)",
        "version=v:text",
        starts=True,
    ),
    _VLLM.fact(
        "banner_version",
        "0.11.1-",
        ("█  version ",),
        r"█  version (?P<v>\d\S*)$",
        "version=v:text",
        starts=True,
    ),
    _VLLM.fact("banner_model", "0.11.1-", ("█  model ",), r"█  model +(?P<m>\S.*)$", "model=m:text"),
    _VLLM.fact(
        "engine_config",
        "0.2.7-",
        ("LLM engine (v", "LLM engine with config"),
        r"^Initializing an? (?:V[01] )?LLM engine (?:\(v(?P<v>[^)]+)\) )?with config: (?P<config>.*)$",
        "version=v:text",
        pairs="config",
        settings="config",
    ),
    _VLLM.fact(
        "non_default_args",
        "0.8.5-",
        ("-default args: ",),
        r"^non-default args: \{(?P<args>.*)$",
        pairs="args",
        settings="flags",
    ),
    _VLLM.fact(
        "all_args",
        "0.2.7-0.8.5",
        ("Namespace(",),
        r"^args: Namespace\((?P<args>.*)$",
        pairs="args",
        settings="flags",
    ),
    _VLLM.fact(
        "listening",
        "0.7.3-",
        ("Starting vLLM ",),
        r"^Starting vLLM (?:API )?server(?: \d+)? on (?P<url>\S+)",
        "server.url=url:text",
    ),
    _VLLM.fact(
        "architecture",
        "0.10.0-",
        ("Resolved architecture: ",),
        r"^Resolved architecture: (?P<a>\w+)",
        "architecture=a:text",
    ),
    _VLLM.fact(
        "loading",
        "0.5.4-",
        ("Starting to load model ",),
        r"^Starting to load model (?P<m>.+?)\.\.\.$",
        "model=m:text load.begun=:yes",
    ),
    _VLLM.fact(
        "ranks",
        "0.7.0-",
        ("DP rank ",),
        r"^rank \d+ in world size (?P<n>\d+) is assigned as DP rank",
        "world_size=n:int",
    ),
    _VLLM.fact(
        "max_model_len",
        "0.9.0-",
        ("Using max model len ",),
        r"^Using max model len (?P<mml>\d+)",
        "max_model_len=mml:int",
    ),
    _VLLM.fact(
        "auto_fit",
        "0.14-",
        ("Auto-fit max_model_len: ",),
        r"^Auto-fit max_model_len: (?:reduced from (?P<old>\d+) to (?P<new>\d+)|full model context length (?P<full>\d+) fits)",
        "max_model_len=new:int max_model_len=full:int",
    ),
    _VLLM.fact(
        "chunked_prefill",
        "0.4.1-",
        ("Chunked prefill is enabled",),
        r"^Chunked prefill is enabled(?: with max_num_batched_tokens=(?P<mnbt>\d+)\.| \(EXPERIMENTAL\)\.)",
        "max_num_batched_tokens=mnbt:int chunked_prefill=:yes",
    ),
    _VLLM.fact(
        "batched_tokens",
        "0.6.5-0.11.0",
        ("Setting max_num_batched_tokens to ",),
        r"^Setting max_num_batched_tokens to (?P<mnbt>\d+) for",
        "max_num_batched_tokens=mnbt:int",
    ),
    _VLLM.fact(
        "kv_dtype", "0.3.3-", ("Using ",), r"^Using (?P<dtype>\w+) data type to store kv cache\.", "kv.dtype=dtype:text"
    ),
    _VLLM.fact(
        "mla_format",
        "0.24-",
        ("KV cache format for ",),
        r"^Using (?P<format>\w+) KV cache format for \w*MLA\w* backend",
        "kv.format=format:text",
    ),
    _VLLM.fact(
        "attention_backend",
        "0.4.1-",
        ("Using ",),
        r"^Using (?!.* for )(?P<name>[\w ./-]+?) (?:attention )?backend"
        r"(?: on V1 engine(?: by default.*)?| out of potential backends: (?P<cands>[\[(].*?[\])]))?\.?$",
        "attention.backend=name:text",
    ),
    _VLLM.fact(
        "prefix_default",
        "0.9.2-",
        ("Enabling prefix", "Enabling) prefix", "Disabling prefix", "Disabling) prefix"),
        r"^\(?(?P<act>Enabling|Disabling)\)? prefix caching by default",
        "prefix_caching=act:bool",
    ),
    _VLLM.fact(
        "prefix_off",
        "0.24-",
        ("Disabling prefix caching: ",),
        r"^Disabling prefix caching: (?P<why>.*)$",
        "prefix_caching=:no",
    ),
    _VLLM.fact(
        "hybrid_block_size",
        "0.10.0-",
        ("Setting attention block size to ",),
        r"^(?:\[XPU\])?Setting attention block size to (?P<bs>\d+) tokens",
        "kv.block_size=bs:int",
    ),
    _VLLM.fact(
        "hybrid_manager_off",
        "0.9.1-",
        ("Hybrid KV cache manager is disabled",),
        r"^Hybrid KV cache manager is disabled for this hybrid model",
        "hybrid_kv_manager=:no",
    ),
    _VLLM.fact(
        "nccl_version", "0.2.7-", ("LLM is using nccl==",), r"^vLLM is using nccl==(?P<v>\S+)", "nccl.version=v:text"
    ),
    _VLLM.fact(
        "custom_allreduce_off",
        "0.2.7-",
        ("Custom allreduce is disabled",),
        r"^Custom allreduce is disabled because (?P<why>.*?)(?:\. To silence.*)?$",
        "custom_allreduce=:no custom_allreduce.why=why:text",
    ),
    _VLLM.fact(
        "stats_off",
        "0.10.2-",
        ("AsyncLLM created with api_server_count",),
        r"^AsyncLLM created with api_server_count more than 1; disabling stats logging",
        "stats_log=:no",
    ),
    _VLLM.fact("wsl", "0.1-", ("WSL is detected",), r"as WSL is detected", "platform.wsl=:yes"),
    _VLLM.fact(
        "swap_large",
        "0.2.7-0.17",
        ("Possibly too large swap", "Too large swap"),
        r"(?:Possibly too|Too) large swap space\. (?P<x>[\d.]+) GiB out of the (?P<y>[\d.]+) GiB total CPU memory",
        "swap.bytes=x:gib host.total_bytes=y:gib",
    ),
)

_MEMORY = (
    _VLLM.fact(
        "weights",
        "0.4.1-",
        ("Model loading took ", "Loading model weights took "),
        r"^(?:Loading model weights took|Model loading took) (?P<gib>[\d.]+) Gi?B(?: memory)?(?: and (?P<s>[\d.]+) seconds)?",
        "weights.bytes=gib:gib load.seconds=s:float",
    ),
    _VLLM.fact(
        "kv_available",
        "0.9.1-",
        ("Available KV cache memory: ",),
        r"^Available KV cache memory: (?:-(?P<short>[\d.]+)|(?P<gib>[\d.]+)) GiB",
        "kv.bytes=gib:gib kv.short_bytes=short:gib",
    ),
    _VLLM.note(
        "v0_mm_profile",
        "mm_profile_begin",
        "V0 0.6-0.8",
        ("Starting profile run for multi-modal models",),
        r"^Starting profile run for multi-modal models",
    ),
    _VLLM.fact(
        "kv_cpu",
        "0.10-",
        ("Explicitly set (",),
        r"^Explicitly set \((?P<gib>[\d.]+)/(?P<total>[\d.]+)\) GiB for KV cache",
        "kv.bytes=gib:gib",
    ),
    _VLLM.fact(
        "v0_budget",
        "0.6.5-0.10.2",
        ("GiB) x gpu_memory_utilization",),
        r"total_gpu_memory \((?P<total>[\d.]+)GiB\) x gpu_memory_utilization \((?P<util>[\d.]+)\) = (?P<budget>[\d.]+)GiB",
        "gpu.total_bytes=total:gib memory_fraction=util:float budget.bytes=budget:gib",
    ),
    _VLLM.fact(
        "v0_parts",
        "0.6.5-0.10.2",
        ("PyTorch activation peak memory takes ",),
        rf"model weights take (?P<w>[\d.]+)GiB; non_torch_memory takes (?P<nt>{_NUM})GiB; PyTorch activation peak memory "
        rf"takes (?P<act>[\d.]+)GiB; the rest of the memory reserved for KV Cache is (?:-(?P<short>[\d.]+)|(?P<kv>[\d.]+))GiB",
        "weights.bytes=w:gib nontorch.bytes=nt:gib activation.bytes=act:gib kv.bytes=kv:gib kv.short_bytes=short:gib",
    ),
    _VLLM.fact(
        "v064_profile",
        "0.6.4",
        ("Memory profiling results: ",),
        rf"^Memory profiling results: total_gpu_memory=(?P<total>[\d.]+)GiB initial_memory_usage=(?P<init>[\d.]+)GiB "
        rf"peak_torch_memory=(?P<peak>[\d.]+)GiB memory_usage_post_profile=(?P<post>[\d.]+)Gi[bB] "
        rf"non_torch_memory=(?P<nt>{_NUM})GiB kv_cache_size=(?:-(?P<short>[\d.]+)|(?P<kv>[\d.]+))GiB gpu_memory_utilization=(?P<util>[\d.]+)",
        "gpu.total_bytes=total:gib gpu.used_at_start_bytes=init:gib peak_torch.bytes=peak:gib nontorch.bytes=nt:gib "
        "kv.bytes=kv:gib kv.short_bytes=short:gib memory_fraction=util:float",
    ),
    _VLLM.fact(
        "blocks",
        "V0 0.2.7-0.11.0, V1 0.6.4-0.7.3",
        ("# GPU blocks: ", ", # CPU blocks: "),
        r"^# (?P<dev>\w+) blocks: (?P<gpu>\d+)(?:, # CPU blocks: (?P<cpu>\d+))?",
        "kv.blocks=gpu:int kv.cpu_blocks=cpu:int",
    ),
    _VLLM.fact(
        "blocks_after",
        "0.8-0.10.2",
        ("_config_info with initialization",),
        r"vllm cache_config_info with initialization after num_gpu_blocks is: (?P<n>\d+)",
        "kv.blocks=n:int",
    ),
    _VLLM.fact(
        "kv_size",
        "0.8.0-",
        ("KV cache size: ",),
        r"^(?P<dev>[A-Za-z]+(?: \+ host)?) KV cache size: (?P<tokens>[\d,]+) tokens"
        r"(?:, Maximum concurrency for (?P<mml>[\d,]+) tokens per request: (?P<conc>[\d.]+)x)?",
        "kv.tokens=tokens:int max_model_len=mml:int max_concurrency=conc:float",
    ),
    _VLLM.fact(
        "max_concurrency",
        "0.6.3-0.27",
        ("Maximum concurrency for ",),
        r"^Maximum concurrency for (?P<mml>[\d,]+) tokens per request: (?P<conc>[\d.]+)x",
        "max_model_len=mml:int max_concurrency=conc:float",
    ),
    _VLLM.fact(
        "context_parallel",
        "0.10.2-0.20",
        ("Multiplying the GPU KV cache size",),
        r"^Multiplying the GPU KV cache size by the (?:dcp_world_size (?P<dcp>\d+)\.|cp_world_size (?P<cp>\d+) "
        r"\(pcp_world_size (?P<pcp>\d+) \* dcp_world_size (?P<dcp2>\d+)\))",
        "dcp=dcp:int dcp=dcp2:int pcp=pcp:int",
    ),
    _VLLM.fact(
        "block_override",
        "0.4.1-",
        ("Overriding num_gpu_blocks=",),
        r"^Overriding num_gpu_blocks=(?P<was>\d+) with num_gpu_blocks_override=(?P<now>\d+)",
        "kv.blocks_profiled=was:int kv.blocks_override=now:int kv.blocks=now:int",
    ),
    _VLLM.fact(
        "graphs_done",
        "0.2.7-",
        ("Graph capturing finished in ",),
        rf"^Graph capturing finished in (?P<s>\d+) secs(?:\.|, took (?P<gib>{_NUM}) GiB)",
        "graph.seconds=s:float graph.bytes=gib:gib",
    ),
    _VLLM.fact(
        "graphs_estimated",
        "0.18-",
        ("Estimated CUDA graph memory: ",),
        r"^Estimated CUDA graph memory: (?P<gib>[\d.]+) GiB total",
        "graph.estimated_bytes=gib:gib",
    ),
    _VLLM.fact(
        "graph_pool",
        "0.18-",
        ("CUDA graph pool memory: ",),
        rf"^CUDA graph pool memory: (?P<act>{_NUM}) GiB \(actual\), (?P<est>{_NUM}) GiB \(estimated\), "
        rf"difference: (?P<diff>{_NUM}) GiB \((?P<pct>{_NUM})%\)",
        "graph.bytes=act:gib graph.estimated_bytes=est:gib",
    ),
    _VLLM.fact(
        "graph_budget",
        "0.20-",
        ("CUDA graph memory profiling is enabled",),
        r"^CUDA graph memory profiling is enabled .*? The current --gpu-memory-utilization=(?P<util>[\d.]+) is equivalent "
        r"to --gpu-memory-utilization=(?P<eq>\d+(?:\.\d+)?)"
        r"(?:.*?increase --gpu-memory-utilization to (?P<same>\d+\.\d+))?",
        "memory_fraction=util:float memory_fraction.without_graphs=eq:float memory_fraction.same_pool=same:float",
    ),
    _VLLM.fact(
        "memory_summary",
        "0.10.2-",
        ("Free memory on device (",),
        r"^Free memory on device \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup\. Desired GPU memory utilization is "
        r"\((?P<util>[\d.]+), (?P<req>[\d.]+) GiB\)\. Actual usage is (?:(?P<w>[\d.]+) GiB for weight, (?P<act>[\d.]+) GiB "
        rf"for peak activation, (?P<nt>{_NUM}) GiB for non-torch memory,|(?P<consumed>[\d.]+) GiB for consumed memory "
        rf"\(weights \+ non-torch\), (?P<act2>[\d.]+) GiB for peak activation,) and (?P<graph>{_NUM}) GiB for CUDAGraph memory",
        "gpu.free_at_start_bytes=free:gib gpu.total_bytes=total:gib memory_fraction=util:float budget.bytes=req:gib "
        "weights.bytes=w:gib activation.bytes=act:gib activation.bytes=act2:gib nontorch.bytes=nt:gib "
        "consumed.bytes=consumed:gib graph.bytes=graph:gib",
    ),
    _VLLM.fact(
        "kv_fixed",
        "0.10.2-",
        ("Initial free memory ",),
        r"^Initial free memory (?P<free>[\d.]+) GiB, reserved (?P<kv>[\d.]+) ?GiB memory for KV Cache as specified by "
        r"kv_cache_memory_bytes",
        "gpu.free_at_start_bytes=free:gib kv.bytes=kv:gib",
    ),
    _VLLM.fact(
        "startup_plan",
        "0.26-",
        ("Applying persisted startup plan",),
        r"^Applying persisted startup plan \(fingerprint \S+\): kv_cache_memory_bytes=\d+ \((?P<kv>[\d.]+) GiB\)",
        "kv.bytes=kv:gib",
    ),
    _VLLM.fact(
        "init_engine",
        "0.6.5-",
        ("(profile, create kv cache",),
        r"^init engine \(profile, create kv cache, warmup model\) took (?P<s>[\d.]+) s(?:econds)?"
        r"(?: \(compilation: (?P<c>[\d.]+) s)?",
        "start.seconds=s:float",
    ),
)

PATTERNS: tuple[Pattern, ...] = (*_IDENTITY, *_MEMORY)
"""Facts of the start, most specific first."""
