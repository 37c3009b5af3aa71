#!/bin/bash

# Parameters
#SBATCH --account=project_1
#SBATCH --cpus-per-task=7
#SBATCH --error=/runs/0123/slurm/%j_0_log.err
#SBATCH --gpus-per-node=1
#SBATCH --job-name=pww-0123
#SBATCH --mem=0
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/runs/0123/slurm/%j_0_log.out
#SBATCH --partition=small-g
#SBATCH --signal=USR2@120
#SBATCH --time=01:00:00

# setup
cd /clone
export OMP_NUM_THREADS=7
export HF_HUB_OFFLINE=1
module load LUMI partition/G
export NCCL_SOCKET_IFNAME=hsn

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /runs/0123/slurm/%j_%t_log.out --error /runs/0123/slurm/%j_%t_log.err --cpus-per-task=7 --cpu-bind=cores --distribution=block:block --kill-on-bad-exit=1 bash launch/site/lumi.sh singularity exec /scratch/project_1/someone/pww/pww.sif python -m pww.worker /runs/0123
