#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# On a machine with an NVIDIA GPU: bench.sh [PART...], all without arguments; parts and targets: tests/bench/bench_fit_cuda.py.
# See place.sh for what is run. Writes fit.json into $OUT or .gpu/out. Exit status 1 if a part failed or missed its target.
set -euo pipefail
. "$(dirname "$0")/place.sh"
needed_gb=36 # two dumps, in memory: the machine's disk is not what is measured

work=$(folder_in_memory "$needed_gb")

spectra=$source/../shared/fixtures/rotations/Qwen3-8B
arguments=(--binary "$build/oscar" --out "$out/fit.json" --work "$work" --commit "$commit" --gpu "$gpu")
[ ! -e "$published" ] || arguments+=(--published "$published")
[ ! -e "$spectra" ] || arguments+=(--spectra "$spectra")
parts=("$@")
[ $# -gt 0 ] || parts=(start rates accuracy f1 f2 auto f4)
exec python3 -B "$source/tests/bench/bench_fit_cuda.py" "${parts[@]}" "${arguments[@]}"
