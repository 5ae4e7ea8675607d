"""What torch, NCCL, CUDA, the hub, argparse, Ray and the kernel write, whichever engine runs on them."""

from __future__ import annotations

from gpuwatch.engines.log_pattern import Maker, Pattern

_ANY = Maker("")

_SIZE = r"[\d.]+ (?:bytes|KiB|MiB|GiB)"


# c10/cuda/CUDACachingAllocator.cpp: first shape to torch 2.0, second from 2.1 (which spells "capacty"). The tail is
# optional because logs and exception wrappers cut it. Within `procs` the own process may be any of the listed ones.
# The words around it sometimes say where: vLLM V0 names the model's execution, vLLM the CUDA graphs, torch its hint.
_TORCH_OOM = (
    rf"^(?=.*?(?P<serving>Error in model execution))?(?=.*?(?P<graphs>VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS))?"
    rf"(?=.*?(?P<hint>PYTORCH_ALLOC_CONF))?.*?(?:(?:CUDA|HIP|XPU) out of memory\. )?Tried to allocate (?P<req>{_SIZE})"
    rf"(?: \(GPU (?P<gpu1>\d+); (?P<tot1>{_SIZE}) total capacity; (?P<alloc1>{_SIZE}) already allocated; "
    rf"(?P<free1>{_SIZE}) free; (?:(?P<allowed1>{_SIZE}) allowed; )?(?P<res1>{_SIZE}) reserved in total by PyTorch\)"
    rf"|\. GPU (?P<gpu>\d+) has a total capaci?ty of (?P<tot>{_SIZE}) of which (?P<free>{_SIZE}) is free\."
    rf"(?P<procs>(?: (?:Process \d+|Including non-PyTorch memory, this process) has {_SIZE} memory in use\.)*)"
    rf"(?: (?P<allowed>{_SIZE}) allowed;)?(?: Of the allocated memory (?P<alloc>{_SIZE}) is allocated by PyTorch,"
    rf"(?: with (?P<priv>{_SIZE}) allocated in private pools \(e\.g\., CUDA Graphs\),)?"
    rf" and (?P<unalloc>{_SIZE}) is reserved by PyTorch but unallocated\.)?)?"
)

_GPU = (
    _ANY.event("torch_oom", "torch_oom", "torch 1.8-", ("Tried to allocate ",), _TORCH_OOM),
    # The bar at its end: 100% has fewer blanks before it than the others, and so a shape of its own.
    _ANY.note(
        "shards_loaded",
        "shards_loaded",
        "vLLM 0.4-, SGLang 0.2.15-",
        ("shards: 100% Completed",),
        r"shards: 100% Completed \| (?P<n>\d+)/(?P=n)\b",
    ),
    _ANY.event(
        "cuda_oom_other",
        "cuda_oom_other",
        "all",
        (
            "CUDA error: out of memory",
            "CUDA driver error: out of memory",
            "CUBLAS_STATUS_ALLOC_FAILED",
            "Cuda failure",
            "CUDA Error: out of memory",
            "Triton Error [CUDA]: out of memory",
            " 'out of memory'",
        ),
        r"CUDA error: out of memory|CUDA driver error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
        r"|Cuda failure (?:2 )?'out of memory'|(?P<sleep>CUDA Error: out of memory at \S*cumem_allocator)"
        r"|CUDA Error: out of memory|(?P<triton>Triton Error \[CUDA\]): out of memory"
        r"|CUDA error (?P<at>\S+:\d+) 'out of memory'",
    ),
    _ANY.event(
        "ecc",
        "ecc_error",
        "all",
        ("CUDA error: uncorrectable ECC",),
        r"CUDA error: uncorrectable ECC error encountered",
    ),
    _ANY.event(
        "no_gpu",
        "no_gpu",
        "all",
        (
            "No CUDA GPUs are available",
            "CUDA error: no CUDA-capable device",
            "Failed to infer device type",
            "Current node has no GPU available",
        ),
        r"No CUDA GPUs are available|no CUDA-capable device is detected|Failed to infer device type"
        r"|(?P<ray>Current node has no GPU available)\.?(?: current_node_resource=(?P<resources>\{[^}]*\}))?",
    ),
    _ANY.event(
        "gpu_unsupported",
        "gpu_unsupported",
        "all",
        ("CUDA error: no kernel image",),
        r"CUDA error: no kernel image is available for execution on the device",
    ),
    _ANY.event(
        "driver_old",
        "driver_too_old",
        "all",
        (
            "The NVIDIA driver on your system is too old",
            "CUDA driver version is insufficient",
            "forward compatibility was attempted on non supported HW",
            "unsupported display driver / cuda driver combination",
        ),
        r"The NVIDIA driver on your system is too old \(found version (?P<v>\d+)\)"
        r"|CUDA driver version is insufficient for CUDA runtime version"
        r"|(?P<forward>forward compatibility) was attempted on non supported HW"
        r"|unsupported display driver / cuda (?P<mixed>driver combination)",
    ),
    # The kernel's own words, of each thread of it.
    _ANY.note(
        "device_assert",
        "device_assert",
        "torch 1.0-",
        ("], thread: [",),
        r"(?P<file>[\w.-]+):\d+: (?P<kernel>.*?): block: \[[\d,]+\], thread: \[[\d,]+\] Assertion `(?P<what>.*)` failed",
    ),
    _ANY.event(
        "cuda_error",
        "cuda_error",
        "all",
        ("CUDA error: ",),
        r"CUDA error: (?P<what>(?:[\w -]|\(s\)|/(?=are\b)|(?<=when calling )`[^`]{1,300}`)+?)"
        r"(?= +[A-Z_]+=|(?!\(s\)|/are\b|(?<=when calling )`[^`]{1,300}`)[^\w -]|$)",
    ),
)

