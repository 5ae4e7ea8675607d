"""What the files of one incident say: the inputs, and the facts, events and samples that were read from them.

Conventions between whoever reads files and the causes that judge them:

* Every line of every text file is classified with `engines.logs.classify`, whatever the file is as a whole: pastes mix
  engine logs with the output of ``ps``, ``df``, ``top`` and ``nvidia-smi``.
* `facts` are all facts in the order in which they were read, per file, repeated values left out: a fact ``started``
  begins a new run of the server of that file, and a run may differ from the one before it. What one rank printed has
  the key ``KEY.RANK`` (``weights.bytes.TP1``) beside the plain key.
* A launch command, from a file or from ``--flags``, is a fact ``command`` with its whole text, beside ``flag.NAME``.
* A statistics line is an event ``stats`` whose fields are the groups of its pattern and ``pattern``, the pattern's name
  (``stats``, ``sgl_decode``, …). Of many, the first and the last of each run, those with the extremes, and enough in
  between to see the course are kept.
* `samples` have the labels of `gpuwatch.series`; a GPU of nvidia-smi is ``gpu="0"``, with its ``uuid`` where it is
  printed. A process on a GPU is ``gpuwatch_gpu_process_memory_bytes{gpu, pid, process}``.
* The time of an event or sample is 0 where none was printed; samples of one path are in the order of time all the same.
* Of very many events of one kind the first and the last are kept; the fact ``count.EVENT`` is how many there were. An
  event has fields ``process`` (vLLM's process tag or the ranks) and ``repeat`` (lines that Ray left out), where there
  is one.
* ``env.NAME`` is a setting of the environment (``set`` for secrets), ``absent.SERIES.GPU`` what nvidia-smi printed
  instead of a value (``N/A``, ``Insufficient Permissions``), ``nvidia_smi.processes`` the number of processes listed,
  ``nvidia_smi.display`` a display server of WSL among them.
* ``page.engine`` (empty where a page has no engine's metrics), ``page.names`` (family names with prefix, separated by
  spaces) and ``page.pids`` (different ``pid`` labels of one series) describe a saved metrics page;
  ``page.absent.SERIES`` is why a series is missing from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.model import Fact, Labels, LogEvent


@dataclass(frozen=True, slots=True)
class Input:
    """One file as read. `kind` is one of the kinds of the JSON output; `note` says what could not be read, and why."""

    path: str
    kind: str
    engine: str = ""
    engine_version: str = ""
    lines: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Incident:
    """Everything that the files of one incident say.

    `facts` have the key names of `engines.facts`, the path as source and 1-based lines. `events` are in order of time,
    then of file and line. `samples` are (path, labels, value, time in milliseconds) of saved metrics pages and
    nvidia-smi. `config` is a model's ``config.json``.
    """

    inputs: tuple[Input, ...]
    facts: tuple[Fact, ...]
    events: tuple[LogEvent, ...]
    samples: tuple[tuple[str, Labels, float, int], ...] = ()
    config: Mapping[str, object] | None = None
