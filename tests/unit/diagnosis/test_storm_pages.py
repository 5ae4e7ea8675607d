"""The captured storms served as real `/metrics` pages to the real engine source, then rules and diagnosis."""

from __future__ import annotations

import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from gpuwatch.clock import ManualClock
from gpuwatch.sources.engine.source import EngineSource, EngineTarget
from tests.unit.diagnosis.storms import START, USABLE_BLOCKS, VLLM_0_10_2, VLLM_0_31_0, Page
from tests.unit.diagnosis.watch import Watch, flags

PAGES = Path(__file__).resolve().parents[2] / "fixtures" / "pages"
BEGIN = 5


def written(template: str, page: Page) -> str:
    """A captured page with the figures of another moment."""
    figures = {
        r"num_requests_running\{[^}]*\}": page.running,
        r"num_requests_waiting\{[^}]*\}": page.waiting,
        r'num_requests_waiting_by_reason\{[^}]*reason="capacity"\}': page.waiting,
        r"(?:kv|gpu)_cache_usage_perc\{[^}]*\}": page.used_blocks / USABLE_BLOCKS,
        r"num_preemptions_total\{[^}]*\}": page.preemptions,
        r'request_success_total\{[^}]*finished_reason="length"[^}]*\}': page.finished,
        r"prompt_tokens_total\{[^}]*\}": page.prompt_tokens,
        r"generation_tokens_total\{[^}]*\}": page.generation_tokens,
        r"time_to_first_token_seconds_count\{[^}]*\}": page.first_tokens,
    }
    for pattern, value in figures.items():
        template, count = re.subn(rf"(?m)^(vllm:{pattern}) \S+$", rf"\1 {float(value)}", template)
        assert count or "by_reason" in pattern, pattern
    return template


@pytest.fixture
def served():
    """A page on loopback; set `served.text` to change it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = self.server.text.encode() if self.path == "/metrics" else b""
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("version", "pages", "first_eviction"), [("0.10.2", VLLM_0_10_2, 6), ("0.31.0", VLLM_0_31_0, 12)]
)
def test_a_storm_on_real_pages_is_named_within_20_seconds_of_its_first_eviction(served, version, pages, first_eviction):
    template = (PAGES / f"vllm-{version}-storm.txt").read_text(encoding="utf-8")
    clock = ManualClock(START)
    source = EngineSource(EngineTarget(f"http://127.0.0.1:{served.server_port}"), "h", clock)
    watch = Watch()
    try:
        for second in range(BEGIN + 36):
            served.text = written(template, [page for page in pages if page.at <= max(0, second - BEGIN)][-1])
            batch = source.poll()
            assert batch.up, batch.detail
            watch.take(batch)
            clock.advance(1)
    finally:
        source.close()
    assert set(watch.first_seen) == {"kv_preemption_storm"}
    assert 0 <= watch.first_seen["kv_preemption_storm"] - (BEGIN + first_eviction) <= 20
    storm = watch["kv_preemption_storm"]
    assert flags(storm)[0] == ("--num-gpu-blocks-override", "40", "(none)")
    assert flags(storm)[1][0] == "--max-num-seqs"
