"""What real servers print when a start fails, in the words of the newest versions."""

from __future__ import annotations

from tests.unit.diagnosis.incidents import Verdict

ARGS = (
    "[2026-11-30 07:55:54] server_args={'model_path': 'small', 'context_length': None, 'dtype': 'auto', "
    "'mem_fraction_static': 0.1, 'max_total_tokens': 16, 'json_model_override_args': '{}', 'page_size': 1}\n"
)
POOL = (
    "[2026-11-30 07:56:01] max_total_num_tokens=16, chunked_prefill_size=4096, max_prefill_tokens=16384, "
    "max_running_requests=16, context_len=32768, available_gpu_mem=19.40 GB\n"
)
FULL = (
    "[2026-11-30 07:54:25] Scheduler hit an exception: Traceback (most recent call last):\n"
    "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static={fraction}. "
    "Raise --mem-fraction-static above 0.004 (minimum viable = 1 - available/pre = 0.0039).\n"
)
TOO_LONG = (
    "(EngineCore pid=53) ERROR 11-30 07:57:00 [core.py:1510] ValueError: To serve at least one request with the "
    "model's max seq len (32768), (0.06 GiB KV cache is needed, which is larger than the available KV cache memory "
    "(0.01 GiB). Based on the available memory, the estimated maximum model length is 4992.\n"
    "(EngineCore pid=53) ERROR 11-30 07:57:02 [multiproc_executor.py:315] Worker proc VllmWorker-0 died "
    "unexpectedly (exit code: 0), shutting down executor.\n"
)


def test_the_arguments_that_newer_sglang_prints_as_a_dict_are_read(tmp_path):
    verdict = Verdict(tmp_path, {"sglang.log": ARGS + POOL})
    assert verdict.ids == ["kv_pool_undersized"]
    (cap,) = verdict["kv_pool_undersized"].advice
    assert (cap.flag, cap.current, cap.proposed) == ("--max-total-tokens", "16", "(none)")


def test_a_fraction_in_any_notation_that_leaves_nothing_for_the_pool_is_told(tmp_path):
    for number, fraction in enumerate(("1e-05", "0.002", "2.5e-03")):
        verdict = Verdict(tmp_path, {f"sglang-{number}.log": ARGS + FULL.format(fraction=fraction)})
        assert verdict.ids[0] == "no_kv_blocks"
        assert verdict["no_kv_blocks"].advice[0].flag == "--mem-fraction-static"


def test_a_worker_that_ends_with_0_after_the_error_of_its_engine_is_no_second_finding(tmp_path):
    assert Verdict(tmp_path, {"vllm.log": TOO_LONG}).ids == ["max_model_len_exceeds_kv"]


def test_a_process_that_was_asked_to_end_did_not_crash(tmp_path):
    line = (
        "[2026-11-30 07:55:46] Subprocess scheduler_0 (pid=44) crashed with exit code -{code}. Triggering SIGQUIT "
        "for cleanup...\n"
    )
    asked = Verdict(tmp_path, {"asked.log": ARGS + line.format(code=15)})
    assert "asked to end" in asked.said("worker_died")
    assert "Xid" not in asked.said("worker_died")
    crashed = Verdict(tmp_path, {"crashed.log": ARGS + line.format(code=11)})
    assert "SIGSEGV" in crashed.said("worker_died")
    assert "native code" in crashed.said("worker_died")


def test_a_start_that_somebody_ends_is_no_death(tmp_path):
    log = (
        "(APIServer pid=8) INFO 11-30 08:50:30 [api_utils.py:286] vLLM API server version 0.32.0\n"
        "(EngineCore pid=28) INFO 11-30 08:50:43 [core.py:1454] [shutdown] EngineCore: trigger received "
        "signal=SIGTERM\n"
        "(EngineCore pid=28) ERROR 11-30 08:50:47 [multiproc_executor.py:315] Worker proc VllmWorker-0 died "
        "unexpectedly (exit code: 0), shutting down executor.\n"
        "(EngineCore pid=28) ERROR 11-30 08:50:47 [core.py:1510] EngineCore failed to start.\n"
        '    raise RuntimeError("cancelled")\n'
        "RuntimeError: cancelled\n"
    )
    assert Verdict(tmp_path, {"vllm.log": log}).firm == []
    dead = log.replace("signal=SIGTERM", "nothing")
    assert Verdict(tmp_path, {"vllm.log": dead}).firm == ["worker_died"]
