"""Start vLLM's engine core for each of several models, in one process, and write what it says its KV pool holds.

usage: VLLM_VENV/bin/python kv_pools.py CASES.json        (writes a line of JSON for each case to standard output)

A case has `folder` (of the model) and `flags` (of the engine). What is written is what a server prints as "KV cache
size" and "Maximum concurrency": both come from `update_kv_cache_capacity` of the engine core that is started here.
"""

import gc
import json
import sys
from pathlib import Path

from vllm.distributed import cleanup_dist_env_and_memory
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor import Executor


def start(folder, flags):
    """Return the tokens of the pool, the concurrency and the blocks."""
    arguments = EngineArgs(model=folder, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, **flags)
    config = arguments.create_engine_config()
    core = EngineCore(config, Executor.get_class(config), log_stats=False)
    try:
        cache = config.cache_config
        return {
            "tokens": cache.kv_cache_size_tokens,
            "concurrency": cache.kv_cache_max_concurrency,
            "blocks": cache.num_gpu_blocks,
        }
    finally:
        core.shutdown()
        cleanup_dist_env_and_memory()


def main():
    with Path(sys.argv[1]).open() as file:
        cases = json.load(file)
    for case in cases:
        try:
            found = start(case["folder"], case["flags"])
        except Exception as error:  # noqa: BLE001  # the other cases go on
            found = {"error": f"{type(error).__name__}: {error}"}
        print("\nPOOL " + json.dumps({"name": case["name"], **found}), flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
