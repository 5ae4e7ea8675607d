"""Keys, tokens and passwords of a launch command: ``gpuwatch plan`` shows none of them, and keeps the rest."""

from __future__ import annotations

import json

import pytest

from gpuwatch.cli import main

HELD = ("Zq7", "Xv9")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("vllm serve Qwen/Qwen3-8B --api-key Zq7 --port 1", "vllm serve Qwen/Qwen3-8B --api-key '<redacted>' --port 1"),
        ("vllm serve Qwen/Qwen3-8B --api_key=Zq7", "vllm serve Qwen/Qwen3-8B '--api_key=<redacted>'"),
        ("vllm serve --api-key Zq7 Xv9 --model Qwen/Qwen3-8B", None),
        ("vllm serve --model Qwen/Qwen3-8B --api-key -Zq7 --port 1", None),
        ("VLLM_API_KEY='Zq7 Xv9' HF_TOKEN=Xv9 vllm serve Qwen/Qwen3-8B", None),
        ("docker run -e HF_TOKEN=Zq7 vllm/vllm-openai:v0.20.0 --model Qwen/Qwen3-8B --hf-token Xv9", None),
        ("vllm serve Qwen/Qwen3-8B --api-kye Zq7 && curl -H 'Authorization: Bearer Xv9' localhost", None),
        ("sglang serve --model-path Qwen/Qwen3-8B --admin-api-key Zq7 --api-key=Xv9", None),
        ("""vllm serve Qwen/Qwen3-8B --kv-transfer-config '{"api_key": "Zq7"}'""", None),
        ("vllm serve Qwen/Qwen3-8B --otlp-traces-endpoint https://u:Zq7@host/x", None),
    ],
)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_no_secret_of_a_command_is_shown(capsys, given, shown, form):
    assert main(["plan", "--from-command", given, *form]) == 0
    printed = capsys.readouterr()
    assert not [held for held in HELD if held in printed.out + printed.err]
    if form and shown:
        assert json.loads(printed.out)["command"] == shown


def test_what_only_looks_like_a_secret_stays(capsys):
    given = (
        "HF_HOME=/models vllm serve Qwen/Qwen3-8B --max-num-batched-tokens 8192 --tokenizer t --ssl-keyfile /k.pem "
        """--hf-overrides '{"eos_token_id": 5}' > log"""
    )
    assert main(["plan", "--from-command", given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"] == given
