"""What the tools of a host print: ps, top, free, df, nvidia-smi, kubectl, docker; and metrics pages read line by line.

These lines stand in pastes beside the log of an engine. Most say something beside others only (notes); those that tell
of a kill, an eviction or a dead driver are events.
"""

from __future__ import annotations

from gpuwatch.engines.log_pattern import Maker, Pattern

_ANY = Maker("")

_SHM = "/dev/shm"  # noqa: S108  # read in logs, not written to
_SIZE = r"[\d.,]+ ?[KMGT]?i?B?"

_UNIT = r"(?P<name>[\w@.:\\-]+\.(?:service|scope))"

_KILLS = (
    _ANY.event(
        "evicted",
        "pod_evicted",
        "Kubernetes",
        (
            *("Evicted", "The node was low on resource", "Evicting pod", "ephemeral local storage usage exceeds"),
            *("Usage of EmptyDir volume", "exceeded its local ephemeral storage limit"),
        ),
        r"(?:\bReason: +|\bStatus: +|\breason\"?: *\"?|\s)Evicted\b|The node was low on resource: (?P<resource>[\w-]+)"
        r"|[Pp]od ephemeral local storage usage exceeds|\bEvicting pod\b"
        r"|Usage of EmptyDir volume .* exceeds the limit|exceeded its local ephemeral storage limit",
    ),
    _ANY.event(
        "segfault",
        "process_crashed",
        "Python, Linux",
        ("Segmentation fault", "Segfault encountered", "segfault at", "SIGSEGV", "SIGABRT", "SIGBUS", "Bus error"),
        r"Caught signal \d+ \((?P<what4>Segmentation fault|Bus error)|Fatal Python error: (?P<what>Segmentation fault|Bus error|Aborted)|!+ (?P<what2>Segfault) encountered"
        r"|\b(?P<signal>SIGSEGV|SIGABRT|SIGBUS)\b(?! or (?:an)?other\b)|(?P<name>[\w.:-]+)\[(?P<pid>\d+)\]: segfault at"
        r"|^(?P<what3>Segmentation fault|Bus error)\b",
    ),
    _ANY.event(
        "driver_unreachable",
        "driver_unreachable",
        "nvidia-smi",
        (
            "Driver/library version mismatch",
            "NVIDIA-SMI has failed because",
            "Driver Not Loaded",
            "NVML: Unknown Error",
        ),
        r"Failed to initialize NVML: (?P<why>[\w/ ]+)|(?P<why2>Driver/library version mismatch)"
        r"|NVIDIA-SMI has failed because it (?P<why3>couldn't communicate with the NVIDIA driver)",
    ),
    _ANY.event(
        "smi_gpu_lost",
        "gpu_lost",
        "nvidia-smi",
        ("Unable to determine the device handle for", "GPU is lost", "GPU requires reset"),
        r"Unable to determine the device handle for (?:GPU ?)?(?P<pci>[\w:.]+)(?:: (?P<why>.*))?|GPU is lost"
        r"|GPU requires reset",
    ),
    _ANY.event(
        "unit_oom",
        "out_of_memory_killed",
        "systemd 243-",
        ("killed by the OOM killer", "Failed with result 'oom-kill'"),
        rf"{_UNIT}: (?:A process of this unit has been killed by the OOM killer|Failed with result 'oom-kill')",
    ),
    _ANY.event(
        "unit_killed",
        "process_killed",
        "systemd",
        ("Main process exited, code=killed",),
        rf"{_UNIT}: Main process exited, code=killed, status=9/KILL",
    ),
    _ANY.note(
        "unit_stopping",
        "shutdown",
        "systemd",
        ("Stopping ",),
        rf"^Stopping {_UNIT}|^Stopping (?=.*(?:vLLM|SGLang))",
    ),
    _ANY.note(
        "unit_stop_late",
        "stop_timed_out",
        "systemd",
        ("State 'stop-sig",),
        rf"{_UNIT}: State 'stop-sig\w+' timed out",
    ),
    _ANY.event(
        "unit_crashed",
        "process_crashed",
        "systemd",
        ("Main process exited, code=",),
        rf"{_UNIT}: Main process exited, code=(?:killed|dumped), status=\d+/(?P<sig>SEGV|ABRT|BUS|ILL|FPE)",
    ),
    _ANY.note(
        "probe_kill",
        "probe_kill",
        "Kubernetes",
        ("failed liveness probe", "failed startup probe"),
        r"Container (?P<name>\S+) failed (?P<probe>liveness|startup) probe, will be (?:restarted|killed)",
    ),
    _ANY.note(
        "probe_failed",
        "probe_failed",
        "Kubernetes",
        ("Liveness probe failed", "Startup probe failed"),
        r"(?P<probe>Liveness|Startup) probe failed: (?P<why>.*)$",
    ),
    _ANY.note(
        "probe_setting",
        "probe_setting",
        "kubectl describe",
        ("Liveness:  ", "Startup:  "),
        r"(?P<probe>Liveness|Startup): +\S.* delay=(?P<delay>\d+)s timeout=(?P<timeout>\d+)s period=(?P<period>\d+)s "
        r"#success=\d+ #failure=(?P<failure>\d+)",
    ),
    _ANY.note(
        "container_time",
        "container_time",
        "kubectl describe",
        ("Started:  ", "Finished:  "),
        r"^\s*(?P<what>Started|Finished): +(?P<date>\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d [+-]\d{4})$",
    ),
    _ANY.note(
        "unschedulable",
        "unschedulable",
        "Kubernetes",
        ("Insufficient nvidia.com/gpu",),
        r"(?P<free>\d+)/(?P<nodes>\d+) nodes are available: .*?(?P<short>\d+) Insufficient nvidia\.com/gpu",
    ),
    _ANY.note(
        "oom_constraint",
        "oom_constraint",
        "Linux 5.0-",
        ("oom-kill:constraint=",),
        r"oom-kill:constraint=(?P<constraint>\w+)(?=.*task_memcg=(?P<group>[^,]+))?(?=.*task=(?P<task>[^,]+))?"
        r"(?=.*pid=(?P<pid>\d+))?",
    ),
    _ANY.note(
        "container_exit",
        "container_exit",
        "docker, kubectl, shells",
        ("Exited (", "Exit Code:", "exit code ", "exited with code", '"ExitCode":'),
        r"(?:Exited \(|Exit Code: +|exited with (?:exit )?code |\bexit code |\"ExitCode\": *)(?P<code>-?\d+)",
    ),
    _ANY.note(
        "container_killed",
        "container_killed",
        "as noted down",
        ("container killed", "container was killed", "pod killed", "pod was killed"),
        r"\b(?:container|pod) (?:was )?killed\b(?P<why>.*)$",
    ),
)

