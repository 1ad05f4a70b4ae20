#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes the wheel that `pip install oscar-kv` would fetch: wheel.sh [--built BUILD] [--out FOLDER]; default: build what is
# missing in build/, and out/wheel. It holds the package, the program, its plug-ins, the zoo, and the libraries of this system
# that they load, with the licences of those; of torch nothing. Its tag names the oldest glibc that has all that they use.
# With --built nothing is built. Standard output is the wheel's path: pip install "$(scripts/wheel.sh)".
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'wheel: %s\n' "$*" >&2; }
die() { printf 'wheel: error: %s\n' "$*" >&2; exit 1; }

built="" out=out/wheel
while [ $# -gt 0 ]; do
  case "$1" in
    --built) built=${2:?} ;;
    --out) out=${2:?} ;;
    *) printf 'usage: scripts/wheel.sh [--built BUILD] [--out FOLDER]\n' >&2; exit 2 ;;
  esac
  shift 2
done

scripts/setup.sh --wheel
if [ -z "$built" ]; then
  scripts/build.sh oscar oscar_man oscar_torch >&2
  built=build
fi
tools="${XDG_CACHE_HOME:-$HOME/.cache}/oscar-build/wheel/bin"
mkdir -p "$out"
out=$(realpath "$out")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Of torch's libraries the environment has the right ones, of CUDA's the machine.
others=(libtorch_cpu.so libc10.so libcublas.so.* libcublasLt.so.* libcusolver.so.* libcusparse.so.* libnvJitLink.so.*)

say "packing $built"
"$tools/pip" --quiet --disable-pip-version-check wheel --no-deps --no-build-isolation --wheel-dir "$work/plain" . \
  --config-settings=cmake.source-dir=scripts/cmake/wheel --config-settings=build-dir="$work/cmake" --config-settings=build.targets=all \
  --config-settings="cmake.define.OSCAR_BUILD=$(realpath "$built")" ||
  die "the package could not be packed; see above"
PATH="$tools:$PATH" "$tools/auditwheel" repair --wheel-dir "$work/whole" "${others[@]/#/--exclude=}" "$work"/plain/*.whl >"$work/log" 2>&1 ||
  { cat "$work/log" >&2; die "the libraries could not be put into the wheel; see above"; }

# Whoever passes on a library passes on its licence.
"$tools/wheel" unpack --dest "$work/unpacked" "$work"/whole/*.whl >/dev/null
root=$(echo "$work"/unpacked/*)
licenses=$(echo "$root"/oscar_kv-*.dist-info)/licenses
for library in "$root"/oscar_kv.libs/*; do
  name=$(basename "$library" | sed -E 's/-[0-9a-f]{8}\././')
  package=$(dpkg-query -S "*/$name" 2>/dev/null | sed -n "1s/:.*//p" || true)
  [ -n "$package" ] || die "no package of this system has $name"
  mkdir -p "$licenses/$package"
  cp "/usr/share/doc/$package/copyright" "$licenses/$package/"
done
"$tools/wheel" pack --dest-dir "$out" "$root" >/dev/null
printf '%s\n' "$out/$(basename "$work"/whole/*.whl)"
