#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A fit of data in parts on Slurm: an array with a task for each part, which saves its statistics, and a job that makes the set
# of them when all tasks are done. slurm.sh [OPTION of sbatch ...], for example slurm.sh --gpus-per-task 1 --time 1:00:00
# Prints the id of the last job. Change these lines, or set them in the environment; oscar must be in PATH on the machines.
set -euo pipefail
PARTS=${PARTS:-parts}                         # a folder with one entry for each part, which all machines see
INPUT=${INPUT:---model model --text}          # options of the data; the last, --text, --tokens or --dump, takes a part
FIT=${FIT:---bits 2.25}                       # options of the set
WORK=${WORK:-work}                            # a folder for this fit alone, which all machines see
OUT=${OUT:---out $WORK/set}                   # what the last job makes: a set, or by --save-stats the sums of all parts

export FIT INPUT WORK OUT PARTS
parts=("$PARTS"/*)
mkdir -p "$WORK"
# Only the jobs know these variables. A task that is run again goes on where it ended.
# shellcheck disable=SC2016
task='parts=("$PARTS"/*); i=$SLURM_ARRAY_TASK_ID
exec oscar fit $FIT $INPUT "${parts[i]}" --save-stats "$WORK/part_$i.safetensors" --resume --force'
# shellcheck disable=SC2016
merge='parts=("$PARTS"/*); for i in "${!parts[@]}"; do files+=("$WORK/part_$i.safetensors"); done
exec oscar fit $FIT --stats "${files[@]}" $OUT'
submit() { sbatch --parsable --export=ALL --requeue --kill-on-invalid-dep=yes --output "$WORK/%x-%a.txt" "$@"; }
array=$(submit --job-name oscar-part --array "0-$((${#parts[@]} - 1))" "$@" --wrap "exec bash -c '$task'")
submit --job-name oscar-merge "$@" --dependency "afterok:$array" --wrap "exec bash -c '$merge'"