_PROCESSES = (
    _ANY.note(
        "ps_command",
        "process_columns",
        "ps",
        ("pid,ppid", "pid,rss", "pid,args", "pid,etime", "pid,comm", "rss,"),
        r"\bps\b.*? -\w*o (?P<columns>[a-z%,_]+(?:,[a-z%_]+)+)(?=.*(?P<quiet>--no-headers|grep))?",
    ),
    _ANY.note(
        "ps_header",
        "process_columns",
        "ps",
        ("PPID COMMAND", "PPID CMD", "RSS COMMAND", "RSS CMD", "PID %CPU", " PID   USER", "    PID USER"),
        r"^\s*(?P<header>(?:[A-Z%+]+ +){2,}(?:COMMAND|CMD|ARGS)\S*)\s*$",
    ),
    _ANY.note(
        "process_row",
        "process_row",
        "vLLM 0.8-, SGLang 0.3-",
        (" VLLM::", " sglang::", "ray::RayWorker"),
        r"^(?P<row>\s*(?:[\w-]+ +)?\d+ [^|$#]*?\s?(?P<name>(?:VLLM|sglang)::[\w.-]+|ray::RayWorker\w*)\b.*)$",
    ),
    _ANY.note(
        "top_row",
        "process_busy",
        "top",
        (" 20   0 ",),
        r"^\s*(?P<pid>\d+) \S+ +20 +0 +\S+ +(?P<rss>\S+) +\S+ +(?P<state>[RSDZ]) +(?P<cpu>[\d.]+) +[\d.]+ +"
        r"[\d:.h]+ +(?P<name>\S.*)$",
    ),
    _ANY.note("top_cpu", "cpu_idle", "top", ("%Cpu(s):", "Cpu(s):"), r"Cpu\(s\):.*?(?P<idle>[\d.]+) ?%?id\b"),
    _ANY.note("omp", "omp_threads", "environment", ("OMP_NUM_THREADS",), r"\bOMP_NUM_THREADS[=: \"']+(?P<n>\d+)"),
)

