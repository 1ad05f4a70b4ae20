#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# On a machine with an NVIDIA GPU: builds the kernels and their tests alone, runs the tests of the CUDA backend, and
# writes cuda-tests.json (GPU, driver, commit, each case, each measured error) into $OUT or the folder given.
# Needs nvcc and, of scripts/setup.sh's packages, those that the kernels use; scripts/gpu/pack.sh brings the rest.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(mkdir -p "${1:-${OUT:-.gpu/out}}" && cd "${1:-${OUT:-.gpu/out}}" && pwd)

nvidia-smi -L >&2 || { printf 'gpu/test: error: no NVIDIA GPU here; run this on a machine with one\n' >&2; exit 1; }
commit=$(cat .gpu/commit 2>/dev/null || git describe --always --dirty --abbrev=40 --exclude='*')
cmake -S . -B .gpu/build -G Ninja -DCMAKE_BUILD_TYPE=Release -DOSCAR_COMPONENTS=KERNELS -DOSCAR_CUDA=ON \
  -DCMAKE_PREFIX_PATH="$PWD/.gpu/prefix" -DCMAKE_CUDA_ARCHITECTURES=native >"$out/configure.log" 2>&1 \
  || { cat "$out/configure.log" >&2; exit 1; }
cmake --build .gpu/build --target oscar_cuda kernels_cuda_test >"$out/build.log" 2>&1 \
  || { tail -60 "$out/build.log" >&2; exit 1; }

status=0
ctest --test-dir .gpu/build -L cuda --test-output-size-passed 4000000 --test-output-size-failed 4000000 \
  --output-junit "$out/cuda-tests.xml" || status=$?
gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -1)
python3 -B scripts/gpu/results.py "$out/cuda-tests.xml" "$commit" "$gpu" "$(nvcc --version | sed -n 's/.*release //p')" \
  >"$out/cuda-tests.json"
exit "$status"
