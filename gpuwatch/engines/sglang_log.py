"""What SGLang 0.2.15 to 0.5.23 writes to its log. Every GB in these lines is 2**30 bytes.

Lines, versions and expressions come from SGLang's sources of the versions named in each row.
"""

from __future__ import annotations

from gpuwatch.engines.log_pattern import Maker, Pattern

_SGLANG = Maker("sglang")

_NUM = r"-?[\d.]+"


_FACTS = (
    _SGLANG.fact(
        "sgl_args",
        "0.2.15-",
        ("server_args=",),
        r"^server_args=(?:ServerArgs\(|\{)(?P<args>.*)$",
        pairs="args",
        settings="flags",
        starts=True,
    ),
    _SGLANG.fact(
        "sgl_ready", "0.2.15-", ("The server is fired up",), r"^The server is fired up and ready to roll!", "ready=:yes"
    ),
    _SGLANG.fact(
        "sgl_load_begin",
        "0.2.15-",
        ("Load weight begin",),
        r"^Load weight begin\. avail mem=(?P<avail>[\d.]+) GB",
        "gpu.free_at_start_bytes=avail:gib",
    ),
    _SGLANG.fact(
        "sgl_load_end",
        "0.2.15-",
        ("Load weight end",),
        r"^Load weight end\. (?:elapsed=(?P<s>[\d.]+) s, )?type=(?P<type>\w+), (?:.*, )?avail mem=(?P<avail>[\d.]+) GB"
        rf"(?:, mem usage=(?P<used>{_NUM}) GB\.?)?",
        "load.seconds=s:float architecture=type:text avail.after_weights_bytes=avail:gib weights.bytes=used:gib",
    ),
    _SGLANG.fact(
        "sgl_kv_post",
        "0.5.18-",
        ("Post-capture KV sizing: KV cache",),
        r"^Post-capture KV sizing: KV cache allocated\. dtype: (?P<dtype>[\w.]+), #tokens: (?P<tokens>\d+), "
        r"KV size: (?P<kv>[\d.]+) GB(?:, avail mem=(?P<avail>[\d.]+) GB)?",
        "kv.dtype=dtype:text kv.tokens=tokens:int kv.bytes=kv:gib",
    ),
    _SGLANG.fact(
        "sgl_kv_dtype",
        "0.5.3-0.5.12",
        ("Using KV cache dtype: ",),
        r"^Using KV cache dtype: (?:torch\.)?(?P<d>\w+)",
        "kv.dtype=d:text",
    ),
    _SGLANG.fact(
        "sgl_swa_pool",
        "0.4.10-",
        ("Use sliding window memory", "Use Sliding window memory"),
        r"^Use [Ss]liding window memory pool(?:\. full_layer_tokens=(?P<full>\d+),| \(all SWA\)\.) swa_layer_tokens=(?P<swa>\d+)",
        "kv.tokens=full:int kv.swa_tokens=swa:int",
    ),
    _SGLANG.fact(
        "sgl_pool_end",
        "0.2.15-",
        ("Memory pool end",),
        r"^Memory pool end\. avail mem=(?P<avail>[\d.]+) GB",
        "avail.after_pool_bytes=avail:gib",
    ),
    _SGLANG.fact(
        "sgl_graphs",
        "0.2.15-",
        ("Capture ",),
        r"^Capture (?P<what>.+?) (?:graph|Graph) end\. (?:bs=(?P<bs>\[[^\]]*\]), )?(?:Time elapsed: |elapsed=)(?P<s>[\d.]+) s[.,]?"
        rf"(?=.*?mem usage=(?P<used>{_NUM}) GB)?(?=.*?avail mem=(?P<avail>[\d.]+) GB)?",
        "graph.seconds=s:float graph.bytes=used:gib",
    ),
    _SGLANG.fact(
        "sgl_limits",
        "0.2.15-",
        ("_total_num_tokens=",),
        r"^max_total_num_tokens=(?P<tokens>\d+), (?:chunked_prefill_size=(?P<cps>-?\d+|None), )?max_prefill_tokens=(?P<mpt>\d+), "
        r"max_running_requests=(?P<mrr>\d+), context_len=(?P<ctx>\d+)(?:, available_(?:gpu|cpu)_mem=(?P<avail>[\d.]+) GB)?",
        "kv.tokens=tokens:int max_num_batched_tokens=cps:int max_prefill_tokens=mpt:int max_num_seqs=mrr:int "
        "max_model_len=ctx:int avail.at_end_bytes=avail:gib",
    ),
    _SGLANG.fact(
        "sgl_pool_tokens",
        "0.2.15-",
        ("_total_num_tokens=",),
        r"^(?:.*[ ,])?max_total_num_tokens=(?P<tokens>\d+)",
        "kv.tokens=tokens:int",
    ),
)

