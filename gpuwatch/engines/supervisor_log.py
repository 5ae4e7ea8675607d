"""What kubectl and systemd print of a server that was not started, or was ended by who looks after it."""

from __future__ import annotations

from gpuwatch.engines.log_pattern import Maker, Pattern

_ANY = Maker("")

_UNIT = r"(?P<name>[\w@.:\\-]+\.(?:service|scope))"

PATTERNS: tuple[Pattern, ...] = (
    _ANY.event(
        "system_oom",
        "out_of_memory_killed",
        "Kubernetes",
        ("System OOM encountered",),
        r"(?P<scope>System OOM) encountered, victim process: (?P<name>[^,]+), pid: (?P<pid>\d+)",
    ),
    _ANY.note(
        "oomd_kill",
        "oomd_kill",
        "systemd 247-",
        ("due to memory pressure for", "due to memory used"),
        rf"Killed \S*?/{_UNIT} due to memory (?:pressure for (?P<slice>\S+) being (?P<share>[\d.]+)% > (?P<limit>[\d.]+)%"
        r"|used \(\d+\) / total)",
    ),
    _ANY.note(
        "unit_timeout",
        "unit_timeout",
        "systemd",
        ("operation timed out. ",),
        rf"{_UNIT}: (?P<what>start|stop) operation timed out\. Terminating",
    ),
    _ANY.note(
        "not_admitted",
        "not_admitted",
        "Kubernetes",
        ("requested number of devices unavailable for",),
        r"requested number of devices unavailable for (?P<what>[\w./-]+?)\. Requested: (?P<asked>\d+), "
        r"Available: (?P<free>\d+)",
    ),
    _ANY.note(
        "unschedulable_other",
        "unschedulable",
        "Kubernetes",
        (" Insufficient ",),
        r"(?P<free>\d+)/(?P<nodes>\d+) nodes are available: .*?(?P<short>\d+) Insufficient "
        r"(?P<what>memory|nvidia\.com/mig-[\w.-]*\w)",
    ),
    _ANY.note(
        "container_not_created",
        "container_not_created",
        "Kubernetes",
        ("Failed to pull image", "MountVolume.", "Unable to attach or mount volumes", "AttachVolume."),
        r"(?P<what>Failed to pull image|(?:MountVolume|AttachVolume)\.\w+ failed|Unable to attach or mount volumes)"
        r"(?P<why>.*)$",
    ),
)
"""Lines of those who start and end servers, most specific first."""
