#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Packs into .gpu/ what scripts/gpu/test.sh needs on a GPU machine that has no network: this commit's files, its name,
# and the header-only packages that machine may lack. Copy .gpu/ there and run .gpu/source/scripts/gpu/test.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."

rm -rf .gpu
mkdir -p .gpu/source/.gpu/prefix/include .gpu/source/.gpu/prefix/share/cmake
git archive HEAD apps lib kernels schemas scripts tests/CMakeLists.txt tests/support tests/unit/CMakeLists.txt \
  tests/unit/kernels tests/unit/kernels_cuda tests/data/codec CMakeLists.txt LICENSE README.md | tar -x -C .gpu/source
git describe --always --dirty --abbrev=40 --exclude='*' >.gpu/source/.gpu/commit
cp -r /usr/include/valijson .gpu/source/.gpu/prefix/include/
cp -r /usr/share/cmake/valijson .gpu/source/.gpu/prefix/share/cmake/
du -sh .gpu >&2
