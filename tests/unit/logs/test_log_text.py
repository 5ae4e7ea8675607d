"""What is shown and kept has no terminal codes, no prompts and no secrets."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import pytest

from gpuwatch.engines.log_text import clean, leaves_open, limit, redact


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("\x1b[1;36m(APIServer pid=9)\x1b[0;0m INFO", "(APIServer pid=9) INFO"),
        ("\x1b]0;evil title\x07shown", "shown"),
        ("\x1b]8;;http://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("\x1bcreset", "reset"),
        ("\x1bPq#0;2;0;0;0\x1b\\sixel", "sixel"),
        ("cut sequence \x1b[3", "cut sequence"),
        ("\x9b31mred\x9b0m", "red"),
        ("bell\x07 nul\x00 back\x08 del\x7f", "bell nul back del"),
        ("a\tb", "a    b"),
        ("right\u202eleft\u2066 zero\u200bwidth \u2028line", "rightleft zerowidth line"),
        ("[bold red]markup is text[/bold red]", "[bold red]markup is text[/bold red]"),
        ("grüße 你好 █▄", "grüße 你好 █▄"),
    ],
)
def test_terminal_codes_go_and_text_stays(text, want):
    assert clean(text) == want


def test_a_long_text_ends_in_an_ellipsis():
    assert limit("abcdef", 4) == "abc…"
    assert limit("abcd", 4) == "abcd"


@pytest.mark.parametrize(
    "line",
    [
        "INFO 01-01 00:00:00 [logger.py:40] Received request cmpl-1-0: prompt: 'TOPSECRET words', params: SamplingParams(n=1), prompt_token_ids: [1, 2], lora_request: None.",
        "Received request chatcmpl-2: params: SamplingParams(structured_outputs='TOPSECRET'), lora_request: None.",
        "Request cmpl-1 details: prompt: 'TOPSECRET', prompt_token_ids: [31337], prompt_embeds shape: None.",
        'Request cmpl-1 JSON body: {"model":"x","messages":[{"role":"user","content":"TOPSECRET"}]}',
        "Generated response cmpl-1 (streaming delta): output: 'TOPSECRET', output_token_ids: None, finish_reason: None",
        "[2026-05-24 03:51:44] Receive: obj=GenerateReqInput(text='TOPSECRET', sampling_params={})",
        "[2026-05-24 03:51:44] Finish: obj=GenerateReqInput(rid='1'), out={'text': 'TOPSECRET'}",
        "Dumping input data for V1 LLM engine (v0.10.2) with config: model='x', TOPSECRET",
        "Dumping scheduler output for model execution: SchedulerOutput(prompt_token_ids=[31337], TOPSECRET)",
        "pydantic_core.ValidationError: 1 error, input_value={'messages': 'TOPSECRET'}, input_type=dict",
        'POST body {"prompt": "TOPSECRET"}',
        "prompt_token_ids=[31337, 31338] TOPSECRET",
        'content: "TOPSECRET',
        "ERROR 1 validation error: {'type': 'missing', 'loc': ('body', 'model'), 'input': {'content': 'TOPSECRET'}}",
        'INFO 11-29 18:10:03 [x.py:1] {"text": "TOPSECRET", "n": 31337}',
        '{"query":"TOPSECRET"}',
        '{\\"input\\": \\"TOPSECRET\\"}',
        "ChatMessage(role='user', content='TOPSECRET')",
        "prompt: TOPSECRET words without quotes",
        "[2026-05-24 03:51:44] User prompt: TOPSECRET",
        "INFO 11-29 18:10:03 [x.py:1] Input: text=TOPSECRET",
        'INFO:     10.0.0.1:1 - "GET /search?q=TOPSECRET&n=31337 HTTP/1.1" 200 OK',
        'INFO:     10.0.0.1:1 - "POST /v1/x?prompt=TOPSECRET%20words HTTP/1.1" 200 OK',
        "fetching http://host/answer?question=TOPSECRET",
    ],
)
def test_no_prompt_and_no_answer_gets_through(line):
    shown = redact(line)
    assert "TOPSECRET" not in shown
    assert "31337" not in shown
    assert "<redacted>" in shown


@pytest.mark.parametrize(
    "line",
    [
        "non-default args: {'host': '0.0.0.0', 'api_key': ['s3cr3t-value', 's3cr3t-two'], 'max_num_seqs': 8}",
        "server_args=ServerArgs(port=30000, api_key='s3cr3t-value', tp_size=1)",
        "vllm serve m --api-key s3cr3t-value --port 8000",
        "vllm serve m --api-key s3cr3t-value s3cr3t-two --port 8000",
        "vllm serve m --api-key=s3cr3t-value",
        "vllm: error: unrecognized arguments: --apikey s3cr3t-value",
        "--hf-token s3cr3t-value",
        "VLLM_API_KEY=s3cr3t-value HF_TOKEN=s3cr3t-two vllm serve",
        "AWS_SECRET_ACCESS_KEY=s3cr3t-value",
        "sent Bearer s3cr3t-value-of-some-length",
        "headers: {'Authorization': 'Bearer s3cr3t-value'}",
        "Authorization: Bearer s3cr3t-value",
        "proxy http://user:s3cr3t-value@proxy:3128 used",
        'INFO:     10.0.0.1:1 - "GET /v1/models?api_key=s3cr3t-value HTTP/1.1" 200 OK',
        '"password": "s3cr3t-value"',
        "token=s3cr3t-value",
        "cookie: session=s3cr3t-value; theme=dark",
        "Set-Cookie: id=s3cr3t-value; Expires=Wed, 21 Oct 2026 07:28:00 GMT; HttpOnly",
        "headers={'cookie': 'session=s3cr3t-value'}",
        "request cookies={'sid': 's3cr3t-value'} from 10.0.0.1",
        "cookie=s3cr3t-value",
        "cookies: {'sid': 's3cr3t-value'}",
        "headers: [(b'host', b'a'), (b'cookie', b'sid=s3cr3t-value'), (b'accept', b'*/*')]",
        "headers: [(b'authorization', b'Basic czpzM2NyM3Q=s3cr3t')]",
        "headers: [(b'x-api-key', b's3cr3t-value')]",
    ],
)
def test_no_key_token_or_password_gets_through(line):
    shown = redact(line)
    assert "s3cr3t" not in shown
    assert "<redacted>" in shown


@pytest.mark.parametrize(
    "secret",
    ["hf_" + "a1B2" * 8, "sk-" + "proj-" + "x9" * 12, "ghp_" + "a" * 36, "xoxp-" + "12" * 8, "github_pat_" + "1A" * 12, "AKIA" + "ABCDEFGH12345678", "AIza" + "Sy-_a" * 7, "ya29." + "a0Ab" * 8, "gsk_" + "a1" * 20, "eyJhbGciOiJI.eyJzdWIiOiIx.abc"],
)  # fmt: skip
def test_known_shapes_of_tokens_are_cut_wherever_they_stand(secret):
    assert redact(f"using {secret} now") == "using <redacted> now"


@pytest.mark.parametrize(
    "line",
    [
        "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 239.2 tokens/s, Running: 8 reqs",
        "GPU KV cache size: 1,234,567 tokens",
        "Prefill batch. #new-seq: 1, #new-token: 2, #cached-token: 3, cache hit rate: 60.00%, token usage: 0.04",
        "max_total_num_tokens=444500, max_prefill_tokens=16384, max_running_requests=2049, context_len=131072",
        "Input prompt (48173 tokens) is too long and exceeds limit of 32768",
        "Chunked prefill is enabled with max_num_batched_tokens=2048.",
        "config: tokenizer='tiny', skip_tokenizer_init=False, tokenizer_mode=auto, eos_token_id=2",
        "api_key=None",
        "vllm: error: unrecognized arguments: --chunked-prefill-size 8192",
        "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: 219, #new_token_ratio: 0.0063 -> 0.4859",
        "ValueError: To serve at least one request with the model's max seq len (1048576), (2.0 GiB KV cache is needed",
        'INFO:     127.0.0.1:54820 - "POST /v1/completions HTTP/1.1" 200 OK',
        "Basic configuration of the bearer authentication: see the docs",
        "    inputs = self.tokenizer(text, prompt=prompt)",
        "    return F.linear(input, self.weight, self.bias)",
        "    query = query.view(-1, self.num_heads, self.head_size)",
        "prompt: 128, generation: 512",
        "AttributeError: 'NoneType' object has no attribute 'text'",
        "INFO 11-29 18:10:03 [core.py:58] config: chat_template_text_format='auto', content_format='string'",
        'INFO:     127.0.0.1:54820 - "GET /metrics HTTP/1.1" 200 OK',
        "Is the context length right? See the docs.",
    ],
)
def test_ordinary_lines_stay_as_they_are(line):
    assert redact(line) == line


@pytest.mark.parametrize(
    ("line", "goes_on"),
    [
        ("Received request cmpl-1: prompt: 'one\\ntwo', params: SamplingParams(n=1), lora_request: None.", False),
        ("Received request cmpl-1: prompt: 'it goes on", True),
        ('Received request cmpl-1: prompt: "it\'s closed", params: None', False),
        ("Received request cmpl-1: params", True),
        ("prompt: without quotes", True),
        ("[2026-05-24 03:51:44] Receive: obj=GenerateReqInput(text='a (b', sampling_params={})", False),
        ("[2026-05-24 03:51:44] Receive: obj=GenerateReqInput(text='a', sampling_params={", True),
        ("Engine 000: Avg prompt throughput: 0.0 tokens/s (and an open bracket", False),
        ("", False),
    ],
)
def test_a_body_that_goes_on_in_the_next_line_is_known_by_what_is_not_closed(line, goes_on):
    assert leaves_open(line) is goes_on


@pytest.mark.parametrize(
    ("line", "want"),
    [
        (
            'vllm serve m --chat-template "You are SECRET, {{ x }}" --port 1',
            "vllm serve m --chat-template <redacted> --port 1",
        ),
        (
            "vllm serve m --chat-template You are SECRET words --port 1",
            "vllm serve m --chat-template <redacted> --port 1",
        ),
        ("--chat-template={{messages}}SECRET", "--chat-template=<redacted>"),
        ("args: {'chat_template': 'You are SECRET', 'tp': 2}", "args: {'chat_template': <redacted>, 'tp': 2}"),
        (
            "args: {'hf_overrides': {'auth': 'SECRET'}, 'tp': 2}",
            "args: {'hf_overrides': {'auth': <redacted>}, 'tp': 2}",
        ),
    ],
)
def test_a_template_given_as_text_is_cut_like_a_prompt_and_a_key_under_auth_like_a_key(line, want):
    assert redact(line) == want


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve m --chat-template ./tool_chat.jinja --port 1",
        "python -m sglang.launch_server --chat-template qwen2-vl --port 1",
        "args: {'chat_template': 'template.jinja', 'chat_template_content_format': 'auto', 'auth': None}",
        "pass --chat-template to name one",
    ],
)
def test_a_template_that_is_named_stays(line):
    assert redact(line) == line
