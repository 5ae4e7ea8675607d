"""Frames of tracebacks that tell in which step an engine was: loading, profiling, capturing graphs, serving.

Names of functions and files are those of vLLM 0.2.7 to 0.33 (``worker/``, ``v1/worker/``, ``spec_decode/``, ``lora/``) and
SGLang 0.2.15 to 0.5.23 (``srt/model_executor/``, ``srt/managers/``). A bare name on a line, as people note it down, counts.
"""

from __future__ import annotations

from gpuwatch.engines.log_pattern import Maker, Pattern

_ANY = Maker("")

RAISED = "exception"
"""The event of an exception that no other pattern knows."""

STEPS: dict[str, tuple[str, ...]] = {
    "sampler": ("_dummy_sampler_run", "_dummy_pooler_run"),
    "multimodal": (
        "get_multimodal_embeddings",
        "embed_multimodal",
        "get_vision_embeddings",
        "get_vision_hidden_states",
        "_process_image_input",
        "_process_video_input",
        "_process_image_pixels",
        "_execute_mm_encoder",
        "_run_mm_encoder",
        "profile_mm_encoder",
        "get_image_features",
        "get_image_feature",
        "_get_mm_dummy_batch",
        "vision_tower",
        "vision_model",
        "visual",
        "vpm",
    ),
    "lora": (
        "create_lora_manager",
        "create_lora_weights",
        "load_lora_adapter",
        "activate_adapter",
        "set_active_loras",
        "set_active_adapters",
        "add_lora",
        "_load_adapter",
        "init_lora_manager",
    ),
    "draft": (
        "proposer_worker",
        "init_draft_worker",
        "draft_extend",
        "draft_forward",
        "propose_draft_token_ids",
        "propose_tree",
        "propose",
        "load_draft_model",
    ),
    "graphs": (
        "capture_model",
        "capture_graphs",
        "_capture_cudagraphs",
        "capture_one_batch_size",
        "init_device_graphs",
        "init_cuda_graphs",
        "init_decode_cuda_graph",
        "profile_cudagraph_memory",
    ),
    "pool": (
        "initialize_cache",
        "_init_cache_engine",
        "_allocate_kv_cache",
        "_allocate_kv_cache_tensors",
        "allocate_kv_cache_tensors",
        "initialize_kv_cache",
        "initialize_kv_cache_tensors",
        "init_memory_pool",
    ),
    "logits": (
        "_get_prompt_logprobs_dict",
        "_get_logprobs",
        "compute_logits",
        "compute_logprobs",
        "gather_logprobs",
        "_get_logits",
        "get_token_ids_logprobs",
    ),
    "profile": (
        "determine_num_available_blocks",
        "determine_available_memory",
        "profile_run",
        "memory_profiling",
    ),
    "load": (
        "load_weights",
        "load_model",
        "_initialize_model",
        "initialize_model",
        "create_weights",
        "process_weights_after_loading",
    ),
    "warmup": ("compile_or_warm_up_model", "kernel_warmup", "warm_up_model"),
    "serve": (
        "execute_model",
        "run_busy_loop",
        "forward_batch_generation",
        "forward_extend",
        "forward_decode",
        "event_loop_normal",
        "event_loop_overlap",
        "run_engine_loop",
    ),
}
"""Functions by step; the steps in the order in which they decide, the most telling first."""

STEP_OF: dict[str, str] = {name: step for step, names in STEPS.items() for name in names}
"""Step by function."""

# Files in which any function tells the step. Sampling is part of several steps, and no step of its own.
FILES: dict[str, str] = {
    "spec_decode_worker.py": "draft",
    "eagle_worker.py": "draft",
    "eagle.py": "draft",
    "cuda_graph_runner.py": "graphs",
    "lora_manager.py": "lora",
    "logits_processor.py": "logits",
    "sampler.py": "sampling",
    "topk_topp_sampler.py": "sampling",
}
"""Step by file."""

_NAMES = "|".join(sorted(STEP_OF, key=len, reverse=True))
_FILE_NAMES = "|".join(name.replace(".", r"\.") for name in FILES)

PATTERNS: tuple[Pattern, ...] = (
    _ANY.note(
        "frame_file",
        "traceback_step",
        "Python",
        tuple(f"/{name}" for name in FILES),
        rf"^\s*File \"[^\"]*/(?P<file>{_FILE_NAMES})\", line \d+, in (?P<step>\w+)",
    ),
    _ANY.note(
        "frame",
        "traceback_step",
        "Python",
        tuple(f", in {name}" for name in STEP_OF),
        rf"^\s*File \"[^\"]*\", line \d+, in (?P<step>{_NAMES})$",
    ),
    # The line of code below the last frame of vLLM: the call into a model, whose own frames a log may lack.
    _ANY.note(
        "frame_call",
        "traceback_step",
        "vLLM 0.8-",
        ("self.model.get_multimodal_embeddings(", "self.model.embed_multimodal("),
        r"^\s*(?:\w+ = )?self\.model\.(?P<step>get_multimodal_embeddings|embed_multimodal)\(",
    ),
    _ANY.note(
        "frame_name",
        "traceback_step",
        "as noted down",
        tuple(STEP_OF),
        rf"^\s*(?:at |in |- )?(?P<step>{_NAMES})(?:\(\))?(?: forward)?$",
    ),
)
"""Frames, and names of functions alone on a line."""

EXCEPTION = _ANY.note(
    "exception",
    RAISED,
    "Python",
    ("Error: ", "Exception: ", "AssertionError", "NotImplementedError"),
    r"^(?P<type>(?:(?:[a-zA-Z_]\w*\.)*[A-Z]|(?:[a-zA-Z_]\w*\.)+[a-z])\w*(?:Error|Exception))(?:: (?P<text>\S.*))?$",
)
"""The exceptions at the ends of tracebacks; after every pattern that knows one of them."""
