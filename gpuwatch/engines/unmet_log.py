"""What a start asks for and does not get: a driver that works, a GPU that can, weights, host memory, ranks that divide.

Sources: CUDA's error texts, torch 2.0 to 2.9, Triton, flash-attn, Transformers 4.2 to 4.57, huggingface_hub, NCCL 2.18
to 2.28, vLLM 0.2.7 to 0.33 and SGLang 0.2.15 to 0.5.23. Group `lacks` marks lines that `diagnosis.causes.unmet` explains.
"""

from __future__ import annotations

from gpuwatch.engines.log_pattern import Maker, Pattern

_ANY = Maker("")
_VLLM = Maker("vllm")
_SGLANG = Maker("sglang")

# Of a kernel that faulted, as CUDA words it.
_FAULT = r"an illegal memory access was encountered|misaligned address|unspecified launch failure"

_DRIVER = (
    # Errors 802, 999 and 222 of CUDA, and a driver whose library is not there.
    _ANY.event(
        "fabric_down",
        "driver_too_old",
        "CUDA 10-",
        ("system not yet initialized", "CUDA_ERROR_SYSTEM_NOT_READY", "cudaErrorSystemNotReady"),
        r"(?P<lacks>system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady)",
    ),
    _ANY.event(
        "cuda_init",
        "driver_too_old",
        "torch 1.10-",
        ("CUDA driver initialization failed", "CUDA unknown error - this may be due"),
        r"^(?:\w*Error: )?(?P<lacks>CUDA driver initialization failed|CUDA unknown error) ?[,-]",
    ),
    _ANY.event(
        "ptx_newer",
        "driver_too_old",
        "CUDA 11-",
        ("PTX was compiled with an unsupported toolchain",),
        r"(?P<lacks>PTX was compiled with an unsupported toolchain)",
    ),
    _ANY.event(
        "no_libcuda",
        "driver_too_old",
        "glibc",
        ("libcuda.so.1: cannot open shared object file",),
        r"^(?:ImportError|OSError|RuntimeError): (?P<lacks>libcuda\.so\.1): cannot open shared object file",
    ),
    _ANY.event(
        "torch_without_cuda",
        "driver_too_old",
        "torch 1.0-",
        ("Torch not compiled with CUDA enabled",),
        r"^AssertionError: (?P<lacks>Torch not compiled with CUDA) enabled",
    ),
    # Compilers of CUDA that are older than the card, and code that is for another one.
    _ANY.event(
        "compiler_older",
        "driver_too_old",
        "CUDA 11-",
        ("invalid value for --gpu-architecture", "is not defined for option 'gpu-name'"),
        r"(?P<lacks>invalid value for --gpu-architecture)|Value '(?P<arch>sm_\w+)' (?P<lacks2>is not defined for option)",
    ),
    _ANY.event(
        "image_invalid",
        "driver_too_old",
        "CUDA 10-",
        ("device kernel image is invalid",),
        r"(?P<lacks>device kernel image is invalid)",
    ),
)

