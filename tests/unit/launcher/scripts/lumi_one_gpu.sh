#!/bin/bash

# Parameters
#SBATCH --account=project_1
#SBATCH --cpus-per-task=7
#SBATCH --gpus-per-node=1
#SBATCH --job-name=pww-0123
#SBATCH --mem=0
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/runs/0123/slurm/%j_batch.log
#SBATCH --partition=small-g
#SBATCH --requeue
#SBATCH --signal=USR2@120
#SBATCH --time=01:00:00

# setup
runs=(/runs/0123)
run="${runs[${SLURM_ARRAY_TASK_ID:-0}]}"
job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
mkdir -p "$run/slurm" && exec >>"$run/slurm/${job}_batch.log" 2>&1
rm -f "$run/requeue"
code=/runs/code/0f
if [ ! -f "$code/pww/worker.py" ]; then
  echo "$code: the code that was submitted is gone; submit again: resume=$run" >&2
  exit 1
fi
cd /clone || exit 1
export PYTHONSAFEPATH=1 PYTHONPATH="$code${PYTHONPATH:+:$PYTHONPATH}"
export OMP_NUM_THREADS=7
export HF_HUB_OFFLINE=1
module load LUMI partition/G
export NCCL_SOCKET_IFNAME=hsn

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --open-mode=append --output="$run/slurm/${job}_%t.log" --cpus-per-task=7 --cpu-bind=cores --distribution=block:block --kill-on-bad-exit=1 bash launch/site/lumi.sh singularity exec /scratch/project_1/someone/pww/pww.sif python -m pww.worker "$run"


# teardown
status=$?
if [ -e "$run/requeue" ]; then
  if [ "${SLURM_RESTART_COUNT:-0}" -ge 20 ]; then
    echo "stopped in time, and queued again 20 times already (launcher.requeues); go on with: resume=$run"
  elif scontrol requeue "$job"; then
    exit 0
  else
    echo "stopped in time, but not queued again; go on with: resume=$run"
  fi
fi
exit $status
