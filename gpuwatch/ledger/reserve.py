"""SGLang's own ``--mem-fraction-static``: the part of a card that what it sets aside leaves, by version.

Sources: ``srt/server_args.py`` of 0.4.8 to 0.5.12 and ``arg_groups/memory_hook.py``, ``arg_groups/cuda_graph_hook.py``
of 0.5.23; pull requests 6881 (towers), 10975 (the sum of 0.5.3) and 29615 (graphs that are off).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.units import GIB, MIB

if TYPE_CHECKING:
    from gpuwatch.ledger.budget import Deployment
    from gpuwatch.ledger.model import Model

COMPUTED_SINCE = (0, 4, 8)
"""Before that the share goes by the tensor ranks alone."""
SUMMED_SINCE = (0, 5, 3)
"""What is set aside is a sum over the launch; before that it goes by the size of the card."""
PREFILL_GRAPHS_SINCE = (0, 5, 10)
"""Graphs of prefill are captured without being asked for."""
PHASES_SINCE = (0, 5, 14)
"""Graphs are configured by phase: what is off takes nothing, and those of prefill allow DP attention."""
DRAFTS_UNTIL = (0, 5, 12)
"""Up to here drafting has a reserve of its own."""
TOWERS_SINCE, ONE_FACTOR_SINCE = (0, 5), (0, 4, 7)
"""Models with a vision tower get less by its size; before that, all of them nine tenths. Earlier ones are not known."""
TEXT_ONLY = ("gemma3forconditionalgeneration", "llama4forconditionalgeneration", "step3vlforconditionalgeneration")
"""Architectures of text and images that serve text alone unless ``--enable-multimodal`` is given."""
BIG = 61440
"""MiB of a card above which at least `LEAST` are set aside."""
LEAST = 10240
_BY_RANKS = {1: 0.88, 2: 0.87, 4: 0.85, 8: 0.81}
_MORE_RANKS = 0.79
_BY_CARD = ((35, 2.8, 0.1), (90, 9.5, 0.5), (160, 12.0, 0.5))
"""(below so many GiB, GiB set aside, and more for each rank)"""
_LARGEST_CARDS = 32 * 1024
_GRAPH_BATCHES = ((20, 8, 8), (35, 48, 80), (60, 32, 160), (160, 256, 512))
"""(below so many GiB, batch with fewer than four ranks, with four and more)"""
_PREFILL_SIZES = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256))
"""Ranges of the numbers of tokens whose prefill is captured; above them it is every 512."""
_VIT_LAYERS, _VIT_WIDTH = 24, 1024


def sglang_fraction(deployment: Deployment, model: Model) -> float:
    """Return the share of the memory that was free before loading which weights and pool may have."""
    version = deployment.version
    if version and version < COMPUTED_SINCE:
        return _BY_RANKS.get(deployment.tp, _MORE_RANKS) * _tower_factor(deployment, model)
    memory = deployment.capacity / MIB
    earlier = bool(version) and version < SUMMED_SINCE
    aside = _by_card(deployment) if earlier else _summed(deployment, model)
    return max(0.1, round((memory - aside) / memory, 3) * _tower_factor(deployment, model))


def sees_images(deployment: Deployment, model: Model) -> bool:
    """Return whether SGLang takes the model for one of several kinds of input."""
    told = deployment.multimodal or model.architecture.lower() not in TEXT_ONLY
    return model.vision is not None and deployment.towers and told


def _by_card(deployment: Deployment) -> float:
    """Return the MiB that versions before 0.5.3 set aside."""
    gib, ranks = deployment.capacity / GIB, deployment.tp * deployment.pp
    aside = next(((base + each * ranks) * 1024 for limit, base, each in _BY_CARD if gib < limit), _LARGEST_CARDS)
    return aside + _drafts(deployment) + (4096 if deployment.dp_attention > 1 else 0)


def _summed(deployment: Deployment, model: Model) -> float:
    """Return the MiB that versions from 0.5.3 on set aside."""
    version = deployment.version
    by_phase = not version or version >= PHASES_SINCE
    batch = graph_batch(deployment)
    aside = 512 + 1.5 * max(deployment.chunk, 2048) + deployment.tp * deployment.pp / 8 * 1024
    if not (by_phase and deployment.eager):
        aside += 2 * batch
    if deployment.dp_attention > 1:
        aside += (3 if batch <= 300 else 4.5) * batch * deployment.dp_attention
    if _captures_prefill(deployment, model):
        aside += 1536 if any(group.kind == "mla" for group in model.layers) else 8 * _prefill_sizes(deployment.chunk)
    if deployment.capacity / MIB > BIG:
        aside = max(aside, LEAST)
    if version and version[:3] <= DRAFTS_UNTIL:
        return aside + _drafts(deployment)
    return aside + (2048 if deployment.deepep and not deployment.eager else 0)


def _drafts(deployment: Deployment) -> int:
    """Return the MiB for a draft model and its graphs."""
    algorithm = deployment.speculation.upper()
    if algorithm == "STANDALONE":
        return 6144
    return 2048 if algorithm and algorithm not in ("NGRAM", "LOOKAHEAD") else 0


def _captures_prefill(deployment: Deployment, model: Model) -> bool:
    """Return whether graphs of prefill are captured where nothing is said about them."""
    version = deployment.version
    if (version and version < PREFILL_GRAPHS_SINCE) or deployment.eager or sees_images(deployment, model):
        return False
    if deployment.pp > 1 or deployment.dcp > 1:
        return False
    return not version or version >= PHASES_SINCE or deployment.dp_attention == 1


def _prefill_sizes(chunk: int) -> int:
    sizes = [size for first, end, step in _PREFILL_SIZES for size in range(first, end, step)]
    return sum(size <= chunk for size in sizes) + len(range(4608, chunk + 1, 512))


def graph_batch(deployment: Deployment) -> int:
    """Return the largest batch that SGLang captures a decode graph for."""
    gib, many = deployment.capacity / GIB, deployment.tp >= 4
    for limit, few_ranks, many_ranks in _GRAPH_BATCHES:
        if gib < limit:
            return many_ranks if many else few_ranks
    return 512


def _tower_factor(deployment: Deployment, model: Model) -> float:
    """Return what the share of a model with a vision tower is multiplied by.

    A tower of ViT-L's size (24 layers of 1,024) leaves 0.95, and a tenth of it less for each further size of that.
    """
    version = deployment.version
    if model.vision is None or not sees_images(deployment, model) or (version and version < ONE_FACTOR_SINCE):
        return 1.0
    if version and version < TOWERS_SINCE:
        return 0.9
    layers, width = model.vision
    sizes = layers * width**2 / (_VIT_LAYERS * _VIT_WIDTH**2)
    return 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (sizes - 1.0)))
