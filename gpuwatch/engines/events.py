"""The names of what a log can say happened. They are the values of label `event` of ``gpuwatch_log_events_total``.

Each known event is exported at 0 from the first tick. Names are stable; new ones may be added.
"""

from __future__ import annotations

_ROWS = """
torch_oom                | the torch allocator could not get memory on a GPU
cuda_oom_other           | CUDA, cuBLAS or NCCL ran out of GPU memory outside torch's allocator
load_oom                 | the weights did not fit
warmup_oom               | GPU memory ran out while the sampler or pooler was warmed up
graph_capture_failed     | capturing CUDA graphs failed
no_kv_blocks             | no memory was left for the KV cache at start
max_model_len_exceeds_kv | one request of full length does not fit into the KV cache
free_memory_below_budget | less memory was free at start than the engine was told to use
memory_profile_drift     | memory of other processes changed while the engine measured its own
kv_host_memory_short     | the host has less memory than the KV cache on the CPU wants
sglang_no_memory         | nothing is left for the KV pool under --mem-fraction-static
memory_unbalanced        | GPUs of one group have unequal free memory at start
engine_dead              | the engine ended while it ran
engine_start_failed      | the engine did not start
worker_dead              | a worker process died
worker_stopped           | a worker ended together with its engine: a consequence, not a crash
rpc_timeout              | a call to the workers timed out
shm_broadcast_stall      | a worker did not take part for a minute: a hang, or a long compilation
sglang_watchdog          | the scheduler made no step for the watchdog's time
process_killed           | a shell reported that the server was killed
nccl_timeout             | a collective operation did not end in time
nccl_error               | NCCL reported an error
nccl_warning             | NCCL printed a warning
nccl_shm_failed          | NCCL could not create its segment in /dev/shm
rendezvous_timeout       | a rank could not reach the others when the group was formed
cuda_error               | a CUDA kernel or call failed
ecc_error                | CUDA reported an uncorrectable memory error
gpu_lost                 | the driver lost the GPU
xid                      | the driver reported an Xid
driver_error             | the NVIDIA kernel module could not start a GPU, or refused a program of another version
preempted_v0             | vLLM V0 preempted a request for lack of KV cache
swap_abort_v0            | vLLM V0 had no host swap space left and aborted
request_never_fits       | a request was failed because the KV cache can never hold it
prompt_too_long          | a prompt exceeds the limit
retraction               | SGLang took requests out of the batch because the KV pool was full
retraction_abort         | SGLang aborted a request for lack of KV pool
sglang_oom               | SGLang's pool could not serve a batch
sglang_leak              | SGLang's self-check found pool entries missing
max_requests_reduced     | SGLang admits fewer requests than asked for, the pool being too small
port_in_use              | the port is taken
unknown_flag             | the engine does not know a launch flag
flag_value_invalid       | a launch flag has a value that is not allowed, or is missing
model_not_found          | the model is neither a folder nor a name on the hub
model_access_denied      | the hub refuses the model
hub_unreachable          | the hub cannot be reached
dtype_unsupported        | the GPU cannot compute in the asked type
driver_too_old           | the driver is older than the CUDA runtime needs
gpu_unsupported          | the build has no code for this GPU
no_gpu                   | the engine found no GPU
rope_beyond_native       | the context is longer than the model was made for
rope_key_unknown         | a key of the rope scaling was ignored
kv_scale_one             | a quantised KV cache runs with scaling factors of 1.0
q_scale_uncalibrated     | fp8 attention runs with uncalibrated scales
mm_profile_short         | multimodal inputs can be larger than what was profiled
uva_unavailable          | unified addressing is missing, as on WSL
shm_too_small            | /dev/shm is too small for the program
ray_memory_kill          | Ray killed a worker because the host's memory was nearly full
out_of_memory_killed     | the kernel or Kubernetes killed a process for lack of memory
pod_evicted              | Kubernetes evicted the pod
process_crashed          | a process ended by a signal of its own making, such as a segmentation fault
driver_unreachable       | the driver does not answer, or is not the one that its library belongs to
prefix_cache_reset       | the prefix cache was emptied
sleep                    | the engine went to sleep
wake                     | the engine woke up
"""

