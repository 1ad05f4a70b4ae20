#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Submits a fit in parts to Slurm: two arrays of one task a part, each followed by a job that adds up. slurm.sh [OPTION of
# sbatch ...], for example: PARTS=parts WORK=work MODEL=model scripts/cluster/slurm.sh --gpus-per-task 1 --time 1:00:00
# Environment: that of map_reduce.sh, which every job runs. oscar must be in PATH on the machines. Prints the last job's id.
set -euo pipefail
step=$(readlink -f "$(dirname "$0")/map_reduce.sh")
: "${PARTS:?a folder with one entry for each part}" "${WORK:?a folder that all machines share}"
export PARTS WORK
entries=("$PARTS"/*)
array=0-$((${#entries[@]} - 1))
mkdir -p "$WORK/log"

# submit NAME DEPENDENCY COMMAND OPTION...
submit() {
  local name=$1 after=$2 command=$3
  shift 3
  sbatch --parsable --export=ALL --job-name "oscar-$name" --output "$WORK/log/$name-%a.txt" --kill-on-invalid-dep=yes \
    ${after:+--dependency "afterok:$after"} "$@" --wrap "$command"
}

# The variable is the task's, not this script's.
# shellcheck disable=SC2016
index='"$SLURM_ARRAY_TASK_ID"'
first=$(submit first "" "'$step' first $index" --array "$array" "$@")
join=$(submit join "$first" "'$step' join" "$@")
second=$(submit second "$join" "'$step' second $index" --array "$array" "$@")
submit reduce "$second" "'$step' reduce" "$@"
