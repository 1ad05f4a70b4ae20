#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Configures the preset "release" in build/ and builds the targets given, or everything. A second run rebuilds nothing.
# OSCAR_CUDA_ARCHITECTURES: GPUs to compile for, in place of the preset's.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p build
# CMake's talk is only of interest when something is wrong.
cmake --preset release ${OSCAR_CUDA_ARCHITECTURES:+-DCMAKE_CUDA_ARCHITECTURES="$OSCAR_CUDA_ARCHITECTURES"} \
  >build/configure.log 2>&1 || { cat build/configure.log >&2; exit 1; }
cmake --build --preset release ${1:+--target "$@"}
