"""What an application, a user or a model says about a log is no event of the engine; what an engine says, is."""

from __future__ import annotations

import pytest

from gpuwatch.engines.log_prefixes import strip_prefix
from gpuwatch.engines.log_text import redact
from gpuwatch.engines.logs import classify

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 79.11 GiB"
FAULT = "RuntimeError: CUDA error: an illegal memory access was encountered"
XID = "NVRM: Xid (PCI:0000:5e:00): 79, GPU has fallen off the bus"


@pytest.mark.parametrize(
    "line",
    [
        f"2026-03-02 08:00:00,123 INFO helpdesk: answer=Your log shows {OOM}",
        f"2026-03-02 08:00:00,123 INFO helpdesk: the trace that you sent, your last run printed {OOM}",
        f'2026-03-02 08:00:00,123 INFO helpdesk: retrieved chunk: "{FAULT}" score=0.8',
        f"helpdesk | reply='{FAULT}'",
        f"They saw {FAULT} on Monday",
        f"{XID} - is how such a line looks, said the model.",
        f"{XID}, wrote a customer",
        f"{OOM} (this line reads like a full card)",
    ],
)
def test_what_people_and_models_say_of_a_line_is_no_event(line):
    assert classify(strip_prefix(line).message) is None


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (f"2026-03-02 08:00:00,123 ERROR supervisor: {OOM}", "torch_oom"),
        (f"ERROR 03-02 08:00:00 [core.py:700] {OOM}", "torch_oom"),
        (f"Worker failed with error '{FAULT}', please check the stack trace above", "cuda_error"),
        (f"If you see this, lower the fraction: {OOM}", "torch_oom"),
        (f"{XID}.", "xid"),
        (f"kernel: {XID}, pid=913, name=python3", "xid"),
    ],
)
def test_what_an_engine_or_the_driver_says_is_one(line, event):
    found = classify(strip_prefix(line).message)
    assert found is not None
    assert found.pattern.event in (event, "kernel_fault" if event == "cuda_error" else event)


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("INFO helpdesk: answer=The invoice is due", "INFO helpdesk: answer=<redacted>"),
        ("retrieved chunk: 'Dear Sir' score=0.8", "retrieved chunk: <redacted>"),
        ("response status: 200, chunk 3 of 4", "response status: 200, chunk 3 of 4"),
    ],
)
def test_an_answer_is_cut_out_under_its_other_names(line, want):
    assert redact(line) == want
