#!/bin/bash

# Parameters
#SBATCH --account=project_1
#SBATCH --cpus-per-task=7
#SBATCH --error=/runs/0123/slurm/%j_0_log.err
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --job-name=pww-0123
#SBATCH --mem=0
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --open-mode=append
#SBATCH --output=/runs/0123/slurm/%j_0_log.out
#SBATCH --partition=standard-g
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
srun --unbuffered --output /runs/0123/slurm/%j_%t_log.out --error /runs/0123/slurm/%j_%t_log.err --cpus-per-task=7 --cpu-bind=mask_cpu:0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000,0xfe,0xfe00,0xfe00000000,0xfe0000000000 --distribution=block:block --kill-on-bad-exit=1 bash launch/site/lumi.sh singularity exec /scratch/project_1/someone/pww/pww.sif python -m pww.worker /runs/0123
