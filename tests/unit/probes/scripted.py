"""A server on loopback that speaks the completions API and answers as it is told: known recall, known prefix cache."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gpuwatch.probes.client import Client
from gpuwatch.probes.run import Run

MODEL = "scripted"
WORD = re.compile(r"\w+|[^\w\s]")


def count(prompt):
    """Tokens of a prompt: ids are counted, text has one token a word or sign."""
    return len(prompt) if isinstance(prompt, list) else len(WORD.findall(prompt))


def facts(prompt):
    """The facts of a text with the share of its words before them: [(depth, name, number)]."""
    body = prompt.split("\n\n")[1] if "\n\n" in prompt else prompt
    found = re.finditer(r"The (?:access number|record) of (\w+) is ([0-9]+)\.", body)
    return [(match.start() / max(1, len(body)), match[1], match[2]) for match in found]


def asked(prompt):
    """The name that the question at the end asks for, and whether the first or the last statement is wanted."""
    last = prompt.rsplit("Answer:", 1)[1]
    which = re.search(r"states (first|last) is$", last)
    return re.search(r"of (\w+)", last)[1], which[1] if which else ""


def perfect(prompt):
    """Answer as a model without fault does."""
    name, which = asked(prompt)
    numbers = [number for _, known, number in facts(prompt) if known == name]
    if not numbers:
        return " not in the text"
    return f" {numbers[0 if which == 'first' else -1]}.\n\nQuestion: 1234567"


class PrefixCache:
    """Blocks of `block` tokens under chained keys, at most `blocks` of them, the least recently used go first.

    `order` is what was measured on vLLM: only full blocks, never the last token, a salt or adapter is part of the first
    key, and the tail of a sequence is dropped before its head.
    """

    def __init__(self, block=16, blocks=1000, enabled=True, says=None, counts_blocks=False):
        self.block, self.blocks, self.enabled = block, blocks, enabled
        self.says = says or block
        self.unit = block if counts_blocks else 1
        self.kept = OrderedDict()
        self.queries = self.hits = 0
        self.lock = threading.Lock()

    def take(self, ids, extra):
        """Look a prompt up, keep it, and return how many of its tokens were there."""
        with self.lock:
            if not self.enabled:
                return 0
            self.queries += len(ids) // self.unit
            keys, key = [], extra
            for start in range(0, len(ids) - len(ids) % self.block, self.block):
                key = hash((key, tuple(ids[start : start + self.block])))
                keys.append(key)
            found = 0
            for key in keys[: (len(ids) - 1) // self.block]:
                if key not in self.kept:
                    break
                found += 1
            for key in reversed(keys):
                self.kept[key] = None
                self.kept.move_to_end(key)
            while len(self.kept) > self.blocks - 1:
                self.kept.popitem(last=False)
            self.hits += found * self.block // self.unit
            return found * self.block


class Scripted:
    """What the server does; a test changes it while it runs.

        `answer` gets the prompt's text; `reads` cuts a prompt of words before it is counted and answered (silent
    truncation); `limit` refuses longer prompts; `fails` returns None for a prompt, an HTTP status (or that and
    a message), or a mishap:
    garbage, endless (more tokens than were asked for), dies (the server goes away).
    """

    def __init__(self, answer=perfect, cache=None, **more):
        self.answer, self.cache = answer, cache
        self.limit = more.get("limit", 8192)
        self.reads = more.get("reads")
        self.fails = more.get("fails", lambda prompt: None)
        self.kv_dtype = more.get("kv_dtype", "auto")
        self.metrics = more.get("metrics", True)
        self.counts = more.get("counts", True)
        self.ids = more.get("ids", True)
        self.tells_cached = more.get("tells_cached", False)
        self.adapters = more.get("adapters", ())
        self.ranks = more.get("ranks", 1)
        self.replicas = more.get("replicas", self.ranks)
        self.version = more.get("version", "0.32.0")
        self.engine = more.get("engine", "vllm")
        self.isolates = more.get("isolates", False)
        self.salts = more.get("salts", True)
        self.others = more.get("others", 0)
        self.model = more.get("model", MODEL)
        self.turn = 0
        self.prompts = []
        self.lock = threading.Lock()

    def cut(self, prompt):
        """Return `prompt` with the last words of its text only, about as many as are read."""
        head, body, *rest = prompt.split("\n\n")
        return "\n\n".join([head, " ".join(body.split()[-self.reads :]), *rest])

    def page(self):
        cache = self.cache or PrefixCache(enabled=False)
        if self.engine == "sglang":
            return self.sglang_page(cache)
        lines = ["# TYPE vllm:prefix_cache_queries_total counter", "# TYPE vllm:prefix_cache_hits_total counter"]
        for rank in range(self.ranks):
            labels = f'{{engine="{rank}",model_name="{self.model}"}}'
            queries, hits = (cache.queries, cache.hits) if rank == 0 else (0, 0)
            config = {
                "block_size": cache.says,
                "cache_dtype": self.kv_dtype,
                "enable_prefix_caching": cache.enabled,
                "engine": rank,
                "num_gpu_blocks": cache.blocks * self.ranks,
                "kv_cache_size_tokens": cache.says * cache.blocks,
            }
            shown = ",".join(f'{key}="{value}"' for key, value in config.items())
            lines += [
                f"vllm:num_requests_running{labels} 0.0",
                f"vllm:prefix_cache_queries_total{labels} {float(queries)}",
                f"vllm:prefix_cache_hits_total{labels} {float(hits)}",
                f"vllm:cache_config_info{{{shown}}} 1.0",
            ]
        return "\n".join(lines) + "\n"

    def sglang_page(self, cache):
        """Return a page as SGLang has it: cached tokens appear with the first hit."""
        labels = f'model_name="{self.model}",dp_rank="0",tp_rank="0"'
        lines = [
            f"sglang:num_running_reqs{{{labels}}} 0.0",
            f"sglang:max_total_num_tokens{{{labels}}} {float(cache.block * cache.blocks)}",
            f"sglang:page_size{{{labels}}} {float(cache.says)}",
            "# TYPE sglang:prompt_tokens_total counter",
            f'sglang:prompt_tokens_total{{model_name="{self.model}"}} {float(cache.queries)}',
        ]
        if cache.hits:
            lines.append(
                f'sglang:cached_tokens_total{{model_name="{self.model}",cache_source="device"}} {float(cache.hits)}'
            )
        return "\n".join(lines) + "\n"


class Handler(BaseHTTPRequestHandler):
    script = None

    def log_message(self, *args):
        pass

    def reply(self, status, content, kind="application/json"):
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        script = self.script
        if self.path == "/v1/models":
            rows = [{"id": script.model, "owned_by": script.engine, "max_model_len": script.limit, "parent": None}]
            rows += [{"id": name, "owned_by": "vllm", "parent": script.model} for name in script.adapters]
            self.reply(200, {"object": "list", "data": rows})
        elif self.path == "/version":
            self.reply(200, {"version": script.version})
        elif self.path == "/server_info" and script.engine == "sglang":
            self.reply(200, {"version": script.version, "page_size": script.cache.block})
        elif self.path == "/metrics" and script.metrics:
            self.reply(200, script.page(), "text/plain; version=0.0.4")
        else:
            self.reply(404, {"error": "no such path"})

    def do_POST(self):
        script = self.script
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body["prompt"]
        if self.path == "/tokenize" and script.ids:
            self.reply(200, {"tokens": [100 + sum(map(ord, word)) % 800 for word in WORD.findall(prompt)]})
            return
        if self.path != "/v1/completions" or (isinstance(prompt, list) and not script.ids):
            self.reply(404 if self.path != "/v1/completions" else 400, {"error": {"message": "not taken"}})
            return
        with script.lock:
            script.prompts.append(body)
        tokens, cached = count(prompt), 0
        failing = 400 if "cache_salt" in body and not script.salts else script.fails(prompt)
        if failing is None and script.limit is not None and tokens + body["max_tokens"] > script.limit:
            failing = 400
        if isinstance(failing, str):
            self.mishap(failing, script.answer(prompt))
            return
        if failing is not None:
            status, words = failing if isinstance(failing, tuple) else (failing, f"refused {tokens} tokens")
            self.reply(status, {"error": {"message": words}})
            return
        if script.reads is not None and tokens > script.reads:
            prompt, tokens = prompt if isinstance(prompt, list) else script.cut(prompt), script.reads
        if script.cache is not None:
            ids = prompt if isinstance(prompt, list) else WORD.findall(prompt)
            cached = script.cache.take(ids, self.extra(script, body))
            script.cache.queries += script.others
        text = " ok" if script.cache is not None or isinstance(prompt, list) else script.answer(prompt)
        self.stream(script, text, tokens, cached)

    def mishap(self, what, text):
        if what == "dies":

            def end():
                self.server.shutdown()
                self.server.server_close()

            thread = threading.Thread(target=end)
            thread.start()
            thread.join(20)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        pieces = [text, *["x"] * 300] if what == "endless" else []
        events = [f"data: {json.dumps({'choices': [{'text': piece}]})}\n\n" for piece in pieces]
        with suppress(OSError):
            self.wfile.write("".join(events or ["\0\0 this is no event stream\n"]).encode())

    @staticmethod
    def extra(script, body):
        """What separates caches: salt, adapter, and the replica that the request is routed to."""
        with script.lock:
            script.turn += 1
            replica = script.turn if script.isolates else script.turn % script.replicas
        return (body.get("cache_salt", ""), body["model"], replica)

    def stream(self, script, text, tokens, cached):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        usage = {"prompt_tokens": tokens, "completion_tokens": 1}
        if script.tells_cached == "hits" and not cached:
            usage["prompt_tokens_details"] = None
        elif script.tells_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        events = [
            {"choices": [{"text": text, "finish_reason": None}]},
            {"choices": [{"text": "", "finish_reason": "stop"}]},
        ]
        events += [{"choices": [], "usage": usage}] if script.counts else []
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        self.wfile.write("".join([*lines, "data: [DONE]\n\n"]).encode())


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


@contextmanager
def serving(script):
    """Serve `script` on a free port of 127.0.0.1; gives the address."""
    server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"script": script}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(20)


@contextmanager
def running(script, seconds=120.0, **more):
    """A run of a probe against `script`."""
    with serving(script) as url:
        run = Run.begin(Client(url, timeout=30.0), seconds=seconds, **more)
        try:
            yield run
        finally:
            run.close()
