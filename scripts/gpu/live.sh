#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# On a machine with an NVIDIA GPU: live.sh [PART...], live fits of models; parts: tests/bench/bench_live.py. See place.sh for
# what is run. Writes live.json into $OUT or .gpu/out. Exit status 1 if a part failed.
set -euo pipefail
. "$(dirname "$0")/place.sh"
exec python3 -B "$source/tests/bench/bench_live.py" "$@" --binary "$build/oscar" --out "$out/live.json" --disk "${TMPDIR:-/tmp}"
