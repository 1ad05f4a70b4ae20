#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# On a GPU machine, for its many cores and its processor; see place.sh for what is run. Writes into $OUT or .gpu/out:
#   processors.json  tests/bench/bench_processors.py: sets and figures under other kernels of libraries
#   last_bits.json   tests/bench/bench_last_bits.py: how far figures move with the last bits of weights
set -euo pipefail
. "$(dirname "$0")/place.sh"
export OSCAR_COMMIT=$commit OSCAR_DEVICE=cpu CUDA_VISIBLE_DEVICES=
python=$source/.venv/bin/python3
parts=("$@")
[ $# -gt 0 ] || parts=(processors last_bits)
for part in "${parts[@]}"; do
  case "$part" in
    processors) options=(--skip-emulated) ;;
    last_bits) options=(--jobs 8 --copies 15) ;;
    *) die "unknown part \"$part\"; use processors, last_bits" ;;
  esac
  "$python" -B "$source/tests/bench/bench_$part.py" --build "$build" --out "$out/$part.json" "${options[@]}" \
    >"$out/$part.log" 2>&1 || printf 'gpu/processors: %s: status %s\n' "$part" $? >&2
  tail -40 "$out/$part.log" >&2
done
