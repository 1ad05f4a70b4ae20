#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds the fuzz targets with clang, libFuzzer and sanitizers in build-fuzz/, and runs each for --seconds (600) over a copy
# of its committed corpus, two at a time. What crashed lies in out/fuzz. Exit 1: something did; 77: no clang here.
#   scripts/fuzz.sh [--seconds N] [TARGET...]        OUT=FILE.json keeps the results
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=600
if [ "${1:-}" = --seconds ]; then seconds=$2; shift 2; fi
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(gguf hdf5 npy npz pt safetensors zoo)

if ! command -v clang++ >/dev/null; then
  printf 'skipped: fuzz: clang is not installed (apt-get install clang)\n' >&2
  exit 77
fi

cmake -S . -B build-fuzz -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DOSCAR_CUDA=OFF -DOSCAR_FUZZ=ON -DOSCAR_SANITIZE=fuzzer-no-link,address,undefined >/dev/null 2>build-fuzz.log ||
  { cat build-fuzz.log >&2; exit 1; }
rm -f build-fuzz.log
cmake --build build-fuzz --parallel 2 --target "${targets[@]/#/fuzz_}" >&2

mkdir -p out/fuzz
run() {
  local target=$1 work=out/fuzz/$1
  mkdir -p "$work"
  # One leak report of a library's static data would end the search; memory without bounds is found by rss_limit_mb.
  local status=0
  build-fuzz/tests/"fuzz_$target" -max_total_time="$2" -max_len=65536 -rss_limit_mb=2048 -timeout=20 -detect_leaks=0 \
    -print_final_stats=1 -artifact_prefix="$work/crash-" "$work" "tests/fuzz/corpus/$target" >"out/fuzz/$target.log" 2>&1 || status=$?
  local executions
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "out/fuzz/$target.log")
  if [ "$status" = 0 ]; then
    printf '%s: clean, %s inputs in %s s\n' "$target" "$executions" "$2"
  else
    printf '%s: FAILED, see out/fuzz/%s.log\n' "$target" "$target"
    grep -E 'ERROR|SUMMARY|what\(\)|Test unit' "out/fuzz/$target.log" | head -5
  fi
  return "$status"
}
export -f run
status=0
printf '%s\n' "${targets[@]}" | xargs -P 2 -I{} bash -c 'run {} '"$seconds" | tee out/fuzz/summary || status=1
if [ -n "${OUT:-}" ]; then
  /usr/bin/python3 - "$seconds" out/fuzz/summary >"$OUT" <<'PY'
import json
import re
import subprocess
import sys

found = {}
for line in open(sys.argv[2], encoding="utf-8"):
    match = re.match(r"(\w+): (clean|FAILED)(?:, (\d+) inputs)?", line)
    if match:
        found[match[1]] = {"clean": match[2] == "clean", "inputs": int(match[3] or 0)}
commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
print(json.dumps({"seconds_each": int(sys.argv[1]), "commit": commit, "targets": dict(sorted(found.items()))}, indent=1))
PY
fi
exit "$status"
