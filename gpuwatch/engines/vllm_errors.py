"""What vLLM 0.2.7 to 0.33 writes when something goes wrong, and lines that only look like it.

Sources as for `vllm_log`; most start-up errors are the last line of a traceback, so these expressions do not anchor.
"""

from __future__ import annotations

from gpuwatch.engines.log_pattern import Maker, Pattern

_VLLM = Maker("vllm")
_ANY = Maker("")


# Also as the statement that raises it: it stands in a traceback only when it was carried out.
RAISED = (_VLLM.event("uva", "uva_unavailable", "0.24-", ("UVA is not available",), r"UVA is not available"),)

LOOKALIKES = (
    # A traceback quotes the statement that raises, with the text of the message in it.
    _ANY.ignore(
        "source_line",
        "all",
        (
            'Error("',
            'Error(f"',
            "Error('",
            "Error(f'",
            'Exception("',
            'Exception(f"',
        ),
        r"^\s*(?:raise\s|logger\.)",
    ),
    _ANY.ignore(
        "request",
        "all",
        ("Received request ", "Request ", "Generated response "),
        r"^(?:Received request|Request|Generated response) \S+",
    ),
    # What somebody says in a chat or a ticket that he had seen.
    _ANY.ignore(
        "said",
        "all",
        tuple(
            mark + word for mark in '"`' for word in ("torch.", "CUDA out of", "ValueError", "RuntimeError", "OSError")
        ),
        r"^(?:<?[\w .-]{1,30}>?: )?(?:[A-Za-z][\w',.!?-]* ){3,}[\"`](?:[\w.]*(?:Error|Exception)\b|CUDA out of memory)",
    ),
    _ANY.ignore(
        "test_outcome",
        "pytest",
        (".py::",),
        r"^(?:FAILED|ERROR|PASSED|SKIPPED|XFAIL|XPASS) \S+\.py::\S+|^\S+\.py::\S+ (?:FAILED|ERROR|PASSED)",
    ),
    _VLLM.note(
        "dump_stats",
        "crash_dump",
        "0.9.0-",
        ("Dumping scheduler ",),
        r"^Dumping scheduler (?:output|stats)(?=.*\btotal_num_scheduled_tokens=(?P<tokens>\d+))?"
        r"(?=.*\bnum_running_reqs=(?P<run>\d+))?(?=.*\bnum_waiting_reqs=(?P<wait>\d+))?"
        r"(?=.*\bkv_cache_usage=(?P<kv>[\d.]+))?.*(?:total_num_scheduled_tokens|kv_cache_usage)=",
    ),
    _ANY.ignore(
        "dump", "0.9.0-", ("Dumping ",), r"^Dumping (?:input data|scheduler output for model execution|scheduler stats)"
    ),
    _ANY.ignore(
        "ulimit_advice", "0.8-", ("Found ulimit of ",), r"^Found ulimit of \d+ and failed to automatically increase"
    ),
    _ANY.note(
        "graph_advice",
        "graph_capture_begin",
        "0.4-",
        ("Capturing cudagraphs", "Capturing the model for CUDA"),
        r"^Capturing (?:cudagraphs|the model for CUDA)",
    ),
)