# The pool's own line: K and V apart until 0.4.5 or so, or together where they are one (MLA). A draft model's pool and a
# reserved address range carry a label or say so, and are not the pool.
_POOL = (
    _SGLANG.fact(
        "sgl_kv",
        "0.4.2-",
        ("KV Cache is allocated",),
        r"^KV Cache is allocated\. (?:dtype: (?P<dtype>[\w.]+), )?(?:#tokens: (?P<tokens>\d+), )?"
        r"(?:K size: (?P<k>[\d.]+) GB, V size: (?P<v>[\d.]+) GB|KV size: (?P<kv>[\d.]+) GB)",
        "kv.dtype=dtype:text kv.tokens=tokens:int kv.bytes=kv:gib kv.bytes=k+v:gib",
    ),
    Pattern(
        "sgl_kv_other",
        "ignore",
        "sglang",
        "0.5.18-",
        ("KV Cache is allocated", "KV Cache VA upper bound"),
        r"^(?:.+? )?KV Cache (?:is allocated|VA upper bound)\.",
    ),
)

_EVENTS = (
    _SGLANG.event(
        "sgl_retract",
        "retraction",
        "0.2.15-",
        ("Decode out of memory happened", "KV cache pool is full", "Testing retraction"),
        r"^(?:Decode out of memory happened\.|KV cache pool is full\. Retract requests\.|Testing retraction\.) "
        r"#retracted_reqs: (?P<n>\d+)(?:, #aborted_retracted_reqs: (?P<ab>\d+))?(?:, #new_tokens_gained: (?P<gain>\d+))?"
        r"(?:, #mamba_num_gained: (?P<mg>\d+))?(?:, #new_token_ratio: (?P<r0>[\d.]+) -> (?P<r1>[\d.]+))?",
    ),
    _SGLANG.event(
        "sgl_retract_abort",
        "retraction_abort",
        "0.5.10-",
        ("_decode: aborted last request",),
        r"retract_decode: aborted last request (?P<id>\S+) due to OOM",
    ),
    _SGLANG.event(
        "sgl_oom",
        "sglang_oom",
        "0.2.15-",
        ("Prefill out of memory", "Decode out of memory."),
        r"(?P<phase>Prefill|Decode) out of memory\. Try to lower your batch size\.",
    ),
    _SGLANG.note(
        "sgl_wanted", "pool_wanted", "0.2.15-", ("Try to allocate ",), r"^Try to allocate (?P<n>\d+) tokens\."
    ),
    _SGLANG.note(
        "sgl_available",
        "pool_available",
        "0.5-",
        (
            "vailable tokens: ",
            "vailable full tokens: ",
            "vailable swa tokens: ",
            "vailable mamba: ",
            "vailable SWA tokens: ",
        ),
        r"^Available (?:(?P<pool>(?!tokens:)[A-Za-z]+) ?)?(?:tokens)?: (?P<n>\d+) "
        r"\(\w*available_size=(?P<free>\d+) \+ \w*evictable_size_?=(?P<evict>\d+)\)",
    ),
    _SGLANG.event(
        "sgl_slots",
        "sglang_oom",
        "0.4.4-",
        ("_req_slots runs out",),
        r"(?P<slots>alloc_req_slots) runs out of memory(?:.*available_size\(\)=(?P<free>\d+))?(?:.*num_reqs=(?P<want>\d+))?",
    ),
    # Of the last request that runs, after all others were taken out; statements in tracebacks quote the message.
    _SGLANG.event(
        "sgl_one_request",
        "sglang_oom",
        "0.2.15-0.5.9",
        ("No space left for only",),
        r"(?:^|Error: )No space left for (?P<alone>only one request)(?: in SWA mode full_available_size=(?P<free>-?\d+), "
        r"swa_available_size=(?P<window>-?\d+))?",
    ),
    _SGLANG.event(
        "sgl_no_memory",
        "sglang_no_memory",
        "0.2.15-",
        ("Not enough memory. Please try to increase",),
        r"Not enough memory\. Please try to increase --mem-fraction-static\."
        r"(?: Current value: (?:self\.server_args\.)?mem_fraction_static=(?P<f>[\d.]+))?",
    ),
    _SGLANG.event(
        "sgl_weights_full",
        "sglang_no_memory",
        "0.5.14-",
        ("Loaded weights leave no GPU memory",),
        r"Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static="
        r"(?P<f>\d+(?:\.\d+)?(?:e-\d+)?)\. Raise --mem-fraction-static above (?P<need>\d+(?:\.\d+)?)",
    ),
    _SGLANG.event(
        "sgl_unbalanced",
        "memory_unbalanced",
        "0.2.15-",
        ("The memory capacity is unbalanced",),
        r"The memory capacity is unbalanced\.",
    ),
    _SGLANG.event(
        "sgl_graph_fail",
        "graph_capture_failed",
        "0.2.15-",
        ("Capture ",),
        r"Capture (?:prefill )?(?:cuda|CUDA) graph failed: (?P<e>.*)",
    ),
    _SGLANG.event(
        "sgl_leak",
        "sglang_leak",
        "0.2.15-",
        (
            "_allocator memory leak",
            "KV cache pool leak",
            "Memory pool leak",
            "_pool memory leak",
            "Pool memory leak",
            "] memory leak",
        ),
        r"(?:(?P<pool>[\w ]+?) memory leak|KV cache pool leak|Memory pool leak) detected!",
    ),
    # A soft watchdog only reports. Those of processes without a GPU count the time in which nothing came, too.
    _SGLANG.note(
        "sgl_soft_watchdog",
        "soft_watchdog",
        "0.5.7-",
        ("self.soft=True",),
        r"^(?P<name>\w+).*[Ww]atchdog timeout \(self\.watchdog_timeout=(?P<s>[\d.]+), self\.soft=True",
    ),
    _SGLANG.event(
        "sgl_watchdog",
        "sglang_watchdog",
        "0.3.6-",
        ("Watchdog timeout (", "_timeout="),
        r"[Ww]atchdog timeout \(self\.watchdog_timeout=(?P<s>[\d.]+)(?:, self\.soft=(?P<soft>\w+))?",
    ),
    _SGLANG.event(
        "sgl_subprocess",
        "worker_dead",
        "0.5.10-",
        ("Subprocess ",),
        r"Subprocess (?P<w>\S+) \(pid=(?P<pid>\d+)\) crashed with exit code (?P<code>-?\d+)",
    ),
    _SGLANG.event(
        "sgl_rank_dead",
        "worker_dead",
        "0.4.0-",
        ("scheduler is dead", "scheduler died"),
        r"Rank (?P<r>\d+) scheduler (?:is dead\.|died\b(?:[^(]*\(exit code: (?P<code>-?\d+)\))?)",
    ),
    # What waitpid gives: the signal in the lowest seven bits. An exit code of its own is 256 and more.
    _SGLANG.event(
        "sgl_child",
        "worker_dead",
        "0.4.0-",
        ("Child process unexpectedly failed",),
        r"Child process unexpectedly failed with exitcode=(?P<wait>\d{1,2}|1[0-9]\d)\. (?P<w>pid=\d+)",
    ),
    _SGLANG.event(
        "sgl_dead",
        "engine_dead",
        "0.4.0-",
        (
            "Scheduler hit an exception",
            "DetokenizerManager hit an",
            "DataParallelController hit an",
            "TokenizerManager hit an",
            "Received sigquit from a child",
        ),
        r"(?P<w>\w+) hit an exception: |Received sigquit from a child proces",
    ),
    _SGLANG.event(
        "sgl_context",
        "rope_beyond_native",
        "0.3.6-",
        ("User-specified context_length",),
        r"User-specified context_length \((?P<mml>\d+)\) is greater than the derived context_length \((?P<derived>\d+)\)",
        facts="model.context=derived:int",
    ),
    _SGLANG.event(
        "sgl_kv_scale",
        "kv_scale_one",
        "0.4.2-",
        ("Using FP8 KV cache but no scaling",),
        r"Using FP8 KV cache but no scaling factors provided",
        facts="kv.unscaled=:yes",
    ),
    _SGLANG.event(
        "sgl_swa_small",
        "max_model_len_exceeds_kv",
        "0.5.20-",
        ("SWA pool (",),
        r"SWA pool \((?P<cap>\d+) tokens\) cannot hold even one request",
    ),
    _SGLANG.event(
        "sgl_too_long",
        "prompt_too_long",
        "0.4-",
        ("Input length (", "The input (", "Prompt length ("),
        r"Input length \((?P<n>\d+)(?: tokens)?\) exceeds the maximum allowed length \((?P<limit>\d+)"
        r"|The input \((?P<n2>\d+) tokens\) is longer than the model's context length \((?P<limit2>\d+)",
    ),
    _SGLANG.event(
        "sgl_fewer_requests",
        "max_requests_reduced",
        "0.5.14-",
        ("_running_requests was reduced",),
        r"max_running_requests was reduced from the requested (?P<asked>\d+) to (?P<n>\d+)",
    ),
)

