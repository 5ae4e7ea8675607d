"""What a person should know about a plan, beside its figures: a sentence each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.engines.flag_versions import unknown_flag
from gpuwatch.ledger.budget import activation_bytes, encoder_bytes
from gpuwatch.ledger.fraction import SYSTEM_BYTES, fraction_flag, highest_fraction
from gpuwatch.ledger.lengths import allowed_length
from gpuwatch.ledger.starts import most_sharing
from gpuwatch.ledger.weights import padding_bytes, triton_saving
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from gpuwatch.ledger.budget import Deployment
    from gpuwatch.ledger.need import Engine

"""What the operating system and other programs need of a memory that they share with the GPU."""
LEAST_PADDING = 0.05 * GIB
"""Less of it is not worth a note."""


def notes_of(engine: Engine) -> list[str]:
    """Return what a person should know about a plan, a sentence each."""
    model, deployment = engine.model, engine.deployment
    notes = list(model.notes)
    heads = model.kv_heads
    reach = heads * deployment.dcp  # ranks that share a context hold different tokens of the same heads
    if model.attention and model.attention[0].kind != "mla" and 0 < reach < deployment.attention_tp:
        copied = (
            f"{heads} KV heads on {deployment.attention_tp} ranks: heads are copied, so KV per card stops shrinking"
        )
        notes.append(f"{copied} beyond {reach}{_sharing_hint(engine)}")
    notes += _latent_notes(engine)
    allowed = allowed_length(model, deployment.engine, deployment.version)
    if allowed and deployment.context > allowed and deployment.longer_allowed:
        notes.append(
            f"{deployment.context:,} tokens are beyond the {allowed:,} that the model's config gives, and forced: "
            "answers degrade without an error"
        )
    if deployment.kv_dtype.startswith("fp8"):
        notes.append("FP8 KV loses exact digit strings first; check with calibrated scales before relying on it")
    if deployment.kv_dtype.startswith(("turboquant", "octave")):
        notes.append(f"not counted: what {deployment.kv_dtype} saves; its KV cache is counted as 16-bit")
    if deployment.kv_dtype in ("int4", "nvfp4", "fp4"):
        notes.append(
            "4-bit KV needs scales beside the elements and a working copy during prefill where no kernel reads it"
        )
    notes += _group_notes(engine)
    notes += _memory_notes(deployment)
    if model.quantisation is not None and not model.quantisation.known:
        words = f"the quantisation {model.quantisation.method!r} is not known, or its bits are only in the checkpoint"
        notes.append(f"{words}: weights are counted as 16-bit (--weights, --weights-bytes)")
    padded = 0.0 if engine.weights_bytes else padding_bytes(model, deployment.split, deployment.loading)
    if padded >= LEAST_PADDING:
        words = "MXFP4 experts are counted with the padding of Marlin's and TensorRT-LLM's kernels"
        less = triton_saving(model, deployment.split, deployment.loading) / GIB
        notes.append(f"{words}; on Hopper (H100, H200), where vLLM uses Triton's, they take about {less:.1f} GiB less")
    notes += _tower_notes(engine)
    if model.uncounted:
        notes.append(f"not counted: {', '.join(model.uncounted)}; the sums are lower bounds")
    if model.missing:
        notes.append(f"missing in the config: {', '.join(model.missing)}; what needs them is not computed")
    return notes


def _latent_notes(engine: Engine) -> list[str]:
    """Say where an engine keeps keys and values of a model with latent attention."""
    group = next((group for group in engine.model.attention if group.latent and group.kind != "mla"), None)
    if group is None:
        return []
    times = group.kv_heads * 2 * group.head_dim / group.latent
    words = f"vLLM {engine.deployment.version_text} keeps keys and values of each of {group.kv_heads} heads"
    return [f"{words} of this model, not its latent entry: {times:.0f} times the KV cache"]


def _tower_notes(engine: Engine) -> list[str]:
    """Say what of the towers is estimated, and what is not counted."""
    notes = []
    peak = encoder_bytes(engine.model, engine.deployment)
    if peak and peak >= activation_bytes(engine.model, engine.deployment):
        words = f"the {peak / GIB:.1f} GiB of activations are an estimate of the longest image or video"
        notes.append(
            f"{words}: starts with half of it were seen, whose pool is larger, and of videos with half as much more, "
            "whose pool is smaller"
        )
    if not engine.model.tower_known:
        notes.append("a vision or audio tower is in the config without its sizes: its weights are not counted")
    return notes


def _group_notes(engine: Engine) -> list[str]:
    """Say what data-parallel groups share."""
    deployment = engine.deployment
    if deployment.dp_attention > 1:
        words = f"DP attention: {deployment.dp_attention} groups of {deployment.attention_tp} of the {deployment.tp}"
        return [f"{words} tensor-parallel ranks, each with a pool of its own; a request sees one of them"]
    if deployment.dp == 1:
        return []
    cards = "1 card" if deployment.ranks == 1 else f"{deployment.ranks} cards"
    words = f"{deployment.dp} data-parallel groups of {cards}, each with a pool of its own"
    if deployment.sharing_dp > 1:
        return [f"{words}; they divide the experts among them and copy everything else"]
    return [words]


def _sharing_hint(engine: Engine) -> str:
    """Return the advice to share contexts between copies; empty where vLLM takes no more than there is."""
    deployment = engine.deployment
    most = most_sharing(engine.model, deployment)
    flag = "decode-context-parallel-size"
    lacking = unknown_flag(deployment.engine, deployment.version_text, flag) is not None
    if deployment.engine != "vllm" or lacking or most <= deployment.dcp or deployment.dp_attention > 1:
        return ""
    return f"; --{flag} {most} would use the copies"


def _memory_notes(deployment: Deployment) -> list[str]:
    """Return what is special about the memory: a part of a card, one pool with the host, or parts in host memory."""
    notes = []
    if deployment.mig:
        notes.append("MIG slices have no peer-to-peer: each is a replica of its own, and its memory is not shared")
    if deployment.unified:
        flag, most = f"--{fraction_flag(deployment.engine)}", highest_fraction(deployment)
        words = (
            f"unified memory: the system and every program take theirs from the same {deployment.capacity / GIB:.0f}"
        )
        notes.append(f"{words} GiB; keep {SYSTEM_BYTES / GIB:.0f} GiB for them ({flag} {most:.2f} at most)")
    if deployment.host_weights:
        words = f"{deployment.host_weights / GIB:.1f} GiB of weights of each rank stay in host memory"
        notes.append(f"{words}: every step reads them over PCIe, which costs most of the speed")
    if deployment.host_cache:
        notes.append(
            f"{deployment.host_cache / GIB:.1f} GiB of host memory keep KV blocks for later requests: more prefix "
            "hits, not more requests at once"
        )
    return notes
