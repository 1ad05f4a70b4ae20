#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Formats every C++ file of the tree; with --check, changes nothing and fails if a file is not formatted.
# Pinned to clang-format 14 (Debian 12), because versions differ: exit 77 where that version is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."
pinned=14

check=0
case "${1:-}" in
  "") ;;
  --check) check=1 ;;
  *) printf 'usage: scripts/format.sh [--check]\n' >&2; exit 2 ;;
esac

formatter=
for candidate in "clang-format-$pinned" clang-format; do
  if "$candidate" --version 2>/dev/null | grep -q "version $pinned\."; then formatter=$candidate; break; fi
done
if [ -z "$formatter" ]; then
  printf 'skipped: format: clang-format %s is not installed (apt-get install clang-format-%s)\n' "$pinned" "$pinned" >&2
  exit 77
fi

files() { find apps lib kernels tests \( -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0; }
if [ "$check" = 0 ]; then
  files | xargs -0 "$formatter" -i
elif ! files | xargs -0 "$formatter" --dry-run -Werror; then
  printf 'format: run scripts/format.sh\n' >&2
  exit 1
fi
