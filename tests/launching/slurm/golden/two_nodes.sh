#!/bin/bash

# Parameters
#SBATCH --array=0-1%2
#SBATCH --cpus-per-task=8
#SBATCH --error=SWEEP/submissions/001/submitit/%A_%a_0_log.err
#SBATCH --gpus-per-node=1
#SBATCH --job-name=two-001
#SBATCH --mem=64G
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=SWEEP/submissions/001/submitit/%A_%a_0_log.out
#SBATCH --requeue
#SBATCH --signal=USR2@120
#SBATCH --time=240

# setup
export PYTHONPATH=PACKAGE${PYTHONPATH:+:$PYTHONPATH}
export HF_HUB_OFFLINE=1

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output SWEEP/submissions/001/submitit/%A_%a_%t_log.out --error SWEEP/submissions/001/submitit/%A_%a_%t_log.err --export=ALL --cpus-per-task=8 sh -c 'trap "" USR2; env --block-signal=USR2 true 2>/dev/null && exec env --block-signal=USR2 "$@"; exec "$@"' sh PYTHON -u -m scalerlt.launching.slurm.job SWEEP/submissions/001/submitit