_MEMORY = (
    _ANY.note(
        "meminfo",
        "host_memory",
        "/proc/meminfo",
        ("MemFree", "MemAvailable", "MemTotal"),
        r"(?=.*?MemTotal:?\s+(?P<total>[\d.]+ ?[kKMG]i?B))?(?=.*?MemFree:?\s+(?P<free>[\d.]+ ?[kKMG]i?B))?"
        r"(?=.*?MemAvailable:?\s+(?P<available>[\d.]+ ?[kKMG]i?B))?^.*Mem(?:Total|Free|Available):?\s+\d",
    ),
    _ANY.note(
        "free_row",
        "host_memory",
        "free",
        ("Mem:  ",),
        r"^Mem: +(?P<total>[\d.,]+[KMGT]i?) +(?P<used>[\d.,]+[KMGT]i?) +(?P<free>[\d.,]+[KMGT]i?)(?: +\S+ +\S+ +"
        r"(?P<available>[\d.,]+[KMGT]i?))?",
    ),
    _ANY.note(
        "shm_default",
        "shm_default",
        "as noted down",
        (_SHM,),
        r"(?:no|without an?(?: explicit)?) (?:volume|mount)\w*(?: is)?(?: mounted)? (?:at|for) /dev/shm|"
        r"/dev/shm[^.;]*\bdefaults?\b[^.;]*\b64 ?Mi?B?\b",
    ),
    _ANY.note(
        "shm_df",
        "shm_size",
        "df",
        (_SHM,),
        rf"^\S+ +(?P<size>{_SIZE}) +(?P<used>{_SIZE}) +(?P<avail>{_SIZE}) +(?P<share>\d+)% +/dev/shm",
    ),
    _ANY.note(
        "pod_row",
        "pod_usage",
        "kubectl top",
        ("m   ",),
        r"^(?P<pod>[a-z0-9][\w.-]+)(?: +(?P<container>[a-z0-9][\w.-]*))? +(?P<cpu>\d+m?) +(?P<memory>\d+[MG]i)$",
    ),
    _ANY.note(
        "limits",
        "cpu_limit",
        "Kubernetes",
        ('"limits":', "cpu limit", "CPU limit", "cpu: limit"),
        r"\"limits\": *\{(?=[^}]*\"cpu\": *\"?(?P<cpu>\d+m?)\"?)(?=[^}]*\"memory\": *\"(?P<memory>\w+)\")?"
        r"|[Cc][Pp][Uu] limit(?: is| of|:)? (?P<cpu2>\d+m?)\b",
    ),
    _ANY.note(
        "memory_limit",
        "memory_limit",
        "as noted down",
        ("memory limit",),
        r"memory limit(?: (?:is|of|set|about|to)\b)*[^\d]{0,12}(?P<size>[\d.]+ ?[MG]i?B?)?",
    ),
    _ANY.note(
        "cgroup_limit",
        "memory_limit",
        "Linux 4.19-",
        ("memory: usage ",),
        r"^memory: usage \d+kB, limit (?P<kb>\d{1,12})kB",
    ),
    _ANY.note(
        "cgroup_memory",
        "cgroup_memory",
        "Linux 4.19-, cgroup v2",
        ("shmem ", "anon "),
        r"^(?P<what>shmem|anon) (?P<bytes>\d{1,15})$",
    ),
    _ANY.note(
        "described_limit",
        "memory_limit",
        "kubectl describe",
        ("memory:  ",),
        r"^\s*memory: {2,}(?P<size>\d+(?:\.\d+)?[KMGT]i?)$",
    ),
    _ANY.fact(
        "lmcache_size",
        "LMCache 0.2-",
        ("max_local_cpu_size",),
        r"max_local_cpu_size'?\"?[:=] ?'?\"?(?P<gib>[\d.]+)",
        "kv.offload_per_rank_bytes=gib:gib",
    ),
)

