#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What a calibration job runs: fit a set, judge it on text that it was not fitted on, publish it if it is
# accepted. The exit status is that of the step that failed; 3: the set was rejected, and nothing was published.
# Files that end in .npy hold token ids, and those in .jsonl whose first line is a list; others are text.
#   FIT_OPTIONS     further options of "oscar fit", for example "--for vllm --device cuda"
#   VERIFY_OPTIONS  further options of "oscar verify", for example limits other than the defaults for the set's bits:
#                   "--max-kld 0.05 --report report.html"
set -euo pipefail

if [ $# -ne 6 ]; then
  printf 'usage: %s MODEL CALIBRATION HELD_OUT ZOO ORG/NAME[:TAG] OUT\n' "$0" >&2
  exit 2
fi
model=$1 calibration=$2 held_out=$3 zoo=$4 name=$5 out=$6
read -d '' -ra fit_options <<<"${FIT_OPTIONS:-}" || true # the words of all lines; "read" itself fails at their end
read -d '' -ra verify_options <<<"${VERIFY_OPTIONS:-}" || true

kind() {
  case $1 in
    *.npy) echo --tokens ;;
    *.jsonl) if grep -m 1 '[^[:space:]]' -- "$1" 2>/dev/null | grep -q '^[[:space:]]*\['; then echo --tokens; else echo --text; fi ;;
    *) echo --text ;;
  esac
}

mkdir -p "$out"
oscar fit --model "$model" "$(kind "$calibration")" "$calibration" --out "$out/set" "${fit_options[@]}"
oscar verify "$out/set" --model "$model" "$(kind "$held_out")" "$held_out" --require-held-out \
  --json "$out/report.json" "${verify_options[@]}"
oscar publish "$out/set" --zoo "$zoo" --name "$name"
