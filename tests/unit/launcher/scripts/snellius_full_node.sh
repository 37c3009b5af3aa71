#!/bin/bash

# Parameters
#SBATCH --cpus-per-task=16
#SBATCH --error=/runs/0123/slurm/%j_0_log.err
#SBATCH --gpus-per-node=4
#SBATCH --job-name=pww-0123
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --open-mode=append
#SBATCH --output=/runs/0123/slurm/%j_0_log.out
#SBATCH --partition=gpu_h100
#SBATCH --signal=USR2@120
#SBATCH --time=01:00:00

# setup
cd /clone
export OMP_NUM_THREADS=16
export HF_HUB_OFFLINE=1
module purge
source launch/site/snellius.sh

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /runs/0123/slurm/%j_%t_log.out --error /runs/0123/slurm/%j_%t_log.err --cpus-per-task=16 --cpu-bind=cores --distribution=block:block --kill-on-bad-exit=1 $HOME/venvs/pww/bin/python -m pww.worker /runs/0123
