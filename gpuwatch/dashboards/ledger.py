"""The GPU memory ledger: what each byte of a card is for, how close the last peak came, and what engines state."""

from __future__ import annotations

from gpuwatch.dashboards.model import CLUSTER, GPU, HOST, Column, Dashboard, Panel, Row, Series
from gpuwatch.dashboards.shared import CARD, HEADROOM, LEDGER

_PARTS = (
    ("ledger_weights", "weights", "#5794F2"),
    ("ledger_kv_used", "KV used", "#FADE2A"),
    ("ledger_kv_free", "KV free", "#FFF8B8"),
    ("ledger_kv_pool", "KV pool (several ranks)", "#F2CC0C"),
    ("ledger_work", "activations and graphs", "#B877D9"),
    ("ledger_rest", "contexts, communication", "#8F8F9E"),
    ("ledger_engine", "engine, not stated", "#3AA8C1"),
    ("ledger_other", "other processes", "#FF9830"),
    ("ledger_unexplained", "unexplained", "#F2495C"),
    ("ledger_reserved", "driver", "#58595B"),
    ("ledger_free", "free", "#37872D"),
)

_NOW = Row(
    "Where the memory is",
    (
        Panel(
            "barchart",
            "Memory of each GPU now",
            "One bar for each GPU. Weights, KV pool, activations and graphs are what the engine printed; the rest of "
            "its processes' memory is contexts and communication, or, where it prints no weights or pool, not divided. "
            "Unexplained memory is normal inside a container, which does not see the processes of others.",
            tuple(Series(query, name, colour) for query, name, colour in _PARTS),
            width=12,
            height=12,
            by=("cluster", "host", "gpu"),
        ),
        Panel(
            "timeseries",
            "Memory of the selected GPUs over time",
            "The same parts, added up over the GPUs that are selected above. Select one GPU to see it alone.",
            tuple(Series(query, name, colour, total=True) for query, name, colour in _PARTS),
            width=12,
            height=12,
            stacked=True,
        ),
    ),
)

_PEAKS = Row(
    "How close it came",
    (
        Panel(
            "timeseries",
            "Headroom at the last peak",
            "Part of the memory that was left at the peak of the last minute, read ten times a second. The next peak "
            "needs it.",
            (Series("gpu_headroom", CARD),),
            limits=(HEADROOM,),
        ),
        Panel(
            "timeseries",
            "Used, and peak of the last minute",
            "Dashed: the peak. An engine that allocates its pool in advance is flat; a growing line is something else.",
            (Series("gpu_memory_used", CARD), Series("gpu_memory_peak", f"peak {CARD}", dashed=True)),
            bottom=None,
        ),
        Panel(
            "timeseries",
            "Memory taken and given back",
            "Most memory that came and went within a minute: what prefill, sampling and other short work needs. "
            "Headroom must be larger.",
            (Series("gpu_transient", CARD),),
        ),
        Panel(
            "timeseries",
            "Other processes",
            "Visible processes that belong to no known engine: a second engine that starts, an orphan, a notebook.",
            (Series("gpu_memory_other", CARD),),
        ),
        Panel(
            "timeseries",
            "No visible process",
            "Memory that no visible process owns: other containers, or processes that died and still hold it.",
            (Series("gpu_memory_unattributed", CARD),),
        ),
        Panel(
            "timeseries",
            "Memory bandwidth busy",
            "Share of time memory was read or written: decoding is bound by it.",
            (Series("gpu_bandwidth_busy", CARD),),
            top=1,
        ),
    ),
)

_CARDS = Row(
    "Cards and statements",
    (
        Panel(
            "table",
            "Cards",
            "Every GPU with what is used, what was left at the last peak, and its link.",
            (
                Series("gpu_memory_total", "memory"),
                Series("gpu_memory_used", "used"),
                Series("gpu_memory_peak", "peak of the minute"),
                Series("gpu_headroom", "headroom"),
                Series("gpu_temperature", "temperature"),
                Series("gpu_power", "power"),
                Series("gpu_power_limit", "power limit"),
                Series("gpu_pcie_width", "PCIe lanes"),
                Series("gpu_pcie_width_max", "lanes possible"),
            ),
            width=24,
            height=8,
            by=("cluster", "host", "gpu", "uuid"),
            columns=(Column("uuid", 330), Column("headroom", 0, (HEADROOM,))),
            sort="used",
        ),
        Panel(
            "table",
            "What engines state, for each GPU",
            "As the engine printed it at start. Empty: it did not print it, or its log is not read.",
            (
                Series("weights", "weights"),
                Series("kv_cache_bytes", "KV pool"),
                Series("activation_peak", "activation peak"),
                Series("graph_bytes", "graphs"),
                Series("memory_fraction", "memory fraction"),
            ),
            width=24,
            height=6,
            by=("cluster", "host", "server", "engine_kind"),
            columns=(Column("engine", 160),),
        ),
    ),
)

DASHBOARD = Dashboard(
    LEDGER,
    "gpuwatch / GPU memory ledger",
    "What each byte of a GPU is for, how close the last peak came, and what the engines state.",
    (CLUSTER, HOST, GPU),
    (_NOW, _PEAKS, _CARDS),
)
