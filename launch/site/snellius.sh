# Sourced by the batch script on Snellius, after `module purge`: the Python that the venv in $HOME/venvs/pww was built on.
module load 2024
module load Python/3.12.3-GCCcore-13.3.0
