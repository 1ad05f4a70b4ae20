#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# On a machine with an NVIDIA GPU: test.sh [kernels] [suite] [sanitizers], all three without arguments. See place.sh for
# what is run. Writes cuda-tests.json (GPU, driver, commit, every case, every measured error) into $OUT or .gpu/out.
#   kernels     the tests of the CUDA backend against the CPU
#   suite       every other test with OSCAR_DEVICE=cuda, models in float32
#   sanitizers  compute-sanitizer's memcheck and racecheck over the cases whose names start with "small:", and over our
#               kernels in the tests of torch's operators whose names start with "test_small"
# Exit status 1 if anything failed, ran past its limit, or if nothing ran.
set -euo pipefail
. "$(dirname "$0")/place.sh"
cores=$(nproc)
rm -f "$out"/{kernels,suite}.{xml,log} "$out"/{memcheck,racecheck}.*.log "$out/cuda-tests.json"

# ctest with a limit for the whole, at which what still runs fails and the rest is kept: results.py sees that, and no results. Its own
# status says nothing more.
run_tests() {
  local part=$1 limit=$2
  shift 2
  ctest --test-dir "$build" --parallel "$cores" --timeout 120 --stop-time "$(date -d "$limit seconds" +%T)" \
    --test-output-size-passed 4000000 --test-output-size-failed 4000000 --output-junit "$out/$part.xml" "$@" >"$out/$part.log" 2>&1 \
    || printf 'gpu/test: %s: ctest ended with status %s\n' "$part" $? >&2
}

kernels() { run_tests kernels 240 -L cuda; }

suite() { OSCAR_DEVICE=cuda OSCAR_MODEL_DTYPE=float32 run_tests suite 330 -LE '^(cuda|install)$'; }

# watch NAME COMMAND...: by each tool, into a log of that name.
watch() {
  local log=$1 tool
  shift
  for tool in memcheck racecheck; do
    { timeout 240 compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 20 "$@" >"$out/$tool.$log.log" 2>&1 \
        || printf 'exit status %s\n' $? >>"$out/$tool.$log.log"; } &
  done
}

# Each case is a process of its own, all at once: racecheck makes some a hundred times as slow.
sanitizers() {
  local program=$build/tests/kernels_cuda_test names i name
  mapfile -t names < <("$program" --list-test-cases '--test-case=small:*' | grep '^small:')
  [ ${#names[@]} -gt 0 ] || die "$program lists no case whose name starts with small:"
  for i in "${!names[@]}"; do
    watch "$i" "$program" "--test-case=${names[$i]//,/?}"
  done
  export OSCAR_TEST_DEVICE=cuda OSCAR_TORCH_LIBRARY=$build/liboscar_torch.so
  watch coded_operators --kernel-regex kns=oscar "$source/.venv/bin/python" -B "$source/tests/conformance/coded_operators_test.py" -k test_small
  wait
}

parts=("$@")
[ $# -gt 0 ] || parts=(kernels suite sanitizers)
for part in "${parts[@]}"; do
  case "$part" in
    kernels | suite | sanitizers) "$part" ;;
    *) die "unknown part \"$part\"; use kernels, suite, sanitizers" ;;
  esac
done
python3 -B "$source/scripts/gpu/results.py" "$out" "$commit" "$gpu" "$(nvcc --version | sed -n 's/.*release //p')" \
  "${parts[@]}" >"$out/cuda-tests.json" && status=0 || status=$?
grep -v '^  {' "$out/cuda-tests.json" >&2
exit "$status"
