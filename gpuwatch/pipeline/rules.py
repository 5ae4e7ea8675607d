"""The rules in use: the shipped ones with those of the configuration over them."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.alerts.rulefile import load, shipped_paths

if TYPE_CHECKING:
    from gpuwatch.alerts.rulefile import RuleSet
    from gpuwatch.config import Config

log = logging.getLogger(__name__)


def own_paths(config: Config) -> tuple[Path, ...]:
    """Return the user's rule files that `config` names. ``~`` is the home directory."""
    return tuple(Path(os.path.expanduser(name)) for name in config.rules)  # noqa: PTH111  # Path raises without a home


def rules_in_use(config: Config) -> RuleSet:
    """Load the shipped rules and those that `config` names; problems are in the set."""
    return load(shipped_paths(), own_paths(config))


def load_rules(config: Config) -> RuleSet:
    """Load the rules in use; problems are in the set and said on stderr."""
    rules = rules_in_use(config)
    for problem in rules.problems:
        log.error("%s", problem)
    return rules
