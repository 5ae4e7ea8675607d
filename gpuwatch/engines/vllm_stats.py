"""The statistics that vLLM 0.2.7 to 0.33 writes to its log every few seconds.

The word before ``KV cache usage`` is the device (GPU, CPU, XPU) from 0.30 on. Rates are in percent.
"""

from __future__ import annotations

from gpuwatch.engines.log_pattern import Maker, Pattern

_VLLM = Maker("vllm")


PATTERNS: tuple[Pattern, ...] = (
    _VLLM.stats(
        "stats",
        "0.2.7-",
        ("Avg prompt throughput: ",),
        r"^(?:Engine (?P<engine>\d{3}): |(?P<n>\d+) Engines Aggregated: )?Avg prompt throughput: (?P<pt>[\d.]+) tokens/s, "
        r"Avg generation throughput: (?P<gt>[\d.]+) tokens/s, Running: (?P<run>\d+) reqs, "
        r"(?:Swapped: (?P<swap>\d+) reqs, )?(?:Waiting|Pending): (?P<wait>\d+) reqs,? (?:Deferred: (?P<defer>\d+) reqs, )?"
        r"(?:KV fetch: (?P<kvf0>\d+) waiting to start, (?P<kvf1>\d+) in progress, (?P<kvf2>\d+) completed waiting, )?"
        r"(?:Preemptions: (?P<pre>\d+), )?(?P<dev>[A-Za-z]+) KV cache usage: (?P<kv>[\d.]+)%"
        r"(?:, CPU KV cache usage: (?P<cpukv>[\d.]+)%)?(?:, Prefix cache hit rate: (?P<hit>[\d.]+)%)?"
        r"(?:, Corrupted: (?P<corr>\d+) reqs)?(?:, External prefix cache hit rate: (?P<ext>[\d.]+)%)?"
        r"(?:, MM cache hit rate: (?P<mm>[\d.]+)%)?\.?$",
    ),
    _VLLM.stats(
        "prefix_hit_v0",
        "0.5.5-0.11.0",
        ("Prefix cache hit rate: GPU",),
        r"^Prefix cache hit rate: GPU: (?P<gpu>[\d.]+)%, CPU: (?P<cpu>[\d.]+)%",
    ),
    _VLLM.stats(
        "iteration",
        "0.14-",
        ("Iteration(",),
        r"^(?:Engine (?P<engine>\d{3}): )?Iteration\((?P<i>\d+)\): (?P<cr>\d+) context requests, (?P<ct>\d+) context tokens, "
        r"(?P<gr>\d+) generation requests, (?P<gt>\d+) generation tokens, iteration elapsed time: (?P<ms>[\d.]+) ms"
        r"(?:, (?P<dev>[A-Za-z]+) KV cache usage: (?P<kv>[\d.]+)%)?",
    ),
    _VLLM.stats(
        "spec_decode",
        "0.8.4-",
        ("SpecDecoding metrics: ",),
        r"^SpecDecoding metrics: (?=.*?[Dd]raft acceptance rate: (?P<rate>[\d.]+|nan)%)"
        r"(?:(?=.*?Mean acceptance length: (?P<mal>[\d.]+|nan)))?"
        r"(?=.*?Accepted: (?P<acc>\d+) tokens, Drafted: (?P<drafted>\d+) tokens)",
    ),
    _VLLM.stats(
        "spec_decode_v0",
        "0.5.3-0.9.2",
        ("Speculative metrics: ",),
        r"^Speculative metrics: Draft acceptance rate: (?P<rate>[\d.]+|nan), System efficiency: (?P<eff>[\d.]+|nan), "
        r"Number of speculative tokens: (?P<k>\d+), Number of accepted tokens: (?P<acc>\d+), "
        r"Number of draft tokens: (?P<dr>\d+), Number of emitted tokens: (?P<em>\d+)",
    ),
    _VLLM.stats("kv_transfer", "0.11.0-", ("KV Transfer metrics: ",), r"^KV Transfer metrics: (?P<metrics>.*)$"),
)
"""Periodic lines; the first shape is the one of every version."""