_STATS = (
    _SGLANG.stats(
        "sgl_prefill",
        "0.2.15-",
        ("Prefill batch",),
        r"^Prefill batch(?: ?\[(?P<it>\d+)\])?[.,] #new-seq: (?P<ns>\d+), #new-token: (?P<nt>\d+), #cached-token: (?P<ct>\d+), "
        r"(?:cache hit rate: (?P<chr>[\d.]+)%, )?(?:token usage: (?P<tu>[\d.]+), |(?:full token usage: (?P<ftu>[\d.]+), )?"
        r"(?:swa token usage: (?P<stu>[\d.]+), )?(?:mamba usage: (?P<mu>[\d.]+), )?)(?P<rest>.*)$",
    ),
    _SGLANG.stats(
        "sgl_decode",
        "0.2.15-",
        ("Decode batch",),
        r"^Decode batch(?: ?\[(?P<it>\d+)\])?[.,] #running-req: (?P<run>\d+)(?=.*?(?<!full )(?<!swa )token usage: (?P<tu>[\d.]+))?"
        r"(?=.*?full token usage: (?P<ftu>[\d.]+))?(?=.*?swa token usage: (?P<stu>[\d.]+))?(?=.*?mamba usage: (?P<mu>[\d.]+))?"
        r"(?=.*?gen throughput \(token/s\): (?P<gt>[\d.]+))?(?=.*?#queue-req: (?P<q>\d+))?",
    ),
)

PATTERNS: tuple[Pattern, ...] = (*_FACTS, *_POOL, *_EVENTS, *_STATS)
"""All of SGLang's lines, most specific first."""
