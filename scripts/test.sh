#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs what is missing, builds, and runs every test that this machine can run; further arguments go to ctest
# (-L slow, -R fit, …). The last line is "N passed, N failed, N skipped"; the exit status is 1 if anything failed.
set -euo pipefail
cd "$(dirname "$0")/.."

# What only running the tests needs is fetched while they are built.
scripts/setup.sh --build-tests
scripts/setup.sh --tests &
setup=$!
trap 'kill "$setup" 2>/dev/null || true' EXIT
scripts/build.sh --tests
wait "$setup"
trap - EXIT
if ! nvidia-smi -L >/dev/null 2>&1; then
  printf 'test: no NVIDIA GPU here: tests of the CUDA backend are skipped\n' >&2
fi

results=$PWD/build/test-results.xml
rm -f "$results"
status=0
# One more than processors: some wait for servers and for lines that are cut.
ctest --test-dir build --parallel "$(($(nproc) + 1))" --output-on-failure --test-output-size-passed 16384 \
  --output-junit "$results" "$@" || status=$?
/usr/bin/python3 -B scripts/summarize_tests.py "$results" "$status"