# What only says something beside other lines of the same incident: steps in tracebacks, output of the host's tools.
_NOTE_ROWS = """
traceback_step       | a traceback passes through a step of the engine that has a name
exception            | an exception at the end of a traceback
start_refused        | a model, an adapter or its files are refused, and why
device_assert        | a kernel on the GPU stopped at a condition of its own that does not hold
request_failed       | a request failed, and the server goes on
soft_watchdog        | a watchdog of SGLang that only reports had no sign of life for its time
stack_dump           | the stacks of a process that stands still, in the lines below
build_failed         | a compiler, a library or a header is missing with which kernels are built at start
allreduce_buffers    | a traceback passes through the sharing of custom all-reduce's buffers
kv_transfer_failed   | KV cache did not come from the prefill to the decode instance
files_exhausted      | a process has no file descriptor left
placement_waits      | the start waits for GPUs in the Ray cluster
health_unanswered    | SGLang's server got no answer to a health check
rank_missed          | a barrier of torch says which rank did not come to it
exit_code            | the exit code of the process in the line above
gpu_address          | the address of the GPU that the kernel's next lines are about
recovery_done        | the driver no longer asks for a recovery of a GPU
nvswitch_error       | the driver reported an error of an NVSwitch (SXid)
pcie_error           | the kernel reported an error of a GPU's PCIe link that was not corrected
task_blocked         | a process has waited in the kernel for minutes, and cannot be interrupted
nccl_interface       | the network interface over which NCCL meets
transport_error      | UCX says why a transfer between processes or nodes failed
shards_loaded        | all parts of a checkpoint were read
graph_capture_begin  | the engine begins to capture CUDA graphs
shutdown             | the server was asked to end: Ctrl-C, a signal, the supervisor
stop_timed_out       | a unit of systemd did not end in the time that it has for that
mm_profile_begin     | the profile run begins with inputs of the largest size for a multimodal model
pool_available       | what one of SGLang's pools has left when an allocation fails
pool_wanted          | the tokens of an allocation that fails in SGLang
crash_dump           | figures of the step in which the engine died
process_columns      | the columns of a listing of processes
process_row          | an engine's process in a listing of processes
process_busy         | a row of top: a process and its share of a core
cpu_idle             | the idle share of the host's cores, from top
omp_threads          | the number of OpenMP threads that was set
cpu_limit            | the cores that a container may use
memory_limit         | the memory that a container may use
cgroup_memory        | what fills a memory cgroup in which the kernel killed
pod_usage            | what a pod or container uses
host_memory          | a row of the host's memory, from /proc/meminfo or free
shm_size             | the size of /dev/shm
shm_default          | nothing is mounted at /dev/shm, so that the default of 64 MB holds
gpu_processes_listed | the heading of the list of processes in nvidia-smi
gpu_topology         | a row of nvidia-smi topo
nvml_columns         | the columns of an nvidia-smi query
nvml_unavailable     | nvidia-smi has no value, and says so
nvml_unified         | the GPU has no memory of its own
rows_remapped        | rows of a GPU's memory that were replaced
pid_not_found        | a program did not find its own process among those that NVML lists
config_key           | one key of a model's config.json
metric_name          | a metric whose name or labels tell what reads the page
metric_said          | a metric as somebody wrote it down, with a comparison
metrics_process      | a metric of the Python process
container_exit       | a container or command ended with a code
probe_kill           | Kubernetes ended a container because of a probe
probe_failed         | a probe of Kubernetes failed, and why
probe_setting        | how often and how long a probe tries
container_time       | when a container started or ended
unschedulable        | a pod was not placed, for lack of GPUs or memory
not_admitted         | a node did not take a pod, for lack of devices
container_not_created | the image or a volume of a container was not there
unit_timeout         | a unit of systemd took too long to start or to stop
oomd_kill            | systemd-oomd ended a unit for memory pressure
container_killed     | somebody wrote that a container was killed
oom_constraint       | whose limit the kernel enforced when it killed
wsl_kernel           | the kernel is that of WSL
"""


def _table(rows: str) -> dict[str, str]:
    pairs = (row.partition("|") for row in rows.strip().splitlines())
    return {name.strip(): meaning.strip() for name, _, meaning in pairs}


EVENTS: dict[str, str] = _table(_ROWS)
"""Meaning by event name."""
NOTES: dict[str, str] = _table(_NOTE_ROWS)
"""Meaning of lines that are not counted, by name: they matter beside others."""
