#!/usr/bin/env bash
# Checks gpuwatch on a machine with a real NVIDIA GPU and torch. Needs no network and at most five minutes.
#
#   tests/gpu/check.sh                 writes what it saw to the current folder
#   OUT=DIR tests/gpu/check.sh         ... to DIR
#   PYTHON=python3.11 tests/gpu/check.sh
#   WHEELS=DIR tests/gpu/check.sh      unpacks the wheels of missing packages from DIR into OUT (no pip, no network)
#
# Exit status: 0 all checks passed, or there is no NVIDIA GPU; 1 a check failed; 2 something needed is missing.
set -u

root=$(cd "$(dirname "$0")/../.." && pwd)
out=${OUT:-.}
python=${PYTHON:-python3}
wheels=${WHEELS:-}
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
here=$root/tests/gpu
failed=0
background=()

say() { printf '%s\n' "$*" | tee -a "$out/check.txt"; }

# shellcheck disable=SC2329  # the trap calls it
finish() {
    for pid in "${background[@]+"${background[@]}"}"; do
        kill "$pid" 2>/dev/null
    done
}
trap finish EXIT

: > "$out/check.txt"
if ! command -v nvidia-smi > /dev/null 2>&1 || ! timeout 30 nvidia-smi -L > "$out/nvidia-smi-L.txt" 2>&1 ||
    ! grep -q '^GPU ' "$out/nvidia-smi-L.txt"; then
    say "skipped: no NVIDIA GPU"
    exit 0
fi
say "GPUs: $(tr '\n' ';' < "$out/nvidia-smi-L.txt")"
timeout 60 nvidia-smi -q > "$out/nvidia-smi-q.txt" 2>&1

command -v "$python" > /dev/null 2>&1 || { say "missing: $python (set PYTHON)"; exit 2; }
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONDONTWRITEBYTECODE=1
if [ -n "$wheels" ]; then
    # A wheel is a zip file; what the machine has itself keeps its place in front of it.
    mkdir -p "$out/site"
    "$python" - "$wheels" "$out/site" << 'PY' || exit 2
import pathlib, sys, zipfile
for wheel in sorted(pathlib.Path(sys.argv[1]).glob("*.whl")):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(sys.argv[2])
PY
    export PYTHONPATH="$PYTHONPATH:$out/site"
fi
if ! "$python" "$here/needs.py" > "$out/needs.txt" 2>&1; then
    say "$(cat "$out/needs.txt")"
    exit 2
fi

run() { # name, seconds, highest good status, command...: runs it, keeps its output, notes a failure
    local name=$1 limit=$2 good=$3 status
    shift 3
    timeout -k 5 "$limit" "$@" > "$out/$name.out" 2> "$out/$name.err"
    status=$?
    if [ "$status" -le "$good" ]; then
        say "ok      $name"
    else
        say "FAILED  $name: status $status: $(tail -q -n 3 "$out/$name.err" "$out/$name.out" | tr '\n' ' ')"
        failed=1
    fi
}

run doctor 60 0 "$python" -m gpuwatch doctor --json
run against-nvidia-smi 60 0 "$python" "$here/against_smi.py"

if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' > "$out/torch.err" 2>&1; then
    timeout -k 5 100 "$python" "$here/watch_memory.py" 45 > "$out/memory.json" 2> "$out/memory.err" &
    background+=("$!")
    timeout -k 5 90 "$python" "$here/torch_load.py" > "$out/torch.json" 2>> "$out/torch.err" &
    background+=("$!")
    # Status 1 means that there are findings, which is fine here: the load leaves little room on a small card.
    run check 80 1 "$python" -m gpuwatch check --for 30 --json
    for pid in "${background[@]}"; do
        wait "$pid" || { say "FAILED  background program: see $out/memory.err and $out/torch.err"; failed=1; }
    done
    background=()
    run peak-seen 30 0 "$python" "$here/peak_seen.py" "$out/torch.json" "$out/memory.json"
else
    say "skipped: torch with CUDA is not importable by $python; no memory peak, no fragmented pool"
fi

say "$([ "$failed" -eq 0 ] && echo 'all checks passed' || echo 'some checks failed'); details in $out"
exit "$failed"