_NCCL = (
    _ANY.event(
        "nccl_timeout",
        "nccl_timeout",
        "torch 1.13-",
        ("Watchdog caught collective operation timeout",),
        r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+), "
        r"NumelIn=(?P<ni>\d+), NumelOut=(?P<no>\d+), Timeout\(ms\)=(?P<to>\d+)\) ran for (?P<ms>\d+) milliseconds",
    ),
    _ANY.event(
        "nccl_watchdog",
        "nccl_timeout",
        "torch 2.4-",
        ("Exception (either an error or timeout)", "failure detected by watchdog at work"),
        r"(?:Exception \(either an error or timeout\)|failure) detected by watchdog at work(?: sequence id)?: (?P<work>\d+)"
        r"(?:.* last enqueued work: (?P<enqueued>\d+))?(?:, last completed work: (?P<completed>-?\d+))?",
    ),
    _ANY.event(
        "nccl_stuck",
        "nccl_timeout",
        "torch 2.2-",
        ("Timeout at NCCL work: ",),
        r"Timeout at NCCL work: (?P<work>\d+), last enqueued NCCL work: (?P<enqueued>\d+), "
        r"last completed NCCL work: (?P<completed>-?\d+)",
    ),
    _ANY.event(
        "nccl_shm",
        "nccl_shm_failed",
        "all",
        ("Error while creating shared memory segment", "ShmOpen"),
        r"Error while creating shared memory segment (?P<path>\S+)(?: \(size (?P<size>\d+)\))?"
        r"(?:, error: (?P<why>.*))?|ncclShmOpen",
    ),
    _ANY.event(
        "nccl_error", "nccl_error", "all", ("NCCL error: ", "NCCL error in: "), r"NCCL error(?: in)?: (?P<msg>.*)"
    ),
    _ANY.event(
        "nccl_code",
        "nccl_error",
        "all",
        ("UnhandledCudaError", "SystemError", "InternalError", "InvalidArgument", "InvalidUsage", "RemoteError"),
        r"^(?:\S+ )?nccl(?P<code>UnhandledCudaError|SystemError|InternalError|InvalidArgument|InvalidUsage|RemoteError)\b",
    ),
    _ANY.event("nccl_warn", "nccl_warning", "all", ("NCCL WARN ",), r"NCCL WARN (?P<msg>.*)$"),
    _ANY.event(
        "rendezvous",
        "rendezvous_timeout",
        "all",
        (
            "The client socket has timed out",
            "TCP client failed to connect",
            "Gloo connectFullMesh failed",
            "waiting for clients.",
        ),
        r"The client socket has timed out after (?P<ms>\d+)ms while trying to connect to \((?P<host>[^,)]+), (?P<port>\d+)\)"
        r"|TCP client failed to connect/validate to host (?P<at>\S+)|Gloo connectFullMesh failed"
        r"|Timed out after (?P<s>\d+) seconds waiting for clients\. (?P<joined>\d+)/(?P<all>\d+) clients joined",
    ),
)

