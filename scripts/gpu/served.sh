#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# On a machine with an NVIDIA GPU and vLLM: served.sh PYTHON [CLASS.TEST...], tests of tests/python/vllm_features_test.py, vllm_server_test.py
# and vllm_offload_test.py with a vLLM that serves on the GPU, six at once. PYTHON: one that imports vLLM. See place.sh for what is run. Writes
# served.json (GPU, driver, commit, each test with its seconds and figures) and a log of each test into $OUT or .gpu/out. Exit status 1 if a test
# failed. Tests start PYTHON without variables of vLLM: without FlashInfer it must be a wrapper that sets VLLM_USE_FLASHINFER_SAMPLER=0.
set -euo pipefail
. "$(dirname "$0")/place.sh"
[ $# -gt 0 ] || die "usage: scripts/gpu/served.sh PYTHON [CLASS.TEST...]"
export OSCAR_VLLM_PYTHON=$1 OSCAR_TEST_DEVICE=cuda OSCAR_BINARY=$build/oscar OSCAR_PROJECT=$source OSCAR_TORCH_LIBRARY=$build/liboscar_torch.so
export OSCAR_SAMPLE_SETS=$out/sample_sets PYTHONPATH=$source/apps/python:$source/tests/python${PYTHONPATH:+:$PYTHONPATH} out source
shift
[ $# -gt 0 ] || set -- FeaturesTest.test_{preemption_drafts_aborts_and_adapters,a_model_that_drafts,a_layer_that_drafts} \
  FeaturesTest.test_{a_layer_that_drafts_of_several_states,keys_before_rope,layers_for_tokens_after_the_next} \
  FeaturesTest.test_{layers_with_sliding_windows,sinks,soft_caps,qwen3_next,qwen3_5} ServerTest.test_{a_coded_set,observed_prompts} \
  OffloadTest.test_requests_that_come_back
vllm=$("$OSCAR_VLLM_PYTHON" -c 'import importlib.metadata as m; print(m.version("vllm"))') || die "$OSCAR_VLLM_PYTHON has no vLLM"
mkdir -p "$OSCAR_SAMPLE_SETS"
python3 -B "$source/tests/python/sample_sets.py" >"$out/sample_sets.log" 2>&1 || { tail -20 "$out/sample_sets.log" >&2; die "no sets of the sample model"; }

# shellcheck disable=SC2016  # the variables are those of each test's shell
printf '%s\n' "$@" | xargs -P 6 -n 1 bash -c 'name=$1 file=${1%%Test.*} begin=$(date +%s) status=0
  timeout 300 python3 -B "$source/tests/python/vllm_${file,,}_test.py" "$name" >"$out/$name.log" 2>&1 || status=$?
  printf "ended: %s %s\n" "$status" "$(($(date +%s) - begin))" >>"$out/$name.log"' served
python3 -B - "$commit" "$gpu" "$vllm" "$@" >"$out/served.json" <<'END'
import json, os, re, sys

commit, gpu, vllm, *names = sys.argv[1:]
tests = []
for name in names:
    with open(f"{os.environ['out']}/{name}.log", encoding="utf-8", errors="replace") as file:
        log = file.read()
    status, seconds = map(int, re.findall(r"^ended: (\d+) (\d+)$", log, re.MULTILINE)[-1])
    tests.append({"name": name, "passed": status == 0 and "skipped=" not in log, "seconds": seconds, "figures": re.findall(r"^figure: (.*)$", log, re.MULTILINE)})
print(json.dumps({"commit": commit, "gpu": gpu, "vllm": vllm, "tests": tests}, indent=1))
sys.exit(not all(test["passed"] for test in tests))
END
