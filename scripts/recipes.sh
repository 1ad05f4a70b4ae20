#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs what is missing, builds, fits the sample model by every recipe and measures what each does to it: prints the
# table of recipes in tests/bench/README.md, and keeps out/recipes.json. On the GPU if there is one. Options: tests/bench/bench_recipes.py.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
scripts/build.sh oscar >&2
exec .venv/bin/python -B tests/bench/bench_recipes.py --commit "$(git rev-parse HEAD 2>/dev/null || echo unknown)" "$@"