_START = (
    _ANY.fact(
        "uvicorn_on",
        "all",
        ("Uvicorn running on ",),
        r"^Uvicorn running on (?P<url>https?://\S+)",
        "server.url=url:text",
    ),
    _ANY.fact(
        "uvicorn_ready", "all", ("Application startup complete",), r"^Application startup complete\.", "ready=:yes"
    ),
    _ANY.event(
        "port_in_use",
        "port_in_use",
        "all",
        ("[Errno 98]", "[Errno 48]", "EADDRINUSE", "errno: 98", "ZMQError: Address already in use"),
        r"^(?=.*(?P<meeting>server socket has failed to (?:listen|bind)))?"
        r"(?=.*?(?:\bport: |has failed to bind to \S*?:)(?P<at>\d+)\b)?"
        r"(?=.*(?P<queue>ZMQError: )(?:.*?\(addr='\w+://\S*?:(?P<end>\d+)'\))?)?.*?"
        r"(?:\[Errno (?:98|48)\] (?:error while attempting to bind on address \('(?P<host>[^']*)', (?P<port>\d+)[^)]*\): )?"
        r"(?:\[errno (?:98|48)\] )?[Aa]ddress already in use|EADDRINUSE|\(errno: 98 - Address already in use\)"
        r"|ZMQError: Address already in use)",
    ),
    _ANY.event(
        "unknown_flag",
        "unknown_flag",
        "argparse",
        (": error: unrecognized arguments",),
        r"^(?P<prog>\S.*?): error: unrecognized arguments: (?P<args>.*)$",
    ),
    _ANY.event(
        "flag_value",
        "flag_value_invalid",
        "argparse",
        (": error: argument ", ": error: the following arguments are required"),
        r"^(?P<prog>\S.*?): error: (?:argument (?P<flag>[^:]+): (?P<why>.*)|the following arguments are required: (?P<missing>.*))$",
    ),
    _ANY.event(
        "model_denied",
        "model_access_denied",
        "hub",
        ("GatedRepoError", "You are trying to access a gated repo", "Access to model "),
        r"GatedRepoError|You are trying to access a gated repo|Access to model \S+ is restricted",
    ),
    _ANY.event(
        "model_missing",
        "model_not_found",
        "hub",
        (
            "HFValidationError: ",
            "RepositoryNotFoundError: ",
            "Invalid repository ID or local directory",
            "Can't load the configuration of",
            "is not a local folder and is not a valid model",
            "does not appear to have a file named",
        ),
        r"HFValidationError: (?P<why>Repo id must .*)|RepositoryNotFoundError: (?P<why2>.*)"
        r"|Invalid repository ID or local directory specified|Can't load the configuration of '(?P<model>[^']*)'"
        r"|(?P<model2>\S+) is not a local folder and is not a valid model|"
        r"(?P<model3>\S+) does not appear to have a file named (?P<file>\S+)",
    ),
    _ANY.event(
        "hub_down",
        "hub_unreachable",
        "hub",
        ("LocalEntryNotFoundError", "We couldn't connect to", "OfflineModeIsEnabled", "MaxRetryError"),
        r"LocalEntryNotFoundError|We couldn't connect to '(?P<url>https?://[^']*)'|OfflineModeIsEnabled"
        r"|MaxRetryError\(?.*huggingface\.co",
    ),
)

# An Xid of a MIG instance has "GPU-I:05" behind the address of the card.
_XID = r"NVRM: Xid \((?P<pci>PCI:[0-9a-fA-F:.]+)(?: GPU-I:(?P<instance>[0-9a-fA-F]+))?\): "