_CARD = (
    # vLLM passes its sentence as several arguments, which Python prints as a tuple.
    _ANY.event(
        "scheme",
        "dtype_unsupported",
        "vLLM 0.4.2-, SGLang 0.4.3-",
        ("uantization scheme is not supported for",),
        r"(?P<lacks>Quantization scheme) is not supported for[ ',]+the current GPU\."
        r"(?:[ ',]+Min capability: (?P<needs>\d+)\.)?(?:[ ',]+Current capability: (?P<has>\d+))?",
    ),
    _ANY.event(
        "ampere_only",
        "dtype_unsupported",
        "flash-attn 2-",
        ("FlashAttention only supports Ampere",),
        r"Error: (?P<lacks>FlashAttention) only supports Ampere GPUs or newer",
    ),
    _SGLANG.event(
        "sgl_sm75",
        "dtype_unsupported",
        "0.4-",
        ("SGLang only supports sm75",),
        r"Error: (?P<lacks>SGLang) only supports sm75 and above",
    ),
    _ANY.event(
        "triton_type",
        "dtype_unsupported",
        "Triton 3-",
        ("not supported in this architecture. The supported",),
        r"Error\([\"']type (?P<lacks>fp8\w+) not supported in this architecture\. The supported fp8 dtypes are (?P<ok>\([^)]*\))",
    ),
    _ANY.event(
        "quantised_otherwise",
        "dtype_unsupported",
        "vLLM 0.2.7-, SGLang 0.3-",
        ("uantization method specified in the model config",),
        r"(?P<lacks>Quantization method) specified in the model config \((?P<own>[^)]+)\) does not match the quantization "
        r"method specified in the `?quantization`? argument \((?P<told>[^)]+)\)",
    ),
    _ANY.event(
        "quantised_unknown",
        "dtype_unsupported",
        "vLLM 0.2.7-, SGLang 0.3-",
        ("nknown quantization method: ", "nvalid quantization method: "),
        r"(?P<lacks>Unknown|Invalid) quantization method: (?P<method>[\w-]+(?:\.[\w-]+)*)",
    ),
)

_FILES = (
    _ANY.event(
        "no_weights",
        "model_not_found",
        "vLLM 0.2.7-, SGLang 0.2.15-, Transformers",
        ("Cannot find any model weights with", "Error no file named "),
        r"Error: (?P<lacks>Cannot find any model weights) with [`']?(?P<model>[^`']+?)[`']?$"
        r"|Error: (?P<lacks2>Error no file named) .* found in directory (?P<model2>\S+?)\.?$",
    ),
    _ANY.event(
        "no_config",
        "model_not_found",
        "vLLM 0.6.3-, Transformers 4.0-",
        (
            "Unrecognized model in ",
            "No supported config format found in ",
            "Could not detect config format for no config",
        ),
        r"Error:? ?(?P<lacks>Unrecognized model) in (?P<model>\S+?)\. Should have a `?model_type`? key"
        r"|(?P<lacks2>No supported config format) found in (?P<model2>\S+?)\.?$"
        r"|(?P<lacks3>Could not detect config format) for no config file found",
    ),
    _ANY.event(
        "no_file",
        "model_not_found",
        "Python",
        ("FileNotFoundError: [Errno 2] No such file",),
        r"^FileNotFoundError: (?P<lacks>\[Errno 2\]) No such file or directory: '(?P<path>[^']*/(?P<file>config\.json"
        r"|params\.json|tokenizer(?:_config)?\.json|tokenizer\.model|(?:model|pytorch_model|consolidated)[\w.-]*\."
        r"(?:safetensors|bin|json)|[\w.-]+\.gguf))'",
    ),
    _ANY.event(
        "no_model_path",
        "model_not_found",
        "Transformers 4.45-",
        ("Incorrect path_or_model_id: ",),
        r"Error: (?P<lacks>Incorrect path_or_model_id): '(?P<model>[^']*)'",
    ),
    _ANY.event(
        "disk_full",
        "model_not_found",
        "Python, hf_xet",
        ("[Errno 28] No space left on device: '", "No space left on device (os error 28)"),
        r"^(?:\w+\.)*OSError: \[Errno 28\] (?P<lacks>No space left on device): '(?P<path>(?!/dev/shm)[^']*"
        r"(?:huggingface|modelscope|models--|\.incomplete|\.safetensors|\.gguf)[^']*)'"
        r"|^\S*Error: .*(?:CAS service|Data processing|I/?O) [Ee]rror.*?(?P<lacks2>No space left on device) \(os error 28\)",
    ),
)

