"""The ledger's errors against what engines printed, as Markdown for docs/ledger.md; with peers if installed.

usage: ledger_errors.py [--all] [--peers VENV]      (default: the half of the receipts that no constant was fitted to)
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from gpuwatch.ledger.budget import pool_bytes, residents  # the folder is on the path now
from gpuwatch.ledger.loaded import printed_bytes
from gpuwatch.ledger.pool import pool_of
from gpuwatch.units import GIB
from tests.unit.ledger.receipts import ELSEWHERE, RECEIPTS

TYPES = (
    ("Qwen2.5-VL", "qwen2_5_vl"),
    ("typhoon", "qwen2_5_vl"),
    ("Qwen3-VL", "qwen3_vl"),
    ("30B-A3B", "qwen3_moe"),
    ("235B", "qwen3_moe"),
    ("480B", "qwen3_moe"),
    ("Qwen3-Next", "qwen3_next"),
    ("Qwen3.6", "qwen3_5_moe"),
    ("Qwen3", "qwen3"),
    ("wen2.5", "qwen2"),
    ("istill-", "qwen2"),
    ("lama", "llama"),
    ("phi-1", "phi"),
    ("gemma-3", "gemma3_text"),
    ("gemma-4", "gemma4_text"),
    ("gpt-oss", "gpt_oss"),
    ("Kimi", "kimi_k2"),
    ("granite", "granitemoehybrid"),
)
SECONDS = 60


KINDS = (
    "weights in 16 bits",
    "weights in fewer bits",
    "tokens from the printed pool",
    "tokens from the card",
)


def ours(receipt):
    """Return the errors of `KINDS`; None where a receipt has no such figure."""
    model, deployment, printed = receipt.model, receipt.deployment, receipt.printed
    weights = tokens = card = None
    if "weights_gib" in printed:
        weights = printed_bytes(model, deployment.split, deployment.loading) / (printed["weights_gib"] * GIB) - 1
    tokens = receipt.pool_error
    measured = "card_gib" in printed or "before_gib" in printed
    if tokens is not None and measured and deployment.max_total_tokens is None:
        pool = pool_bytes(model, deployment, residents(model, deployment))
        card = pool_of(model, deployment, pool).tokens / printed["tokens"] - 1
    both = (weights, None) if receipt.sixteen_bits else (None, weights)
    return (*both, tokens, card)


def vramscout(receipt, venv, folder):
    """Return (weights error, tokens error from the printed pool) of vramscout, or why it gives none."""
    deployment, printed = receipt.deployment, receipt.printed
    if deployment.pp > 1:
        return "it has no option for pipeline stages"
    write_config(receipt, folder)
    command = [f"{venv}/bin/vramscout", "config.json", "--vram-gib", f"{deployment.capacity / GIB}"]
    command += ["--tp", str(deployment.tp), "--context", str(deployment.context), "--json"]
    if deployment.engine == "vllm":
        command += ["--engine", "vllm", "--gpu-memory-utilization", str(deployment.fraction)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    found = json.loads(done.stdout or '{"error": "no output"}')
    if "error" in found:
        return found["error"]
    parts = found["parts_gib"]
    weights = tokens = None
    if "weights_gib" in printed and receipt.sixteen_bits:
        weights = parts["Model weights / rank"] / printed["weights_gib"] - 1
    cache = parts.get("KV cache") or parts.get("KV cache / rank")
    if cache and "pool_gib" in printed:
        tokens = printed["pool_gib"] / (cache / deployment.context) / printed["tokens"] - 1
    return weights, tokens


def planner(receipt, venv, folder):
    """Return what llm-mem-planner says when it refuses a config; empty when it takes it."""
    write_config(receipt, folder)
    command = [f"{venv}/bin/llm-mem", "--config", "config.json", "--tp", str(receipt.deployment.tp)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    return "" if done.returncode == 0 else (done.stderr or done.stdout).strip().splitlines()[-1]


def write_config(receipt, folder):
    """Write the config.json that the peers read."""
    config = dict(receipt.data["config"])
    if "layer_types" in config:
        config["layer_types"] = [kind for kind, count in config["layer_types"] for _ in range(count)]
    config["model_type"] = next((kind for part, kind in TYPES if part in receipt.data["model"]), "llama")
    config["max_position_embeddings"] = max(receipt.deployment.context, 4096)
    (Path(folder) / "config.json").write_text(json.dumps(config))


def percent(value):
    return "" if value is None else f"{100 * value:+.2f} %"


def summary(name, values):
    values = [abs(value) for value in values if value is not None]
    if values:
        print(f"| {name} | {len(values)} | {100 * statistics.median(values):.2f} % | {100 * max(values):.2f} % |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--peers", metavar="VENV")
    args = parser.parse_args()
    receipts = [receipt for receipt in RECEIPTS if args.all or not receipt.fitted]
    table(receipts)
    elsewhere = {receipt.number: ours(receipt) for receipt in ELSEWHERE}
    rows = {receipt.number: ours(receipt) for receipt in receipts}
    doubtful = [receipt for receipt in receipts if receipt.contradictory]
    sound = [receipt for receipt in receipts if receipt not in doubtful]
    print("\nReceipts found elsewhere:\n")
    table(ELSEWHERE)
    print("\n| error of | receipts | median | worst |\n|---|---|---|---|")
    for at, name in enumerate(KINDS):
        if name.startswith("tokens"):
            summary(name, [rows[receipt.number][at] for receipt in sound])
            summary(f"{name}, pool and tokens contradict", [rows[receipt.number][at] for receipt in doubtful])
        else:
            weights(name, receipts, rows, at)
    for at, name in enumerate(KINDS):
        if name.startswith("tokens"):
            summary(f"receipts found elsewhere: {name}", [row[at] for row in elsewhere.values()])
        else:
            weights(f"receipts found elsewhere: {name}", ELSEWHERE, elsewhere, at)
    if args.peers:
        peers(receipts, args.peers)


def weights(name, receipts, rows, at):
    """Print the errors of weights: on GPUs, and on NPUs, which have builds of their own and no NVML."""
    for ending, on_npu in (("", False), (", on NPUs", True)):
        summary(name + ending, [rows[receipt.number][at] for receipt in receipts if receipt.on_npu == on_npu])


def table(receipts):
    """Print a row for each receipt."""
    print(f"| receipt | source | {' | '.join(KINDS)} |\n|---|---|" + "---|" * len(KINDS))
    for receipt in receipts:
        cells = " | ".join(map(percent, ours(receipt)))
        print(f"| {receipt.name} | {receipt.data['source']} | {cells} |")


def peers(receipts, venv):
    """Print the errors of other planners."""
    with tempfile.TemporaryDirectory() as folder:
        found = {receipt.number: vramscout(receipt, venv, folder) for receipt in receipts}
        for at, name in enumerate(("vramscout: weights", "vramscout: tokens from the printed pool")):
            summary(name, [row[at] for row in found.values() if not isinstance(row, str)])
        refused = [row for row in found.values() if isinstance(row, str)]
        print(f"\nvramscout gives no answer for {len(refused)} of {len(receipts)}: {'; '.join(sorted(set(refused)))}")
        said = [planner(receipt, venv, folder) for receipt in receipts]
        reasons = "; ".join(sorted(set(filter(None, said))))
        print(f"llm-mem-planner refuses {sum(map(bool, said))} of {len(receipts)}: {reasons}")


if __name__ == "__main__":
    main()