_START = (
    _VLLM.event(
        "free_memory",
        "free_memory_below_budget",
        "0.9.1-",
        ("Free memory on device",),
        r"Free memory on device ?(?P<dev>\S+)? \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than "
        r"(?:desired GPU memory utilization|the engine's budget after excluding external process's weights) "
        r"\((?P<util>[\d.]+), (?P<req>[\d.]+) GiB\)",
    ),
    _VLLM.event(
        "profile_drift",
        "memory_profile_drift",
        "all",
        ("Error in memory profiling",),
        r"Error in memory profiling\. Initial free memory (?P<a>[\d.]+)(?: GiB)?, current free memory (?P<b>[\d.]+)",
    ),
    _VLLM.event(
        "no_blocks",
        "no_kv_blocks",
        "all",
        ("No available memory for the cache blocks",),
        r"No available memory for the cache blocks\.(?: Try increasing `(?P<knob>\w+)`)?",
    ),
    _VLLM.event(
        "max_len_v0",
        "max_model_len_exceeds_kv",
        "0.2.7-0.10.2",
        ("The model's max seq len",),
        r"The model's max seq len \((?P<mml>\d+)\) is larger than the maximum number of tokens that can be stored in KV "
        r"cache \((?P<cap>\d+)\)",
    ),
    _VLLM.event(
        "max_len_v1",
        "max_model_len_exceeds_kv",
        "0.7.0-",
        ("To serve at least one request",),
        r"To serve at least one request with the model(?:s)?'s max seq len \((?P<mml>\d+)\), \((?P<need>[\d.]+) Gi?B KV cache "
        r"is needed, which is larger than the available KV cache memory \((?P<have>[\d.]+) Gi?B\)"
        r"(?:\. *Based on the available memory, *(?:the )?estimated maximum model length is (?P<fit>\d+))?",
    ),
    _VLLM.event(
        "auto_fit_failed",
        "max_model_len_exceeds_kv",
        "0.14-",
        ("Cannot auto-fit max_model_len",),
        r"Cannot auto-fit max_model_len",
    ),
    _ANY.event(
        "heads",
        "flag_value_invalid",
        "all",
        ("must be divisible by tensor parallel size",),
        r"Total number of attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<tp>\d+)\)",
    ),
    _VLLM.event(
        "experts",
        "flag_value_invalid",
        "0.9-",
        ("must be divisible by ep_size",),
        r"n_physical_experts=(?P<experts>\d+) must be divisible by ep_size=(?P<ep>\d+)",
    ),
    _VLLM.event(
        "load_oom",
        "load_oom",
        "0.13-",
        ("Failed to load model - not enough",),
        r"Failed to load model - not enough GPU memory",
    ),
    _VLLM.event(
        "warmup_oom",
        "warmup_oom",
        "0.8.0-",
        ("CUDA out of memory occurred when",),
        r"CUDA out of memory occurred when warming up (?P<what>sampler|pooler)(?: \(task=(?P<task>[^)]*)\))? with "
        r"(?P<n>\d+) dummy requests",
    ),
    _VLLM.event(
        "kv_host_memory",
        "kv_host_memory_short",
        "0.20-",
        ("Available memory on node",),
        r"Available memory on node (?P<node>\d+) \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on kv cache allocation is less "
        r"than requested memory for kv \((?P<req>[\d.]+)/",
    ),
    _VLLM.event(
        "rope",
        "rope_beyond_native",
        "all",
        ("User-specified max_model_len",),
        r"User-specified max_model_len \((?P<mml>\d+)\) is greater than the derived max_model_len "
        r"\((?P<key>\w+)=(?P<derived>[\d.]+|inf|None)(?: or model_max_length=(?P<tok>[\d.]+|None))? in model's config\.json\)",
        facts="model.context=derived:float",
    ),
    _VLLM.event(
        "rope_keys",
        "rope_key_unknown",
        "0.6-",
        ("Unrecognized keys in `rope",),
        r"Unrecognized keys in `(?P<field>rope_\w+)` for 'rope_type'='(?P<type>\w+)': \{(?P<keys>[^}]*)\}",
    ),
    _VLLM.event(
        "kv_scale",
        "kv_scale_one",
        "0.4.3-",
        ("Using KV cache scaling factor",),
        r"Using KV cache scaling factor 1\.0 for fp8_e4m3\.",
        facts="kv.unscaled=:yes",
    ),
    _VLLM.event(
        "q_scale",
        "q_scale_uncalibrated",
        "0.9.0-",
        ("Using uncalibrated q_scale",),
        r"Using uncalibrated q_scale (?P<q>[\d.]+) and/or prob_scale (?P<p>[\d.]+) with fp8 attention",
    ),
    _VLLM.event(
        "mm_profile",
        "mm_profile_short",
        "0.8-0.10",
        ("The sequence length used for profiling",),
        r"The sequence length used for profiling \(.*?= (?P<len>\d+)\) is too short to hold the multi-modal embeddings"
        r"(?: in the worst case \((?P<worst>\d+) tokens in total)?",
    ),
    _VLLM.event(
        "dtype",
        "dtype_unsupported",
        "all",
        (
            "Bfloat16 is only supported",
            "FP8 is only supported",
            "Float8 types are not supported",
            "is not supported for the current GPU",
            "is not supported for quantization method",
            "does not support float16",
        ),
        r"(?P<dtype>Bfloat16|FP8|Float8)[\w ]* (?:is|are) (?:only|not) supported"
        r"(?: on GPUs with compute capability of at least (?P<needs>\d+(?:\.\d+)?))?"
        r"(?:.*Your (?P<gpu>[^.]+?) GPU has compute capability (?P<has>\d+(?:\.\d+)?))?"
        r"|quantization method (?P<method>\w+) is not supported for the current GPU\."
        r"(?: Minimum capability: (?P<min>\d+)\.)?(?: Current capability: (?P<cap>\d+))?"
        r"|(?:torch\.)?(?P<dtype2>\w+) is not supported for quantization method (?P<method2>\w+)"
        r"(?:.*Supported dtypes: (?P<ok>\[[^\]]*\]))?"
        r"|model type '?(?P<model>\w+)'? does not support float16",
    ),
)

