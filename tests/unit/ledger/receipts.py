"""What engines printed about memory when they started, beside the architecture numbers of their models.

Each entry of fixtures/receipts.json has its public source; what no print tells of its model is as in the model's public
``config.json``. `layer_types` is written as runs of (kind, count). `card_gib` is there where the size of the card was
printed or stated, `before_gib` where the engine said what was free before it loaded. `config_source` says where what is
known of a quantised checkpoint's config is from, where no print tells it. Fitted constants may only look at the even
half, and not at those of fixtures/receipts_elsewhere.json, which were found after all was fitted.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwatch.ledger.budget import SGLANG_CONTEXT_BYTES, Deployment, communication_bytes
from gpuwatch.ledger.defaults import with_defaults
from gpuwatch.ledger.pool import pool_of, sglang_cell
from gpuwatch.ledger.reading import read_model
from gpuwatch.units import GIB

FILE = Path(__file__).parents[2] / "fixtures" / "receipts.json"
ELSEWHERE_FILE = FILE.with_name("receipts_elsewhere.json")
SIXTEEN_BITS = ("bf16", "fp16")
CONTRADICTION = 0.01
"""Printed figures are rounded to less than this."""


@dataclass(frozen=True)
class Receipt:
    """One start-up."""

    number: int
    data: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.data['model'].rsplit('/', 1)[-1]}-{self.data['engine']}-{self.data['version'] or self.number}"

    @property
    def fitted(self) -> bool:
        """Whether constants may be fitted to it: the last digit of a hash of its source is even."""
        return int(hashlib.sha256(self.data["source"].encode()).hexdigest(), 16) % 2 == 0

    @property
    def printed(self) -> dict[str, float]:
        return self.data["printed"]

    @property
    def version(self) -> tuple[int, ...]:
        return tuple(map(int, filter(None, self.data["version"].split("."))))

    @property
    def model(self):
        config = dict(self.data["config"])
        if "layer_types" in config:
            config["layer_types"] = [kind for kind, count in config["layer_types"] for _ in range(count)]
        return read_model(config, self.data["model"])

    @property
    def on_npu(self):
        """Whether it is of an NPU, which no NVML measures: another build of the engine, with kernels of its own."""
        return "NPU" in self.data["card"]

    @property
    def sixteen_bits(self) -> bool:
        return self.data["flags"]["weights"] in SIXTEEN_BITS

    @property
    def deployment(self) -> Deployment:
        flags = self.data["flags"]
        sglang = self.data["engine"] == "sglang"
        attention = flags.get("attention_tp")
        free = self.printed.get("before_gib")  # SGLang says what the card had left before it loaded the weights
        before = SGLANG_CONTEXT_BYTES + communication_bytes(flags["tp"])
        capacity = self.printed.get("card_gib", 80) * GIB if free is None else free * GIB + before
        deployment = Deployment(
            engine=self.data["engine"],
            version=self.version or ((0, 5, 8) if sglang else (0, 10, 0)),
            capacity=capacity,
            tp=flags["tp"],
            pp=flags["pp"],
            dcp=flags.get("dcp", 1),
            dp_attention=flags["tp"] // attention if attention else 1,
            context=flags.get("context", 32768),
            kv_dtype=flags["kv_dtype"],
            max_total_tokens=flags.get("max_total_tokens"),
            block_size=flags.get("block_size", 1 if sglang else 16),
            prefix_caching=flags.get("prefix_caching"),
            unified=any(word in self.data["card"] for word in ("GB10", "unified")),
            expert_parallel=flags.get("ep", 1) > 1,
            pooling=flags.get("pooling", False),
            towers=flags.get("towers", True),
            adapters=flags.get("adapters", 0),
            adapter_rank=flags.get("adapter_rank", 0),
        )
        return with_defaults(
            deployment,
            self.model,
            chunk=flags.get("chunk"),
            sequences=flags.get("max_num_seqs"),
            fraction=flags.get("fraction"),
        )

    @property
    def kinds(self) -> tuple[tuple[str, str], ...]:
        """What its model's layers keep of the past."""
        return tuple((group.kind, group.mixer) for group in self.model.layers)

    @property
    def pool_error(self) -> float | None:
        """By how much the printed pool, divided as its layers need, is more tokens than were printed."""
        if "pool_gib" not in self.printed:
            return None
        model, deployment, pool = self.model, self.deployment, self.printed["pool_gib"] * GIB
        if deployment.engine == "sglang":  # it prints the KV cache alone, without the pool of states
            return pool / sglang_cell(model, deployment) / self.printed["tokens"] - 1
        return pool_of(model, deployment, pool).tokens / self.printed["tokens"] - 1

    @property
    def contradictory(self) -> bool:
        """Whether its pool and its tokens do not belong together, though they do in all others with such layers."""
        error = self.pool_error
        if error is None or abs(error) < CONTRADICTION:
            return False
        alike = [other for other in RECEIPTS if other.kinds == self.kinds and other.number != self.number]
        others = [abs(found) for other in alike if (found := other.pool_error) is not None]
        return bool(others) and max(others) < CONTRADICTION


RECEIPTS = tuple(Receipt(number, data) for number, data in enumerate(json.loads(FILE.read_text())))
ELSEWHERE = tuple(Receipt(number, data) for number, data in enumerate(json.loads(ELSEWHERE_FILE.read_text())))
