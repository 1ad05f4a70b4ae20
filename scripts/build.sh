#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Configures the preset "release" in build/ and builds the targets given, or everything; with --tests the tests too. A
# second run rebuilds nothing. The CUDA backend is built where a GPU is, for that GPU, or for those that
# OSCAR_CUDA_ARCHITECTURES names ("80-real;90a-real").
set -euo pipefail
cd "$(dirname "$0")/.."

tests=()
if [ "${1:-}" = --tests ]; then tests=(-DOSCAR_TESTS=ON); shift; fi

# What nvcc calls the GPUs of this machine. CMake's own "native" asks once for a build tree, and never again.
gpus() {
  nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -E '^[0-9]+\.[0-9]+$' | tr -d . | sort -u |
    sed 's/^90$/90a/; s/$/-real/' | paste -sd ';'
}
architectures=${OSCAR_CUDA_ARCHITECTURES:-$(gpus || true)}
if [ -n "$architectures" ]; then
  cuda=(-DOSCAR_CUDA=AUTO "-DCMAKE_CUDA_ARCHITECTURES=$architectures")
else
  cuda=(-DOSCAR_CUDA=OFF)
  printf 'build: no NVIDIA GPU here: the CUDA backend is left out (OSCAR_CUDA_ARCHITECTURES="90a-real" builds it)\n' >&2
fi

mkdir -p build
# CMake's talk is only of interest when something is wrong.
cmake --preset release "${tests[@]}" "${cuda[@]}" >build/configure.log 2>&1 || { cat build/configure.log >&2; exit 1; }
[ -z "$architectures" ] || grep 'CUDA backend: not built' build/configure.log >&2 || true
cmake --build --preset release ${1:+--target "$@"}
