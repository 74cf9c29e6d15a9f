#!/usr/bin/env bash
# A DCP group of four ranks with a GPU each; rank 0 writes the results:
#   sbatch examples/slurm/ranks.sh dcp
# On CPUs: TRANSPORT=mpi DEVICE=cpu sbatch --gpus-per-task=0 examples/slurm/ranks.sh dcp
#SBATCH --job-name=attnbench-ranks
#SBATCH --ntasks=4
#SBATCH --gpus-per-task=1
#SBATCH --gpu-bind=none
#SBATCH --cpus-per-task=16
#SBATCH --time=01:00:00
set -euo pipefail
# pmix is what Open MPI speaks; `srun --mpi=list` shows what this cluster has.
exec srun --mpi=pmix attnbench run "${@:-dcp}" --set "dcp.transport=${TRANSPORT:-nccl}" \
  --device "${DEVICE:-cuda}" --threads "${SLURM_CPUS_PER_TASK:-1}" --no-progress --json ranks.json
