"""The version of an engine that the name of its image says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatch.engines.version import parse_version
from gpuwatch.ledger.defaults import NEWEST

if TYPE_CHECKING:
    from collections.abc import Sequence

_IMAGE = re.compile(
    r"(?:^|[/=])(?:(?P<owner>[\w.-]+)/)?"
    r"(?:(?P<vllm>vllm(?:-(?:openai|dev|cpu|xpu|rocm|ascend|release|repo))*)"
    r"|(?P<sglang>sglang(?:-(?:cpu|xpu|npu|rocm|dev|daily|staging))*|sgl-dev))"
    r":(?P<tag>[\w.-]+)"
)
"""Images that are called after the engine in them."""
_TAG = re.compile(r"(?:^v?|(?:vllm|sglang|sgl)[_-]v?)(?P<version>\d\.\d+(?:\.\d+)?)(?!\d)")
_OWNERS = ("vllm", "lmsysorg", "rocm", "ascend", "nvidia", "q9t5s3a7", "deep-learning-containers")
"""Those whose tags are the engine's versions, or say them beside its name."""
_FOREIGN = ("lmcache",)
"""Those that tag the engine's image with versions of their own."""


def image_version(engine: str, words: Sequence[str]) -> str:
    """Return the version of an engine that the last image among some words says; empty where none does.

    An image of an owner that is not known says it by its name (``vllm-openai``) or by its tag (``v0.11.0``), and none
    beyond the newest that is known: builds have numbers of their own.
    """
    found = (_IMAGE.search(word) for word in reversed(words))
    image = next((one for one in found if one is not None and one[engine]), None)
    tag = _TAG.search(image["tag"]) if image is not None else None
    if image is None or tag is None or image["owner"] in _FOREIGN:
        return ""
    text = tag["version"]
    if image["owner"] in _OWNERS:
        return text
    version = parse_version(text)
    says = image[engine] != engine or tag[0] != text
    return text if says and version is not None and version <= NEWEST[engine] else ""
