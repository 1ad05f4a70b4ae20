#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Packs into .gpu/ what test.sh and bench.sh need on a GPU machine that has no network and few packages: this commit, its
# optimised build, the shared libraries that machine may lack, and reference data. Copy .gpu/ into a checkout there.
# It must have glibc, the CUDA toolkit, cmake, and a python3 with the torch version of scripts/requirements.txt.
# Environment: PUBLISHED_FITTER, the published compute_kv_rotation.py for bench.sh; OSCAR_CUDA_ARCHITECTURES (90a-real);
# OSCAR_GPU_TARGETS (all), what to build; OSCAR_SHARED (../shared), the reference data;
# OSCAR_GPU_ROOT (/tmp/oscar-gpu), where it is built here and unpacked there, because a build tree knows its own path.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=${OSCAR_GPU_ROOT:-/tmp/oscar-gpu}
source=$root/source build=$root/source/build-gpu stage=$root/stage
shared=${OSCAR_SHARED:-$PWD/../shared}
limit_mib=52 # what GPU machines are handed is often limited to 64 MiB, with the checkout

build() {
  git -C "$source" init -q
  git -C "$source" fetch -q "$PWD" HEAD
  git -C "$source" checkout -q --detach --force FETCH_HEAD
  ln -sfn "$(readlink -f .venv)" "$source/.venv"
  # DT_RPATH, unlike DT_RUNPATH, also serves the libraries of libraries, and no environment has to be handed down.
  local rpath='$ORIGIN/bundled;$ORIGIN/bundled/torch;$ORIGIN/bundled/cuda'
  env -u OSCAR_SHARED cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DOSCAR_CUDA=ON -DOSCAR_TESTS=ON \
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=12 \
    -DCMAKE_CUDA_ARCHITECTURES="${OSCAR_CUDA_ARCHITECTURES:-90a-real}" \
    -DCMAKE_BUILD_RPATH="$rpath;${rpath//ORIGIN/ORIGIN\/..}" -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags \
    -DCMAKE_MODULE_LINKER_FLAGS=-Wl,--disable-new-dtags >.gpu/configure.log 2>&1 || { cat .gpu/configure.log >&2; exit 1; }
  # shellcheck disable=SC2086  # several targets are several words
  cmake --build "$build" --target ${OSCAR_GPU_TARGETS:-all} >.gpu/build.log 2>&1 || { tail -60 .gpu/build.log >&2; exit 1; }
}

# Programs and plug-ins, stripped, ctest's files, and the link to the project's zoo.
copy_build() {
  local to=$stage/source/build-gpu
  (cd "$build" && find . -not -path '*/CMakeFiles/*' \( -path ./zoo -o -type f \( -perm -100 -o -name CTestTestfile.cmake \
    -o -name '*_test_*.cmake' \) \) -print0 | tar -c --null -T -) | tar -x -C "$to"
  find "$to" -type f -perm -100 -exec strip --strip-unneeded {} +
}

# What the loader takes from this machine, but for glibc, the compiler's runtime, torch and CUDA.
copy_libraries() {
  find "$build" -not -path '*/CMakeFiles/*' -type f -perm -100 -exec ldd {} + | awk '$2 == "=>" && $3 ~ /^\// {print $3}' |
    sort -u | grep -Ev '/(torch|nvidia|cuda[^/]*)/|/lib(c|m|dl|rt|pthread|resolv|util|stdc\+\+|gcc_s)\.so' |
    xargs cp -L -t "$stage/source/build-gpu/bundled"
}

# Reference data that tests use, without the largest: cases that lack it skip, and say so.
copy_reference_data() {
  [ -d "$shared" ] || { printf 'gpu/pack: no reference data in %s: tests that need it will skip\n' "$shared" >&2; return; }
  mkdir -p "$stage/shared"
  tar -C "$shared" -c fixtures/rotations golden/reference-fit golden/qwen3-2m | tar -x -C "$stage/shared"
}

mkdir -p "$source" .gpu
exec 9>"$root/lock"
flock 9
[ -z "$(git status --porcelain)" ] || printf 'gpu/pack: uncommitted changes are left out\n' >&2
build
rm -rf "$stage"
mkdir -p "$stage/source/build-gpu/bundled"
git -C "$source" archive HEAD | tar -x -C "$stage/source"
git -C "$source" rev-parse HEAD >"$stage/commit"
copy_build
copy_libraries
copy_reference_data
[ -z "${PUBLISHED_FITTER:-}" ] || cp "$PUBLISHED_FITTER" "$stage/compute_kv_rotation.py"

rm -f .gpu/bundle.tar.xz
tar -C "$stage" -c . | xz -3 -T2 >.gpu/bundle.tar.xz
printf '%s\n' "$root" >.gpu/root
size_mib=$(($(stat -c %s .gpu/bundle.tar.xz) / 1048576))
printf 'gpu/pack: %s, %s MiB\n' "$(cat "$stage/commit")" "$size_mib" >&2
if [ "$size_mib" -gt "$limit_mib" ]; then
  printf 'gpu/pack: error: more than %s MiB; OSCAR_SHARED=/nowhere leaves the reference data out\n' "$limit_mib" >&2
  exit 1
fi
