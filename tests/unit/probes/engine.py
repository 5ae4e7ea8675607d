"""A server on the loopback interface that behaves like an engine with a small KV pool: it queues, preempts, streams."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Engine:
    """What the server is like. `mishap(prompt_tokens, number)` names what goes wrong with a request, None: nothing.

    Mishaps: a number (HTTP status), an address (a redirect to it), (status, document or page), zeros (a usage of
    zeros), garbage, endless, cut (the connection), json, half (half of the prompt is read),
    nothing (an answer without a token), silent (no usage), hang, error (in the stream), html.
    """

    def __init__(self, **more):
        self.blocks, self.block, self.limit, self.sequences = 400, 16, 4096, 64
        self.owner, self.version, self.metrics, self.tokenizes, self.key = "vllm", "0.32.0", True, True, ""
        self.takes_ids, self.prefill_rate, self.decode_seconds, self.rank_labels = True, 200_000.0, 0.002, ("0",)
        self.mishap = lambda tokens, number: None
        self.limited, self.models, self.reads = 0, None, None
        self.lump, self.counts_along, self.override = 1, False, None
        """Tokens in a piece of the stream; whether usage comes with each piece, if asked for; blocks of a flag."""
        self.asked = []
        for name, value in more.items():
            setattr(self, name, value)
        self.free, self.running, self.waiting, self.preempted = self.blocks - 1, 0, 0, 0
        self.turn = threading.Condition()
        self.queue = []
        self.closed = False

    def page(self):
        usage = 1 - self.free / (self.blocks - 1)
        more = f',num_gpu_blocks_override="{self.override}"' if self.override else ""
        rows = [
            "# TYPE vllm:num_requests_running gauge",
            f'vllm:num_requests_running{{engine="0",model_name="m"}} {self.running}',
            "# TYPE vllm:num_requests_waiting gauge",
            f'vllm:num_requests_waiting{{engine="0",model_name="m"}} {self.waiting}',
            "# TYPE vllm:kv_cache_usage_perc gauge",
            f'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {usage}',
            "# TYPE vllm:num_preemptions_total counter",
            f'vllm:num_preemptions_total{{engine="0",model_name="m"}} {self.preempted}',
            "# TYPE vllm:cache_config_info gauge",
            f'vllm:cache_config_info{{engine="0",block_size="{self.block}",num_gpu_blocks="{self.blocks}"{more}}} 1.0',
        ]
        return "\n".join(rows) + "\n"

    def admit(self, tokens, me):
        """Wait for blocks, first come first served; return the number of blocks."""
        need = tokens // self.block + 1
        with self.turn:
            self.queue.append(me)
            self.waiting += 1

            def ready():
                return self.closed or (self.queue[0] is me and self.free >= need and self.running < self.sequences)

            self.turn.wait_for(ready, 60)
            self.queue.remove(me)
            self.waiting -= 1
            self.free -= need
            self.running += 1
            self.turn.notify_all()
        return need

    def leave(self, held):
        with self.turn:
            self.free += held
            self.running -= 1
            self.turn.notify_all()

    def grow(self):
        with self.turn:
            if self.free < 1:
                self.preempted += 1
                return False
            self.free -= 1
            return True


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, content, kind="application/json", **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        engine = self.server.engine
        if engine.key and self.headers.get("Authorization") != f"Bearer {engine.key}" and self.path != "/metrics":
            self.answer(401, {"error": "Unauthorized"})
        elif self.path == "/v1/models":
            row = {"id": "m", "owned_by": engine.owner}
            row |= {"max_model_len": engine.limit} if engine.limit else {}
            rows = [row, {"id": "lora", "parent": "m"}] if engine.models is None else engine.models
            self.answer(200, {"object": "list", "data": rows})
        elif self.path == "/version" and engine.owner == "vllm":
            self.answer(200, {"version": engine.version})
        elif self.path == "/metrics" and engine.metrics:
            self.answer(200, engine.page().encode(), "text/plain; version=0.0.4")
        else:
            self.answer(404, {"detail": "Not Found"})

    def do_POST(self):
        engine = self.server.engine
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if engine.key and self.headers.get("Authorization") != f"Bearer {engine.key}":
            self.answer(401, {"error": "Unauthorized"})
        elif self.path == "/tokenize" and engine.tokenizes:
            self.answer(200, {"tokens": [10 + len(word) for word in body["prompt"].split()]})
        elif self.path == "/v1/completions":
            with suppress(OSError):
                self.complete(engine, body)
        else:
            self.answer(404, {"detail": "Not Found"})

    def complete(self, engine, body):  # noqa: PLR0911  # each mishap ends it in its own way
        prompt, most = body["prompt"], body["max_tokens"]
        if isinstance(prompt, list) and not engine.takes_ids:
            return self.answer(400, {"error": {"message": "prompt must be a string"}})
        tokens = len(prompt) if isinstance(prompt, list) else len(prompt.split())
        engine.asked.append(body)
        mishap = engine.mishap(tokens, len(engine.asked))
        if engine.limited:
            engine.limited -= 1
            return self.answer(429, {"error": {"message": "slow down"}}, Retry_After="0.05")
        if mishap == "html":
            return self.answer(502, b"<html><body>Bad Gateway</body></html>", "text/html")
        if isinstance(mishap, int):
            return self.answer(mishap, {"error": {"message": f"mishap {mishap}"}})
        if isinstance(mishap, str) and mishap.startswith("http://"):
            return self.answer(307, {}, Location=mishap)
        if isinstance(mishap, tuple):
            return self.answer(*mishap)
        if engine.limit and tokens + most > engine.limit and mishap not in ("half", "nothing"):
            text = f"This model's maximum context length is {engine.limit} tokens."
            return self.answer(400, {"error": {"message": text, "code": 400}})
        if mishap == "json":
            document = {"choices": [{"text": "whole", "finish_reason": "length"}], "usage": {"prompt_tokens": tokens}}
            return self.answer(200, document)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        along = engine.counts_along and body["stream_options"].get("continuous_usage_stats")
        return self.stream(engine, tokens, most, mishap, along=along)

    def send(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def event(self, document):
        self.send(b"data: " + json.dumps(document).encode() + b"\n\n")

    def piece(self, engine, made, wanted, usage):
        """Send what is not sent yet when it is a whole piece, or the last one."""
        if made % engine.lump and made != wanted:
            return
        document = {"choices": [{"index": 0, "text": "x", "finish_reason": None}]}
        self.event(document if usage is None else document | {"usage": usage})

    @staticmethod
    def usage(engine, tokens, made, mishap):
        if mishap == "zeros":
            return {"prompt_tokens": 0, "completion_tokens": 0}
        counted = tokens // 2 if mishap == "half" else min(tokens, engine.reads or tokens)
        return {"prompt_tokens": counted, "completion_tokens": made}

    def stream(self, engine, tokens, most, mishap, *, along):
        if mishap == "garbage":
            return self.send(b"\x00\xff not an event\n\n")
        if mishap == "hang":
            while not engine.closed:
                time.sleep(0.02)
            return None
        me = object()
        held = engine.admit(tokens, me)
        made = 0
        try:
            time.sleep(tokens / engine.prefill_rate)
            wanted = 10_000 if mishap == "endless" else 0 if mishap == "nothing" else most
            while made < wanted and not engine.closed:
                if (tokens + made) // engine.block >= held:
                    if not engine.grow():
                        engine.leave(held)
                        held = engine.admit(tokens + made, me)
                        time.sleep((tokens + made) / engine.prefill_rate)
                        continue
                    held += 1
                time.sleep(engine.decode_seconds)
                if mishap == "cut" and made == 2:
                    self.close_connection = True
                    return None
                if mishap == "error" and made == 2:
                    return self.event({"error": {"message": "EngineCore died", "code": 500}})
                made += 1
                self.piece(engine, made, wanted, self.usage(engine, tokens, made, mishap) if along else None)
        finally:
            engine.leave(held)
        self.event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        if mishap != "silent":
            self.event({"choices": [], "usage": self.usage(engine, tokens, made, mishap)})
        self.send(b"data: [DONE]\n\n")
        return self.send(b"")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    stopped = None

    def stop(self):
        """Stop to listen; what is open stays open."""
        self.shutdown()
        self.server_close()
        self.stopped.set()

    request_queue_size = 64

    def handle_error(self, *args):
        pass


@contextmanager
def serving(engine, keep=None):
    """Serve `engine`; yields its address. The server is put into the list `keep`."""
    server = Server(("127.0.0.1", 0), Handler)
    server.engine, server.stopped = engine, threading.Event()
    if keep is not None:
        keep.append(server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        with engine.turn:
            engine.closed = True
            engine.turn.notify_all()
        server.stop()
        thread.join(20)
