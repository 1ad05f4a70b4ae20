#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs what building and running oscar needs on Debian 12 / Ubuntu 24.04; with --build-tests also what building its
# tests needs, with --tests what running them needs, too; with --vllm a vLLM for CPUs, for the tests that run a real
# server; with --vllm-next the next one's sources beside it; with --sglang the Python sources of SGLang, for the test of its plugin; with --lmcache LMCache, for the test of
# its serde; with --server-torch the torch of newer servers, for the tests of the operators; with --wheel what
# scripts/wheel.sh needs. It installs nothing that is already there, and fetches libtorch at the same time as packages. libtorch lives in a virtual environment under the
# user's cache, named by a hash of scripts/requirements.txt, so that every clone with the same requirements shares it;
# .venv links to it.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

build_tests=0 tests=0 vllm=0 vllm_next=0 sglang=0 lmcache=0 server_torch=0 wheel=0
for option in "$@"; do
  case "$option" in
    --build-tests) build_tests=1 ;;
    --tests) build_tests=1 tests=1 wheel=1 ;;
    --vllm) vllm=1 ;;
    --vllm-next) vllm=1 vllm_next=1 ;;
    --sglang) sglang=1 ;;
    --lmcache) lmcache=1 ;;
    --server-torch) server_torch=1 ;;
    --wheel) wheel=1 ;;
    *) printf 'usage: scripts/setup.sh [--build-tests] [--tests] [--vllm] [--vllm-next] [--sglang] [--lmcache] [--server-torch] [--wheel]\n' >&2; exit 2 ;;
  esac
done
[ "$(uname -m)" = x86_64 ] || die "this script knows x86-64 only; on other machines install the packages it lists by hand"
command -v apt-get >/dev/null || die "apt-get not found; install the packages listed in scripts/setup.sh by hand"

packages_of_pip=(python3 python3-venv ca-certificates)
packages=(
  g++ cmake ninja-build ccache pkg-config
  libcli11-dev libtomlplusplus-dev libfmt-dev libcurl4-openssl-dev libhdf5-dev libssl-dev zlib1g-dev
  libeigen3-dev nlohmann-json3-dev libvalijson-dev libpcre2-dev libutf8proc-dev
  libsentencepiece-dev libjs-chart.js help2man
)
[ "$build_tests" = 0 ] || packages+=(git doctest-dev python3-sentencepiece zsh)

install_packages() {
  local installed package missing=() as_root=()
  installed=$(dpkg-query -W -f='${Package} ${db:Status-Abbrev}\n' "$@" 2>/dev/null || true)
  for package in "$@"; do
    grep -q "^$package ii" <<<"$installed" || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "missing packages: ${missing[*]}; run as root, or install sudo"
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  [ -n "${updated:-}" ] || "${as_root[@]}" apt-get update -qq || die "apt-get update failed; check the network and /etc/apt, then run this again"
  updated=1
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null \
    || die "apt-get could not install ${missing[*]}; see its message above, then run this again"
}

requirements=scripts/requirements.txt
python=/usr/bin/python3 # the distribution's own, so that the shared environment does not hang on a version manager
store="${XDG_CACHE_HOME:-$HOME/.cache}/oscar-build"

need_gb() {
  local free_gb=$(($(df -Pk "$store" | awk 'NR == 2 {print $4}') / 1048576))
  [ "$free_gb" -ge "$1" ] \
    || die "$store has $free_gb GB free and needs $1; free some space, or point XDG_CACHE_HOME at a larger disk"
}

# Nothing is compiled or kept beside what is installed: the environment is the cache.
pip_install() {
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-compile "$@" \
    || die "pip could not install $*; check the network and the free disk space, then run this again"
}

compile_python() { "$venv/bin/python" -m compileall -q -j 0 -x /tests/ "$1" >/dev/null || true; } # some files are for other Pythons

install_libtorch() {
  [ ! -e "$venv/complete" ] || return 0
  need_gb 3
  say "installing libtorch into $venv (530 MB to fetch, once)"
  rm -rf "$venv"
  "$python" -m venv "$venv"
  pip_install --no-deps -r "$requirements"
  touch "$venv/complete"
}

# torch as a Python package, with the CUDA libraries that it loads: for tests, and for models on a GPU.
install_torch() {
  local wanted=$1 mark="$venv/has-${1##*/}"
  ! cmp -s "$wanted" "$mark" || return 0
  need_gb 6
  say "installing $wanted into $venv (3 GB to fetch, once)"
  pip_install -r "$wanted"
  compile_python "$venv/lib"
  cp "$wanted" "$mark"
}