_RUN = (
    _VLLM.event(
        "preempted",
        "preempted_v0",
        "0.4.3-0.10.2",
        ("Sequence group ",),
        r"Sequence group (?P<id>\S+) is preempted by (?:PreemptionMode\.)?(?P<mode>\w+) mode because there is not enough KV "
        r"cache space(?:.*total_num_cumulative_preemption=(?P<n>\d+))?",
    ),
    _VLLM.event(
        "swap_abort",
        "swap_abort_v0",
        "-0.10.2",
        ("Aborted due to the lack of CPU swap",),
        r"Aborted due to the lack of CPU swap space",
    ),
    _VLLM.event(
        "never_fits",
        "request_never_fits",
        "0.4.2-0.10.2",
        ("Failing the request ",),
        r"Failing the request (?P<id>\S+) because there's not enough kv cache blocks",
    ),
    _VLLM.event(
        "prompt_too_long",
        "prompt_too_long",
        "0.2.7-0.10.2",
        ("Input prompt (",),
        r"Input prompt \((?P<n>\d+) tokens\) is too long and exceeds (?:limit|the capacity) of (?:block_manager )?(?P<limit>\d+)?",
    ),
    _VLLM.event(
        "prefix_reset",
        "prefix_cache_reset",
        "0.7.0-",
        ("Successfully reset prefix cache",),
        r"^Successfully reset prefix cache",
    ),
    _VLLM.event(
        "sleep",
        "sleep",
        "0.7.0-",
        ("GiB memory is still in use",),
        r"(?:^Sleep mode freed (?P<freed>[\d.]+) GiB(?: memory)?, |^)(?P<used>[\d.]+) GiB memory is still in use",
    ),
    _VLLM.event(
        "wake", "wake", "0.7.3-", ("It took ",), r"^It took (?P<s>[\d.]+) seconds to wake up(?: tags (?P<tags>.*))?\."
    ),
)

_DEATH = (
    _VLLM.event(
        "start_failed",
        "engine_start_failed",
        "0.8.4-",
        ("EngineCore failed to start", "Engine core initialization failed", "WorkerProc initialization failed"),
        r"EngineCore failed to start\.|Engine core initialization failed\.|WorkerProc initialization failed due to an exception",
    ),
    _VLLM.note(
        "shutdown",
        "shutdown",
        "0.6-",
        ("hutting down FastAPI HTTP server", "API server: shutdown triggered", "received signal", "KeyboardInterrupt"),
        r"[Ss]hutting down FastAPI HTTP server|API server: shutdown triggered"
        r"|\breceived signal[ =](?:2|15|SIGINT|SIGTERM)\b|^(?:Received )?KeyboardInterrupt\b",
    ),
    _VLLM.event(
        "worker_stopped",
        "worker_stopped",
        "0.26-",
        ("Worker proc ",),
        r"Worker proc (?P<w>\S+) died unexpectedly \(exit code: None\)",
    ),
    _VLLM.event(
        "worker_dead",
        "worker_dead",
        "0.8.5-",
        ("Worker proc ", "RayWorkerProc rank="),
        r"(?:Worker proc (?P<w>\S+)|RayWorkerProc rank=(?P<r>\S+)) died unexpectedly(?: \(exit code: (?P<code>-?\d+)\))?",
    ),
    # V0: only workers that ended with another code than 0 are told; with SIGTERM and SIGINT they end at a shutdown.
    _VLLM.event(
        "worker_dead_v0",
        "worker_dead",
        "0.4.1-0.10.2",
        (" died, exit code: ",),
        r"^Worker (?P<w>\S+) pid (?P<pid>\d+) died, exit code: (?P<code>-?(?!(?:0|2|15)\b)\d+)",
    ),
    _VLLM.event(
        "engine_dead",
        "engine_dead",
        "all",
        (
            "EngineCore hit an exception",
            "EngineCore encountered ",
            "Engine core proc",
            "MPClient: engine core exited",
            "Background loop ",
            "Engine loop is not running",
            "MQLLMEngine is already dead",
            "Got fatal signal from worker processes",
        ),
        r"EngineCore (?:hit an exception|encountered a fatal error\.|encountered an issue\.)"
        r"|Engine core proc(?:ess)? (?P<name>\S+) died unexpectedly|MPClient: engine core exited unexpectedly"
        r"|Background loop (?:has errored already|is not running|is stopped)|Engine loop is not running"
        r"|MQLLMEngine is already dead|Got fatal signal from worker processes, shutting down",
    ),
    _VLLM.event(
        "shm_stall",
        "shm_broadcast_stall",
        "0.8.2-",
        ("No available shared memory broadcast block",),
        r"No available shared memory broadcast block found ?in (?P<s>\d+) seconds?",
    ),
    _VLLM.event("rpc_timeout", "rpc_timeout", "0.6.5-", ("RPC call to ",), r"RPC call to (?P<m>\S+) timed out"),
)

PATTERNS: tuple[Pattern, ...] = (*_START, *_RUN, *_DEATH)
"""Errors, warnings and events of vLLM."""
