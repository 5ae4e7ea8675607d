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
prefix_cache_reset       | the prefix cache was emptied
sleep                    | the engine went to sleep
wake                     | the engine woke up
"""

EVENTS: dict[str, str] = {
    name.strip(): meaning.strip() for name, _, meaning in (row.partition("|") for row in _ROWS.strip().splitlines())
}
"""Meaning by event name."""
