#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs what building and testing oscar needs on Debian 12 / Ubuntu 24.04, and nothing that is already there.
# Second runs install nothing. libtorch lives in a virtual environment under the user's cache, named by a hash
# of scripts/requirements.txt, so that every clone with the same requirements shares it; .venv links to it.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

[ "$(uname -m)" = x86_64 ] || die "this script knows x86-64 only; on other machines install the packages it lists by hand"
command -v apt-get >/dev/null || die "apt-get not found; install the packages listed in scripts/setup.sh by hand"

packages=(
  g++ cmake ninja-build ccache pkg-config python3 python3-venv git ca-certificates
  libcli11-dev libfmt-dev doctest-dev libcurl4-openssl-dev libhdf5-dev libssl-dev
  libopenblas-dev liblapacke-dev nlohmann-json3-dev libvalijson-dev libpcre2-dev libutf8proc-dev
  libsentencepiece-dev python3-sentencepiece
  libjs-chart.js zsh
)
installed=$(dpkg-query -W -f='${Package} ${db:Status-Abbrev}\n' "${packages[@]}" 2>/dev/null || true)
missing=()
for package in "${packages[@]}"; do
  grep -q "^$package ii" <<<"$installed" || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "missing packages: ${missing[*]}; run as root, or install sudo"
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq || die "apt-get update failed; check the network and /etc/apt, then run this again"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null \
    || die "apt-get could not install ${missing[*]}; see its message above, then run this again"
fi

# A browser for the test that opens reports; without it that test is skipped. Ubuntu has no such package.
if ! command -v chromium google-chrome >/dev/null && [ "$(id -u)" -eq 0 ] && apt-cache show chromium >/dev/null 2>&1; then
  say "installing chromium (80 MB) for a test"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1 \
    || say "chromium could not be installed: the test of HTML reports will be skipped"
fi

requirements=scripts/requirements.txt
python=/usr/bin/python3 # the distribution's own, so that the shared environment does not hang on a version manager
key=$( { "$python" --version; cat "$requirements"; } | sha256sum | cut -c1-16)
store="${XDG_CACHE_HOME:-$HOME/.cache}/oscar-build"
venv="$store/venv-$key"
needed_gb=8 # what pip unpacks, and the wheels beside it while it does
mkdir -p "$store"
(
  flock 9
  if [ ! -e "$venv/complete" ]; then
    say "installing libtorch and the test oracles into $venv (about 5 GB, once)"
    rm -rf "$venv"
    free_gb=$(($(df -Pk "$store" | awk 'NR == 2 {print $4}') / 1048576))
    [ "$free_gb" -ge "$needed_gb" ] \
      || die "$store has $free_gb GB free and needs $needed_gb; free some space, or point XDG_CACHE_HOME at a larger disk"
    "$python" -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$requirements" \
      || die "pip could not install $requirements; check the network and the free disk space, then run this again"
    touch "$venv/complete"
  fi
) 9>"$store/lock"
if [ "$(readlink .venv 2>/dev/null || true)" != "$venv" ]; then
  [ ! -e .venv ] || [ -L .venv ] || die ".venv exists and is not a link; move it away"
  ln -sfn "$venv" .venv
fi

# nginx as a peer of the zoo's tests: unpacked, not installed, so that no server starts on this machine.
if [ ! -x "$store/nginx/usr/sbin/nginx" ]; then
  rm -rf "$store/nginx.part"
  mkdir -p "$store/nginx.part"
  if (cd "$store/nginx.part" && apt-get download -qq nginx >/dev/null 2>&1 && dpkg -x nginx_*.deb .); then
    rm -rf "$store/nginx" && mv "$store/nginx.part" "$store/nginx"
  else
    say "nginx could not be fetched: the tests that use it will be skipped"
  fi
fi
say "ready"
