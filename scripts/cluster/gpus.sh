#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A fit of data in parts by several GPUs of one host: a process for each GPU takes its share of the parts, one after the other, and
# saves their statistics; then one makes the set of them. Change these lines, or set them in the environment.
set -euo pipefail
PARTS=${PARTS:-parts}                         # a folder with one entry for each part
INPUT=${INPUT:---model model --text}          # options of the data; the last, --text, --tokens or --dump, takes a part
FIT=${FIT:---bits 2.25}                       # options of the set
WORK=${WORK:-work}                            # a folder for this fit alone
OUT=${OUT:---out $WORK/set}                   # what is made of the parts: a set, or by --save-stats the sums of all of them
DEVICES=${DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader | sed 's/^/cuda:/' | paste -sd' ')}
read -ra devices <<<"$DEVICES"

parts=("$PARTS"/*)
mkdir -p "$WORK"
# Options are words.
# shellcheck disable=SC2086
take_share_of() {
  local i
  for ((i = $1; i < ${#parts[@]}; i += ${#devices[@]})); do
    oscar fit $FIT $INPUT "${parts[i]}" --device "${devices[$1]}" --save-stats "$WORK/part_$i.safetensors" --force || return
  done
}
for gpu in "${!devices[@]}"; do
  take_share_of "$gpu" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
[ -z "${failed:-}" ] || { printf 'gpus.sh: error: a part failed; see its message above, then run this again\n' >&2; exit 1; }
for i in "${!parts[@]}"; do files+=("$WORK/part_$i.safetensors"); done
# shellcheck disable=SC2086
oscar fit $FIT --stats "${files[@]}" $OUT