_GPUS = (
    _ANY.note("smi_processes", "gpu_processes_listed", "nvidia-smi", ("Processes:  ",), r"^\| +Processes: +\|$"),
    _ANY.note(
        "topology",
        "gpu_topology",
        "nvidia-smi topo",
        tuple(f"GPU{index}  " for index in range(10)),
        r"^\s*(?P<gpu>GPU\d+)\s+(?P<links>(?:(?:X|SYS|NODE|PHB|PXB|PIX|NV\d+)\s+){2,})",
    ),
    _ANY.note(
        "smi_columns",
        "nvml_columns",
        "nvidia-smi --format=csv",
        ("memory.used", "memory.total", "utilization.gpu"),
        r"^(?P<columns>(?:[a-z_.]+(?: \[[\w%]+\])?, ?)+[a-z_.]+(?: \[[\w%]+\])?)$",
    ),
    _ANY.note(
        "smi_denied",
        "nvml_unavailable",
        "nvidia-smi, pynvml",
        ("[Insufficient Permissions]", "NVMLError_NoPermission"),
        r"(?P<row>.*\[Insufficient Permissions\].*)|NVMLError_NoPermission",
    ),
    _ANY.note(
        "smi_absent",
        "nvml_unavailable",
        "nvidia-smi, pynvml",
        ("[N/A]", "[Not Supported]", "NVMLError_NotSupported"),
        r"^(?P<row>.*(?:\[N/A\]|\[Not Supported\]).*)$|NVMLError_NotSupported",
    ),
    _ANY.note(
        "unified",
        "nvml_unified",
        "gpud, nvidia-smi",
        ("NVML memory APIs not supported", "NVIDIA-GB10", "NVIDIA GB10", "unified memory device"),
        r"NVML memory APIs not supported for unified memory device|unified memory device|NVIDIA[- ]GB10",
    ),
    _ANY.note(
        "remapped",
        "rows_remapped",
        "nvidia-smi -q",
        ("Remapped Rows", "emapping Failure Occurred", "emapping failure occurred", "remapped_rows"),
        r"Remapped Rows.*?\bfrom (?P<before>\d+) to (?P<now>\d+)|[Rr]emapping [Ff]ailure [Oo]ccurred *: *(?P<failed>\w+)"
        r"|remapped_rows\.(?P<kind>uncorrectable|pending|failure)",
    ),
    _ANY.note(
        "pid_unmatched",
        "pid_not_found",
        "SGLang",
        ("gpu_mem_accounting=",),
        r"gpu_mem_accounting=\w*fallback\b.*process_mem=(?P<gib>0\.0+)GiB",
    ),
    _ANY.note(
        "wsl_kernel", "wsl_kernel", "Linux", ("microsoft-standard", "WSL2"), r"microsoft-standard-WSL2|\bWSL2\b.*kernel"
    ),
)

_PAGES = (
    _ANY.note(
        "config_key",
        "config_key",
        "config.json",
        ('"max_position_embeddings"', '"model_max_length"', '"num_key_value_heads"', '"rope_scaling"', '"rope_type"'),
        r"^\s*[{]?\s*\"(?P<key>max_position_embeddings|model_max_length|num_key_value_heads|rope_scaling|rope_type)\":"
        r" *(?P<value>[^,]+?),?\s*$",
    ),
    _ANY.note(
        "metric_help",
        "metric_name",
        "vLLM 0.9-0.11",
        ("DEPRECATED: Use ",),
        r"^# HELP (?P<name>\w+:\w+) .*DEPRECATED: Use (?P<now>\w+:\w+)",
    ),
    _ANY.note(
        "metric_pid",
        "metric_name",
        "vLLM 0.9.2-0.10",
        ('pid="',),
        r"^(?P<name>vllm:\w+)\{(?=[^}]*\bpid=\"(?P<pid>\d+)\")(?=[^}]*\bengine=\"(?P<engine>\d+)\")?[^}]*\} (?P<value>\S+)",
    ),
    _ANY.note(
        "metric_prefix",
        "metric_name",
        "vLLM 0.7.3-",
        ("prefix_cache_hits", "prefix_cache_queries"),
        r"^(?P<name>vllm:(?:gpu_)?prefix_cache_(?:hits|queries)_total)(?:\{[^}]*\})?\s+(?P<value>[\d.e+]+)$",
    ),
    _ANY.note(
        "metric_said",
        "metric_said",
        "as noted down",
        ("vllm:", "sglang:"),
        r"^(?P<name>(?:vllm|sglang):\w+)(?:\{[^}]*\})?\s+(?P<op>[<>]=?)\s*(?P<value>[\d.]+)$",
    ),
    _ANY.note(
        "metric_python",
        "metrics_process",
        "prometheus_client",
        ("process_virtual_memory_bytes", "python_info{"),
        r"^(?P<name>process_virtual_memory_bytes|python_info)(?:\{[^}]*\})? [\d.e+]+$",
    ),
)

PATTERNS: tuple[Pattern, ...] = (*_KILLS, *_PROCESSES, *_MEMORY, *_GPUS, *_PAGES)
"""Lines of the machine's tools, most specific first."""
