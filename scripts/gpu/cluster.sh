#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# On a machine with several NVIDIA GPUs: cluster.sh [OPTION...], one fit by one process and by several, in the same call;
# options: tests/bench/bench_ranks.py. See place.sh for what is run. Writes ranks.json into $OUT or .gpu/out. Exit status 1
# if a run failed or the sets differ.
set -euo pipefail
. "$(dirname "$0")/place.sh"
gpus=$(nvidia-smi -L | wc -l)
work=$(folder_in_memory 40)
exec python3 -B "$source/tests/bench/bench_ranks.py" --binary "$build/oscar" --commit "$commit" --gpu "$gpus x $gpu" \
  --ranks "$(seq -s, 1 "$gpus")" --work "$work" --out "$out/ranks.json" "$@"
