#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds the fuzz targets with clang, libFuzzer and sanitizers in build-fuzz/, and runs each for --seconds (600) from
# its committed corpus on, two (--jobs) at a time. What crashed lies in out/fuzz. Exit 1: something did; 77: no clang here.
#   scripts/fuzz.sh [--seconds N] [--jobs N] [TARGET...]        OUT=FILE.json keeps the results, beside those of other targets
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=600 jobs=2
while true; do
  case "${1:-}" in
    --seconds) seconds=$2; shift 2 ;;
    --jobs) jobs=$2; shift 2 ;;
    *) break ;;
  esac
done
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(gguf hdf5 npy pt safetensors set statistics zoo)

if ! command -v clang++ >/dev/null; then
  printf 'skipped: fuzz: clang is not installed (apt-get install clang)\n' >&2
  exit 77
fi

commit=$(git rev-parse --short HEAD 2>/dev/null || true)
cmake -S . -B build-fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" \
  -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=12 -DOSCAR_TESTS=ON -DOSCAR_CUDA=OFF -DOSCAR_FUZZ=ON -DOSCAR_SANITIZE=fuzzer-no-link,address,undefined >/dev/null 2>build-fuzz.log ||
  { cat build-fuzz.log >&2; exit 1; }
rm -f build-fuzz.log
cmake --build build-fuzz --parallel "$jobs" --target "${targets[@]/#/fuzz_}" >&2

mkdir -p out/fuzz
run() {
  local target=$1 work=out/fuzz/$1 status=0 TIMEFORMAT='%U %S'
  rm -rf "$work" # inputs that an earlier run found
  mkdir -p "$work"
  # Memory without bounds is found by rss_limit_mb. libhdf5 asks for as much as a file says, takes no for an answer, and uses no
  # more than is read. What takes
  # down the process that tries an HDF5 file is kept as crash-… too, and no finding: the file is refused.
  local more=()
  [[ $target != hdf5 && $target != set ]] || more=(-malloc_limit_mb=1000000000)
  { time ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 build-fuzz/tests/"fuzz_$target" -max_total_time="$2" -max_len=65536 -rss_limit_mb=2048 -timeout=120 \
    -print_final_stats=1 "${more[@]}" -artifact_prefix="out/fuzz/$target-" "$work" "tests/fuzz/corpus/$target" >"out/fuzz/$target.log" 2>&1; } 2>"out/fuzz/$target.time" || status=$?
  local executions units processor
  processor=$(awk '{printf "%.0f", $1 + $2}' "out/fuzz/$target.time")
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "out/fuzz/$target.log")
  units=$(sed -n 's/^stat::new_units_added: *//p' "out/fuzz/$target.log")
  if [ "$status" = 0 ]; then
    printf '%s: clean, %s inputs in %s s, %s of them reached new code, %s s of processor time\n' \
      "$target" "$executions" "$2" "$units" "$processor"
  else
    printf '%s: FAILED, see out/fuzz/%s.log\n' "$target" "$target"
    grep -E 'ERROR|SUMMARY|what\(\)|Test unit' "out/fuzz/$target.log" | head -5
  fi
  return "$status"
}
export -f run
status=0
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'run "$1" "$2"' fuzz {} "$seconds" | tee out/fuzz/summary || status=1
if [ -n "${OUT:-}" ]; then
  /usr/bin/python3 - "$commit" "$seconds" out/fuzz/summary "$OUT" <<'PY'
import json
import os
import re
import sys

commit, seconds, summary, out = sys.argv[1:]
targets = json.load(open(out, encoding="utf-8"))["targets"] if os.path.exists(out) else {}
for line in open(summary, encoding="utf-8"):
    match = re.match(r"(\w+): (clean|FAILED)(?:, (\d+) inputs in \d+ s, (\d+) .*, (\d+) s of)?", line)
    if match:
        targets[match[1]] = {"commit": commit, "seconds": int(seconds), "clean": match[2] == "clean",
                             "processor_seconds": int(match[5] or 0), "inputs": int(match[3] or 0),
                             "new_corpus_units": int(match[4] or 0)}
with open(out, "w", encoding="utf-8") as file:
    json.dump({"schema": "oscar.fuzz_results.v1", "targets": dict(sorted(targets.items()))}, file, indent=1)
    file.write("\n")
PY
fi
exit "$status"
