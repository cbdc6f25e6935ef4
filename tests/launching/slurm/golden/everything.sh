#!/bin/bash

# Parameters
#SBATCH --account=physics
#SBATCH --array=0-1%1
#SBATCH --comment='two words'
#SBATCH --constraint=a100
#SBATCH --cpus-per-task=6
#SBATCH --dependency=afterok:3
#SBATCH --error=SWEEP/submissions/001/submitit/%A_%a_0_log.err
#SBATCH --exclude=n7
#SBATCH --exclusive
#SBATCH --gres=gpu:a100:2
#SBATCH --job-name=two-001
#SBATCH --mem=1536M
#SBATCH --no-requeue
#SBATCH --nodelist='n[1-4]'
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=SWEEP/submissions/001/submitit/%A_%a_0_log.out
#SBATCH --partition=main
#SBATCH --qos=high
#SBATCH --reservation=tutorial
#SBATCH --signal=USR2@60
#SBATCH --time=5

# setup
module load cuda
export PYTHONPATH=PACKAGE${PYTHONPATH:+:$PYTHONPATH}
export HF_HUB_OFFLINE=0
export NAME='a b'

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output SWEEP/submissions/001/submitit/%A_%a_%t_log.out --error SWEEP/submissions/001/submitit/%A_%a_%t_log.err --export=ALL --cpus-per-task=6 --mpi=none sh -c 'trap "" USR2; env --block-signal=USR2 true 2>/dev/null && exec env --block-signal=USR2 "$@"; exec "$@"' sh apptainer exec image.sif python -u -m scalerlt.launching.slurm.job SWEEP/submissions/001/submitit