_MACHINE = (
    _ANY.note(
        "xid_answered",
        "recovery_done",
        "NVIDIA driver 560-",
        ("NVRM: Xid (",),
        rf"{_XID}154,.*recovery action changed from .*\bto (?:0x0\b|\S* ?\(None\))",
    ),
    _ANY.event(
        "xid",
        "xid",
        "NVIDIA driver",
        ("NVRM: Xid (",),
        rf"{_XID}(?P<code>\d+)(?:, pid=(?P<pid>\d+|'?<unknown>'?))?"
        r"(?:, name=(?P<name>[^,]+))?(?:, (?P<text>.*))?$",
    ),
    # The kernel module of the NVSwitches; further lines of an error give its registers, without the grade.
    _ANY.note(
        "sxid",
        "nvswitch_error",
        "NVIDIA driver",
        ("SXid (PCI",),
        r"SXid \((?P<pci>PCI:[0-9a-fA-F:.]+)\): (?P<code>\d+), (?P<grade>Fatal|Non-fatal), (?P<text>.*)$",
    ),
    _ANY.note(
        "pcie_error",
        "pcie_error",
        "Linux",
        ("PCIe Bus Error: severity=Uncorrect",),
        r"\bnvidia (?P<pci>[0-9a-fA-F:.]+): (?:AER: )?PCIe Bus Error: severity=Uncorrect(?:ed|able) "
        r"\((?P<grade>Fatal|Non-Fatal)\)(?:, type=(?P<layer>[\w ]+))?",
    ),
    _ANY.note(
        "hung_task",
        "task_blocked",
        "Linux",
        (" blocked for more than ",),
        r"(?:^|INFO: )task (?P<name>\S+):(?P<pid>\d+) blocked for more than (?P<s>\d+) seconds",
    ),
    _ANY.event(
        "gpu_lost",
        "gpu_lost",
        "NVIDIA driver",
        ("NVRM: GPU ", "NVRM: The NVIDIA GPU ", "NVRM: fallen off the bus"),
        r"NVRM: (?:.*has )?fallen off the bus",
    ),
    _ANY.note(
        "gpu_named",
        "gpu_address",
        "NVIDIA driver",
        ("NVRM: The NVIDIA GPU ",),
        r"NVRM: The NVIDIA GPU (?P<pci>[0-9a-fA-F:.]+)$",
    ),
    _ANY.event(
        "driver_error",
        "driver_error",
        "NVIDIA driver",
        ("RmInitAdapter failed", "rm_init_adapter failed", "NVRM: API mismatch", "NVIDIA probe routine failed"),
        r"NVRM: (?P<what>API mismatch: .*|.*(?:RmInitAdapter|rm_init_adapter|NVIDIA probe routine) failed.*)$",
    ),
    _ANY.event(
        "oom_killer",
        "out_of_memory_killed",
        "Linux",
        ("Out of memory: Killed process", "Memory cgroup out of memory: Kill"),
        r"(?P<scope>Out of memory|Memory cgroup out of memory): Kill(?:ed)? process (?P<pid>\d+) \((?P<name>[^)]*)\)"
        r"(?=.*anon-rss:(?P<rss>\d+)kB)?(?=.*shmem-rss:(?P<shmem>\d+)kB)?",
    ),
    # As a label of kube-state-metrics it holds where the value is 1.
    _ANY.event(
        "oom_killed",
        "out_of_memory_killed",
        "Kubernetes",
        ("OOMKilled",),
        r"\bOOMKilled\b(?!\"?: *false)(?!(?<==\"OOMKilled)\"[^}]*\}(?! 1(?:\.0)?(?:$| \d)))",
    ),
    _ANY.event(
        "ray_kill",
        "ray_memory_kill",
        "Ray",
        ("Ray killed this worker", "Task was killed due to the node running low", "killed due to memory pressure"),
        r"^(?=.*?memory used=(?P<own>[\d.]+)GB)?(?=.*?was (?P<used>[\d.]+)GB / (?P<total>[\d.]+)GB)?"
        r"(?=.*?memory usage threshold of (?P<limit>[\d.]+))?"
        r".*?(?:Ray killed this worker|Task was killed due to the node running low on memory"
        r"|(?<!\d)[1-9]\d* Workers? \(tasks / actors\) killed due to memory pressure)",
    ),
    # Ray lists what it may have been in the same sentence, whatever it was.
    _ANY.event(
        "ray_worker_lost",
        "worker_dead",
        "Ray 2.0-",
        ("Worker exit type: SYSTEM_ERROR", "by an unexpected system error"),
        r"^(?=.*?Worker PID: (?P<pid>\d+))?(?=.*?exits? with an exit code (?P<code>\d+))?"
        r"(?=.*?process receives a (?P<signal>SIG[A-Z]+))?.*?"
        r"(?P<ray>Worker exit type: SYSTEM_ERROR|died or was killed while executing a task by an unexpected system error)",
    ),
    _ANY.event(
        "shm_small",
        "shm_too_small",
        "Ray",
        ("The object store is using /tmp",),
        r"The object store is using /tmp instead of /dev/shm because /dev/shm has only (?P<bytes>\d+) bytes available",
    ),
    _ANY.event(
        "shm_no_space",
        "shm_too_small",
        "Python, torch",
        ("out of shared memory", "No space left on device: '/dev/shm", "unable to write to file </torch_"),
        r"workers are out of shared memory|No space left on device: '(?P<path>/dev/shm/[^']*)'"
        r"|unable to write to file </torch_\S+>: No space left on device",
    ),
    _ANY.note(
        "sigterm",
        "shutdown",
        "SGLang 0.3-, uvicorn",
        ("SIGTERM received", "Received SIGTERM"),
        r"\bSIGTERM received\b|\bReceived SIGTERM\b",
    ),
    _ANY.event(
        "shell_killed",
        "process_killed",
        "shell",
        ("Killed ",),
        r"^(?:\S+: line \d+: +)?(?:\[\d+\]\S* +)?(?P<pid>\d+) Killed +(?P<cmd>\S.*)$",
    ),
)

PATTERNS: tuple[Pattern, ...] = (*_GPU, *_NCCL, *_START, *_MACHINE)
"""All lines of the parts below the engines, most specific first."""
