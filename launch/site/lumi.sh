#!/usr/bin/env bash
# Wraps one rank on LUMI: bash launch/site/lumi.sh COMMAND...
# MIOpen keeps its tuned kernels in $HOME by default, where the ranks of a node corrupt each other's cache (and the quota is
# small). Each rank gets a node-local folder of its own; the variables reach the container since Singularity passes them.
set -euo pipefail
cache="/tmp/${USER:-user}-miopen-${SLURM_JOB_ID:-0}-${SLURM_PROCID:-0}"
mkdir -p "$cache"
export MIOPEN_USER_DB_PATH="$cache" MIOPEN_CUSTOM_CACHE_DIR="$cache"
exec "$@"
