#!/usr/bin/env bash
# A suite over eight jobs of one GPU each, and one file of all results:
#   jobs=$(sbatch --parsable examples/slurm/array.sh decode)
#   sbatch --dependency=afterok:$jobs --wrap "attnbench merge part-*.json -o all.json"
# On CPUs: sbatch --gres=none. With COSTS=earlier.json in the environment the parts take equally long by
# the times in that file.
#SBATCH --job-name=attnbench
#SBATCH --array=1-8
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=16
#SBATCH --time=02:00:00
set -euo pipefail
costs=()
[[ -z "${COSTS:-}" ]] || costs=(--part-costs "$COSTS")
exec attnbench run "${@:-decode}" --part slurm "${costs[@]}" --no-progress \
  --json "part-$SLURM_ARRAY_TASK_ID.json"
