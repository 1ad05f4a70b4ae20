# SPDX-License-Identifier: MIT
"""vllm_answers.py: for vllm_models_test.py, in the Python of vLLM. Each line of stdin names a JSON of the members of vllm.LLM, `prompts`
of token ids, `tokens` to generate, and `variables` of the environment. A child, which has vLLM imported already, writes what it says beside
it as .log, and as .npz the generated ids and the log-probabilities of the whole vocabulary at each. Its exit status is the answer."""
import json
import os
import sys
from pathlib import Path

import numpy as np
import vllm
import vllm.entrypoints.llm  # noqa: F401  what vLLM itself imports late


def answer(path):
    asked = json.loads(path.read_text())
    log = os.open(path.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.environ.update(asked["variables"])
    model = vllm.LLM(**asked["members"])
    sampling = vllm.SamplingParams(temperature=0, max_tokens=asked["tokens"], ignore_eos=True, logprobs=-1, detokenize=False)
    outputs = [found.outputs[0] for found in model.generate([{"prompt_token_ids": ids} for ids in asked["prompts"]], sampling, use_tqdm=False)]
    size = len(outputs[0].logprobs[0])
    np.savez(path.with_suffix(".npz"), tokens=[found.token_ids for found in outputs],
             logs=[[[step[i].logprob for i in range(size)] for step in found.logprobs] for found in outputs])


print(vllm.__version__, flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        answer(Path(line.strip()))
        sys.stdout.flush()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
