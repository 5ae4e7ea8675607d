"""Let the description of every shipped alert end with what gpuwatch itself says: cause, and the first change to make.

The text is looked up in ``gpuwatch_finding_info`` when the alert is rendered; without such a series nothing is added.
A label that an alert does not have is empty in Prometheus and nil in vmalert; ``or`` makes it empty in both.

usage: python tests/tools/rule_annotations.py [--check]
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_LOOK_UP = 'query (printf "gpuwatch_finding_info{{id=%q,cluster=%q,host=%q,server=%q,uuid=%q}}" "{id}"'
_TEXT = (
    "{{ with "
    + _LOOK_UP.replace("{{", "{").replace("}}", "}")
    + ' (or $labels.cluster "") (or $labels.host "") (or $labels.server "") (or $labels.uuid "")) }}'
    "{{ with first . }} Cause: {{ .Labels.cause }}"
    "{{ if .Labels.advice }} Change: "
    "{{ if .Labels.flag }}{{ .Labels.flag }}{{ if .Labels.from }} {{ .Labels.from }}{{ end }}"
    "{{ if .Labels.to }} → {{ .Labels.to }}{{ end }}: {{ end }}{{ .Labels.advice }}{{ end }}{{ end }}{{ end }}"
)
_DIAGNOSIS = re.compile(r"^\s+diagnosis: (\w+)\s*$")
_DESCRIPTION = re.compile(r"^(\s+description: ')(.*?)( ?\{\{ with query \(printf \"gpuwatch_finding_info.*)?'\s*$")


def told(diagnosis: str) -> str:
    """Return what the description of an alert with this finding id ends with."""
    return _TEXT.replace("{id}", diagnosis)


def annotated(text: str, name: str) -> str:
    """Return a rule file with the ending of every description renewed."""
    out, diagnosis = [], ""
    for line in text.splitlines():
        found = _DIAGNOSIS.match(line)
        if found:
            diagnosis = found[1]
        described = _DESCRIPTION.match(line)
        if described:
            if not diagnosis:
                raise SystemExit(f"{name}: a description without a diagnosis before it: {line.strip()}")
            out.append(f"{described[1]}{described[2]}{told(diagnosis)}'")
            diagnosis = ""
        elif re.match(r"^\s+description:", line):
            raise SystemExit(f"{name}: a description is not one line in single quotes: {line.strip()}")
        else:
            out.append(line)
    return "\n".join(out) + "\n"


def main() -> int:
    """Renew, or with ``--check`` only compare; 1 when a file differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    differs = False
    for path in sorted((ROOT / "rules").glob("*.yml")):
        before = path.read_text(encoding="utf-8")
        after = annotated(before, path.name)
        differs = differs or after != before
        if not options.check and after != before:
            path.write_text(after, encoding="utf-8")
    return 1 if differs and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