_RANKS = (
    _ANY.event(
        "not_divisible",
        "flag_value_invalid",
        "vLLM 0.2.7-, SGLang 0.2.15-",
        (" is not divisible by ",),
        r"^AssertionError: (?P<whole>\d+) (?P<lacks>is not divisible) by (?P<parts>\d+)\.?$",
    ),
    _SGLANG.event(
        "sgl_sizes",
        "flag_value_invalid",
        "0.3-",
        ("_size must be divisible by ",),
        r"Error: (?P<lacks>tp_size) must be divisible by (?P<by>dp_size|number of nodes|attn_cp_size|moe_dp_size|ep_size)$",
    ),
    _VLLM.event(
        "batched_short",
        "flag_value_invalid",
        "0.2.7-",
        ("max_num_batched_tokens (",),
        r"(?:^|[Ee]rror[:,] )(?P<lacks>max_num_batched_tokens) \((?P<batched>\d+)\) (?:is smaller than max_model_len "
        r"\((?P<length>\d+)\)|must be greater than or equal to max_num_seqs \((?P<seqs>\d+)\))",
    ),
)

_HOST = (
    # Both amounts are of 10**9 bytes; the free one is 10 GiB less than the host has.
    _SGLANG.event(
        "sgl_host_cache",
        "kv_host_memory_short",
        "0.4.4-",
        ("Not enough host memory available. Requesting",),
        r"(?P<lacks>Not enough host memory) available\. Requesting (?P<req>[\d.]+) GB but only have (?P<free>-?[\d.]+) GB free",
    ),
    _ANY.event(
        "nccl_extend",
        "nccl_shm_failed",
        "NCCL 2.10-",
        ("failed to extend /dev/shm/", "Call to posix_fallocate failed"),
        r"NCCL WARN (?:Error: failed to extend (?P<path>/dev/shm/\S+) to (?P<size>\d+) bytes(?:, error: (?P<why>.*))?"
        r"|Call to posix_fallocate failed ?: (?P<why2>.*))",
    ),
)

_GROUP = (
    # A key that another rank writes while a process group is formed. `broadcast_from` is of one that works.
    _ANY.event(
        "store_wait",
        "rendezvous_timeout",
        "torch 2.3-",
        ("wait timeout after ",),
        r"DistStoreError: (?P<lacks>wait timeout) after (?P<ms>\d+)ms, keys: (?P<keys>(?!\S*broadcast_from)\S.*)$",
    ),
    _ANY.note(
        "nccl_interface",
        "nccl_interface",
        "NCCL 2.4-",
        ("Bootstrap : Using ", "Bootstrap: Using "),
        r"NCCL INFO (?:NET/Socket ?: |Bootstrap ?: )Using (?:\[\d+\])?(?P<card>[\w.@-]+):(?P<address>[\d.]+)<\d+>",
    ),
)

_FAULTS = (
    # FlashInfer, Triton, DeepEP, the driver's interface and CUTLASS name the same errors in words of their own.
    _ANY.event(
        "kernel_fault",
        "cuda_error",
        "all",
        ("an illegal memory access was encountered", "misaligned address", "unspecified launch failure"),
        r"(?:CUDA Error|Cuda failure|Triton Error|CUDA (?:driver|runtime) error|Failed: C(?:UDA|uda) error"
        rf"|Error in function(?: '(?P<fn>\w+)')?)(?!\w).*?(?P<what>{_FAULT})",
    ),
    _ANY.event(
        "rocm_fault",
        "cuda_error",
        "ROCm",
        ("emory access fault by GPU node-",),
        r"(?P<what>Memory access fault by GPU node-\d+)\b(?: \(Agent handle: \S+\))?(?: on address (?P<address>0x\w+)\.)?"
        r"(?: Reason: (?P<why>[^.]+))?",
    ),
    _ANY.note(
        "ucx_error",
        "transport_error",
        "UCX 1.10-",
        (" UCX  ERROR ",),
        r"\bUCX  ERROR (?P<why>.*)$",
    ),
)

PATTERNS: tuple[Pattern, ...] = (*_DRIVER, *_CARD, *_FILES, *_RANKS, *_HOST, *_GROUP, *_FAULTS)
"""All of these lines, most specific first."""
