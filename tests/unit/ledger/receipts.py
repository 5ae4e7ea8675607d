"""What engines printed about memory when they started, beside the architecture numbers of their models.

Each entry of fixtures/receipts.json has its public source. `layer_types` is written as runs of (kind, count). Fitted
constants may only look at the even half.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwatch.ledger.budget import Deployment
from gpuwatch.ledger.defaults import with_defaults
from gpuwatch.ledger.reading import read_model
from gpuwatch.units import GIB

FILE = Path(__file__).parents[2] / "fixtures" / "receipts.json"
SIXTEEN_BITS = ("bf16", "fp16")


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
    def sixteen_bits(self) -> bool:
        return self.data["flags"]["weights"] in SIXTEEN_BITS

    @property
    def deployment(self) -> Deployment:
        flags = self.data["flags"]
        sglang = self.data["engine"] == "sglang"
        attention = flags.get("attention_tp")
        deployment = Deployment(
            engine=self.data["engine"],
            version=self.version or ((0, 5, 8) if sglang else (0, 10, 0)),
            capacity=self.printed.get("card_gib", 80) * GIB,
            tp=flags["tp"],
            pp=flags["pp"],
            dcp=flags.get("dcp", 1),
            dp_attention=flags["tp"] // attention if attention else 1,
            context=flags.get("context", 32768),
            kv_dtype=flags["kv_dtype"],
            block_size=flags.get("block_size", 1 if sglang else 16),
            prefix_caching=flags.get("prefix_caching"),
            unified="GB10" in self.data["card"],
        )
        return with_defaults(
            deployment,
            self.model,
            chunk=flags.get("chunk"),
            sequences=flags.get("max_num_seqs"),
            fraction=flags.get("fraction"),
        )


RECEIPTS = tuple(Receipt(number, data) for number, data in enumerate(json.loads(FILE.read_text())))