# An environment of its own: install_apart NAME DISK FETCH, of scripts/requirements-NAME.txt; DISK in GB, FETCH for people.
# $store/NAME is a link to it.
install_apart() {
  local name=$1 wanted="scripts/requirements-$1.txt" venv
  venv="$store/$name-$( { "$python" --version; cat "$wanted"; } | sha256sum | cut -c1-16)"
  if [ ! -e "$venv/complete" ]; then
    need_gb "$2"
    say "installing $wanted into $venv ($3 to fetch, once)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
    pip_install --no-deps -r "$wanted"
    compile_python "$venv/lib"
    touch "$venv/complete"
  fi
  ln -sfn "$venv" "$store/$name"
}

# A folder for sys.path, beside the environment of the tests: install_folder NAME FETCH, as install_apart.
install_folder() {
  local name=$1 wanted="scripts/requirements-$1.txt" folder
  folder="$store/$name-$( { "$python" --version; cat "$wanted"; } | sha256sum | cut -c1-16)"
  if [ ! -e "$folder/complete" ]; then
    need_gb 1
    say "installing $wanted into $folder ($2 to fetch, once)"
    rm -rf "$folder"
    pip_install --no-deps --target "$folder" -r "$wanted"
    compile_python "$folder"
    touch "$folder/complete"
  fi
  ln -sfn "$folder" "$store/$name"
}

# What is compiled for CPUs, in place of what is compiled for GPUs, and a version by which vLLM takes itself for a build for CPUs.
over_cpu_operators() {
  local folder="$store/vllm-next" from
  from=$(readlink "$store/vllm")
  [ "$from" != "$(cat "$folder/on-cpus" 2>/dev/null)" ] || return 0
  find "$folder/vllm" -name '*.so' -delete
  cp "$store"/vllm/lib/python3*/site-packages/vllm/*.so "$folder/vllm/"
  sed -i 's/^\(Version: [0-9.]*\)$/\1+cpu/' "$folder"/vllm-*.dist-info/METADATA
  printf '%s\n' "$from" >"$folder/on-cpus"
}

# A browser for the test that opens reports; without it that test is skipped. Ubuntu has no such package.
install_browser() {
  if command -v chromium google-chrome >/dev/null || [ "$(id -u)" -ne 0 ] || ! apt-cache show chromium >/dev/null 2>&1; then
    return 0
  fi
  say "installing chromium (80 MB) for a test"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1 \
    || say "chromium could not be installed: the test of HTML reports will be skipped"
}

# A server for tests: unpacked with what it needs and this machine lacks, not installed, so that nothing starts here.
unpack() {
  local name=$1 binary=$2 missing
  [ ! -x "$store/$name/$binary" ] || return 0
  say "fetching $3 for tests"
  rm -rf "$store/$name.part"
  mkdir -p "$store/$name.part"
  missing=$(apt-get -s --no-install-recommends install "$3" 2>/dev/null | awk '/^Inst/ {print $2}') || true
  # shellcheck disable=SC2086
  if (cd "$store/$name.part" && apt-get download -qq ${missing:-$3} >/dev/null 2>&1 && for package in *.deb; do dpkg -x "$package" .; done); then
    rm -rf "${store:?}/$name" && mv "$store/$name.part" "$store/$name"
  else
    say "$3 could not be fetched: the tests that use it will be skipped"
  fi
}

install_packages "${packages_of_pip[@]}"
venv="$store/venv-$( { "$python" --version; cat "$requirements"; } | sha256sum | cut -c1-16)"
mkdir -p "$store"
# libtorch is fetched while the other packages are installed. Ctrl-C ends that job, too, which would ignore it otherwise.
(trap - INT; flock 9; install_libtorch) 9>"$store/lock" &
libtorch=$!
trap wait EXIT # also after an error: what is fetched is there the next time
install_packages "${packages[@]}"
wait "$libtorch" || die "libtorch could not be installed; see the message above"
(
  flock 9
  if nvidia-smi -L >/dev/null 2>&1; then install_torch "$requirements"; fi
  if [ "$tests" = 1 ]; then
    install_torch scripts/requirements-tests.txt
    install_browser
    unpack nginx usr/sbin/nginx nginx
    unpack slurm usr/bin/sbatch slurm-wlm
  fi
  if [ "$vllm" = 1 ]; then install_apart vllm 8 "3 GB"; fi
  if [ "$vllm_next" = 1 ]; then install_folder vllm-next "340 MB"; over_cpu_operators; fi
  if [ "$server_torch" = 1 ]; then install_apart server-torch 8 "3 GB"; fi
  if [ "$sglang" = 1 ]; then install_folder sglang "70 MB"; fi
  if [ "$lmcache" = 1 ]; then install_folder lmcache "80 MB"; fi
  if [ "$wheel" = 1 ]; then install_apart wheel 1 "3 MB"; fi
) 9>"$store/lock"
if [ "$(readlink .venv 2>/dev/null || true)" != "$venv" ]; then
  [ ! -e .venv ] || [ -L .venv ] || die ".venv exists and is not a link; move it away"
  ln -sfn "$venv" .venv
fi
say "ready"
