#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Every test that starts a real vLLM, on CPUs (tests/python/vllm_*_test.py). Continuous integration leaves out those with the label
# served_whole, which take as long again. Arguments go to ctest.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh --tests --vllm-next
scripts/build.sh --tests oscar oscar_torch
scripts/real_model.sh --fetch-only || printf 'served: the real model could not be fetched: its test is skipped\n' >&2
exec ctest --test-dir build -L '^served' --output-on-failure --test-output-size-passed 16384 "$@"
