#!/usr/bin/env bash
# Usage: install_evalscope.sh VENV: `evalscope perf` in a virtual environment of its own. Does nothing when it is there and works.
set -euo pipefail
venv=${1:?usage: install_evalscope.sh VENV}
version=${EVALSCOPE_VERSION:-1.14.1}
made=$venv/.evalscope-$version # written last: a half-made environment is made again

[ -f "$made" ] && exit 0
echo "Installing evalscope $version into $venv (under 1 GB, a minute or two)"
"${PYTHON:-python3}" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "evalscope[perf]==$version"
"$venv/bin/evalscope" perf --help >/dev/null
touch "$made"
