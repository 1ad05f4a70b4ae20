# SPDX-License-Identifier: MIT
# Sourced by test.sh, bench.sh and others: what to run and where results go. Sets source, build, commit, published, out, gpu.
# .gpu/bundle.tar.xz (pack.sh) is unpacked where it was built; without it, this checkout is built for this machine's GPU.
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=$(mkdir -p "${OUT:-.gpu/out}" && cd "${OUT:-.gpu/out}" && pwd)

die() { printf 'gpu: error: %s\n' "$*" >&2; exit 1; }

unpack() {
  local root torch stamp
  root=$(cat .gpu/root)
  source=$root/source build=$root/source/build-gpu published=$root/compute_kv_rotation.py
  [ ! -e "$source/.git" ] || die "$root was built on this machine; remove it to unpack .gpu/bundle.tar.xz there"
  stamp=$(sha256sum <.gpu/bundle.tar.xz)
  if [ "$stamp" != "$(cat "$root/stamp" 2>/dev/null)" ]; then
    mkdir -p "$root"
    [ -e "$root/stamp" ] || [ -z "$(ls -A "$root")" ] \
      || die "$root has files that are of no bundle; remove them, or pack with another OSCAR_GPU_ROOT"
    rm -rf "${root:?}"/*
    : >"$root/stamp"
    # tar itself needs xz for this; newer Pythons refuse absolute links unless told to trust them.
    python3 -c 'import sys, tarfile
with tarfile.open(sys.argv[1]) as archive:
    archive.extraction_filter = lambda member, path: member
    archive.extractall(sys.argv[2])' .gpu/bundle.tar.xz "$root"
    printf '%s\n' "$stamp" >"$root/stamp"
  fi
  commit=$(cat "$root/commit")
  torch=$(python3 -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])') \
    || die "python3 has no torch"
  ln -sfn "$torch/lib" "$build/bundled/torch"
  ln -sfn "$(cuda_libraries "$torch")" "$build/bundled/cuda"
  ln -sfn "$(python3 -c 'import sys; print(sys.prefix)')" "$source/.venv"
}

# The toolkit's libraries, else those beside torch.
cuda_libraries() {
  local nvcc
  nvcc=$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")
  for folder in "${nvcc%/bin/nvcc}/lib64" "$1/../nvidia/cu13/lib"; do
    if [ -e "$folder/libcublas.so.13" ]; then readlink -f "$folder"; return; fi
  done
  die "cuBLAS 13 is neither beside nvcc nor beside torch"
}

build_here() {
  source=$PWD build=$PWD/build-gpu published=${PUBLISHED_FITTER:-}
  commit=$(git describe --always --dirty --abbrev=40 --exclude='*')
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DOSCAR_CUDA=ON -DOSCAR_TESTS=ON -DCMAKE_CUDA_ARCHITECTURES=native \
    >"$out/configure.log" 2>&1 || { cat "$out/configure.log" >&2; exit 1; }
  cmake --build "$build" >"$out/build.log" 2>&1 || { tail -60 "$out/build.log" >&2; exit 1; }
}

free_gb() { df -Pk "$1" | awk 'NR == 2 {print int($4 / 1048576)}'; }

# A folder with so many free GB that is no disk.
folder_in_memory() {
  local work=/dev/shm
  if [ "$(free_gb "$work")" -lt "$1" ]; then
    work=/tmp/oscar-bench
    mkdir -p "$work"
    mountpoint -q "$work" || mount -t tmpfs -o "size=${1}g" tmpfs "$work" \
      || die "/dev/shm has less than $1 GB free, and mounting another needs root"
  fi
  printf '%s\n' "$work"
}

nvidia-smi -L >&2 || die "no NVIDIA GPU here; run this on a machine with one"
gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -1)
if [ -e .gpu/bundle.tar.xz ]; then unpack; else build_here; fi
