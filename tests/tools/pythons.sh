#!/usr/bin/env bash
# Run the unit tests on every CPython of the given versions that this machine has.
# usage: pythons.sh 3.10 3.11 ...     environment: GPUWATCH_CACHE (default: .cache of the checkout)
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cache=${GPUWATCH_CACHE:-$root/.cache}

find_python() {
  local candidate
  for candidate in "python$1" "$HOME"/.pyenv/versions/"$1".*/bin/python /usr/bin/python"$1"; do
    if candidate=$(command -v "$candidate") && "$candidate" -c \
      "import sys; sys.exit(sys.version_info[:2] != tuple(map(int, '$1'.split('.'))))" 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
}

failed=()
for version in "$@"; do
  python=$(find_python "$version")
  if [ -z "$python" ]; then
    echo "== Python $version: not on this machine"
    continue
  fi
  venv=$cache/python-$version
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check -e "$root[dev]"
  echo "== Python $version: $("$venv/bin/python" --version)"
  (cd "$root" && bash tests/tools/pytest_twice.sh "$venv/bin/python" "$venv/pytest" tests/unit -n 4) ||
    failed+=("$version")
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed on: ${failed[*]}" >&2
  exit 1
fi
