#!/usr/bin/env bash
# Builds the venv of Snellius's ranks, on a login node: bash launch/snellius/build.sh [FOLDER]     (default: $HOME/venvs/pww)
# The versions are those that pyproject.toml pins, as in LUMI's image. Again: installs only what is missing or changed.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=${1:-$HOME/venvs/pww}
refuse() { echo "build: $*" >&2; exit 1; }

[ -z "${SLURM_JOB_ID:-}" ] || refuse "SLURM_JOB_ID=$SLURM_JOB_ID: this is inside a job; downloads happen on login nodes only: run it there"
if command -v module >/dev/null 2>&1; then
  set +u; module purge; . launch/site/snellius.sh; set -u
fi
found=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || refuse "there is no python3; load a module of Python 3.12"
[ "$found" = 3.12 ] || refuse "Python $found: the ranks of both machines want 3.12; load a module that has it"
python3 - <<'PY' || refuse "pypi.org cannot be reached from here; run it on a login node, with HTTPS_PROXY set where one is needed"
import sys, urllib.request
try:
    urllib.request.urlopen(urllib.request.Request("https://pypi.org/simple/pip/", method="HEAD"), timeout=20).close()
except OSError as why:
    sys.exit(f"build: {why}")
PY
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet -e ".[train]"
"$venv/bin/pip" check
"$venv/bin/python" -c 'import torch; assert torch.version.cuda, "this torch is not built for CUDA"'
"$venv/bin/pip" list --format=freeze | tee "$venv/versions.txt"
echo "build: $venv is ready; its versions are in $venv/versions.txt"
