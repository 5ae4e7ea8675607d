"""The verdicts of ``gpuwatch plan`` on published deployments beside those that were worked out by hand, as Markdown.

usage: python tests/tools/plan_cases.py        (exits with 1 when one differs)
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpuwatch.cli import main as gpuwatch  # the folder is on the path now
from gpuwatch.units import GIB  # as above

MILLION = 1_048_576


def shape(layers, kv_heads, hidden, heads, inner, vocab=152064):  # noqa: PLR0917  # numbers of a configuration
    return {
        "num_hidden_layers": layers, "num_key_value_heads": kv_heads, "head_dim": 128, "hidden_size": hidden,
        "num_attention_heads": heads, "intermediate_size": inner, "vocab_size": vocab, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "max_position_embeddings": MILLION,
    }  # fmt: skip


WIDE = shape(40, 8, 5120, 40, 27648)
NARROW = shape(40, 8, 4096, 32, 12288)
SMALL = shape(32, 4, 4096, 32, 11008)
LARGE = shape(80, 8, 8192, 64, 28672, 128256)

# case, what, model, parameters, weights, KV, tokens, cards, tensor ranks, GiB of a card, verdict by hand
CASES = (
    ("D1", "32B BF16, 1M tokens of FP8", WIDE, 32e9, "bf16", "fp8", MILLION, 2, 2, 79.3, "tight"),
    ("D2", "32B INT4, 1M tokens of INT4", WIDE, 32e9, "int4", "int4", MILLION, 1, 1, 79.3, "tight"),
    ("D3", "32B BF16, 1M tokens of BF16", WIDE, 32e9, "bf16", "auto", MILLION, 4, 4, 79.3, "fits"),
    ("D4", "9B FP16, 1M tokens of FP16", NARROW, 9e9, "fp16", "auto", 1_000_000, 2, 2, 79.3, "does_not_fit"),
    ("D5", "9B FP16, 1M tokens of FP8", NARROW, 9e9, "fp16", "fp8", 1_000_000, 2, 2, 79.3, "fits"),
    ("D5", "9B INT8, 1M tokens of FP8", NARROW, 9e9, "int8", "fp8", 1_000_000, 2, 2, 79.3, "fits"),
    ("E1", "7B BF16, 32K tokens", SMALL, 7e9, "bf16", "auto", 32_768, 4, 4, 24, "fits"),
    ("E2", "30B INT4, 32K tokens", WIDE, 30e9, "int4", "auto", 32_768, 4, 4, 24, "fits"),
    ("E3", "70B INT4, 32K tokens", LARGE, 70e9, "int4", "auto", 32_768, 4, 4, 24, "fits"),
    ("E4", "70B INT8, 32K tokens", LARGE, 70e9, "int8", "auto", 32_768, 4, 4, 24, "tight"),
    ("E5", "70B BF16, 32K tokens", LARGE, 70e9, "bf16", "auto", 32_768, 4, 4, 24, "does_not_fit"),
    ("E6", "70B INT4, four replicas", LARGE, 70e9, "int4", "auto", 32_768, 4, 1, 24, "does_not_fit"),
    ("E7", "32B INT4, four replicas", WIDE, 32e9, "int4", "auto", 32_768, 4, 1, 24, "does_not_fit"),
)


def planned(folder, config, parameters, weights, kv, tokens, cards, ranks, gib):  # noqa: PLR0917  # columns of a table
    """Return what ``gpuwatch plan --json`` prints."""
    path = Path(folder) / "config.json"
    path.write_text(json.dumps(config))
    arguments = {
        "--params": parameters, "--weights": weights, "--kv-dtype": kv, "--context": tokens, "--gpus": cards,
        "--tp": ranks, "--gpu-memory": gib,
    }  # fmt: skip
    words = [word for name, value in arguments.items() for word in (name, str(value))]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        gpuwatch(["plan", str(path), *words, "--json"])
    return json.loads(out.getvalue())


def rows():
    """Yield (case, what, parts of a card in GiB, verdict, verdict by hand)."""
    with tempfile.TemporaryDirectory() as folder:
        for case, what, *asked, verdict in CASES:
            plan = planned(folder, *asked)
            card = plan["per_gpu"][0]
            parts = [value / GIB for value in (*card["components"].values(), card["total"], card["capacity"])]
            yield case, f"{what}, {asked[5]} x {asked[7]:g} GiB, TP{asked[6]}", parts, plan["verdict"], verdict


def main():
    print("| case | deployment | weights | KV | activations | graphs | context | comm. | total | card | verdict |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    wrong = 0
    for case, what, parts, verdict, expected in rows():
        wrong += verdict != expected
        said = verdict if verdict == expected else f"{verdict}, by hand {expected}"
        print(f"| {case} | {what} | {' | '.join(f'{part:.1f}' for part in parts)} | {said} |")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
