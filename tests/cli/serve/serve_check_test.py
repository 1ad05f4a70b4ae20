# SPDX-License-Identifier: MIT
"""oscar serve-check against a server over the sample model: serve_check_test.py [ServeCheckTest.test_…]"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

PROJECT = Path(os.environ["OSCAR_PROJECT"])
sys.path.insert(0, str(PROJECT / "apps/python"))
try:
    import oscar_kv
    import torch
    import transformers
    from completions_server import CompletionsServer
    from rotated_cache import RotatedCache
    from tokenizers import Tokenizer
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

torch.set_num_threads(1)
MODEL, SET = PROJECT / "tests/data/qwen3-2m", PROJECT / "zoo/sample/qwen3-2m/latest"
SHORT = {"--prompts": "3", "--needles": "2", "--prompt-tokens": "512", "--generate": "24", "--max-tokens": "4096"}
TEXT = ("--tokens", str(PROJECT / "tests/data/golden/qwen3-2m/tokens_eval.npy"))


def check(server, reader="sglang-v1", place=SET, **changes):
    """check(server, served_model="x"): exit status, report and messages."""
    options = SHORT | {"--model": str(MODEL)} | ({"--for": reader} if reader else {}) | {"--" + name.replace("_", "-"): value for name, value in changes.items()}
    command = [os.environ["OSCAR_BINARY"], "serve-check", place, "--url", getattr(server, "url", server),
               *TEXT, "--json", "-q", *(word for pair in options.items() for word in pair)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


class ServeCheckTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()

    def exact(self, **options):
        return CompletionsServer(self.model, lambda: transformers.DynamicCache(config=self.model.config), **options)

    def quantised(self, reader="sglang-v1", clipped=True, **options):
        if reader == "transformers":
            return CompletionsServer(self.model, lambda: oscar_kv.PackedCache(SET, self.model.config), **options)
        return CompletionsServer(self.model, lambda: RotatedCache(SET, reader, self.model.config, clipped), **options)

    def test_accepts_a_server_that_uses_the_set(self):
        for reader in ("sglang-v1", "sglang", "transformers"):
            with self.quantised(reader) as server:
                code, report, errors = check(server, reader)
            self.assertEqual((code, report["verdict"], report["reasons"], errors), (0, "accepted", [], ""), report)
            self.assertEqual((report["prompts"], report["needles"], report["served_model"]), (3, 2, "sample"))
            self.assertEqual(report["positions"], 5 * 23)
            self.assertGreater(report["agreement"], 0.5 if reader == "transformers" else 0.9)  # the coded part changes next to nothing
            path, request = server.requests[0]
            self.assertEqual((path, len(request["prompt"]), request["temperature"]), ("/v1/completions", 512, 0))

    def test_rejects_a_server_that_does_not_quantise(self):
        with self.exact() as server:
            code, report, _ = check(server, generate="8")
        self.assertEqual((code, report["verdict"]), (3, "rejected"))
        self.assertEqual(report["positions"], 3 * 7 + 2 * 15)  # of needles as many as their answers have
        self.assertLess(report["measured_kl"], 0.1 * report["predicted_kl"])
        self.assertIn("its cache is not quantised", report["reasons"][0])

    def test_rejects_a_server_with_another_part(self):
        with self.quantised("sglang") as server:
            code, report, _ = check(server, "transformers")
        self.assertEqual((code, report["verdict"]), (3, "rejected"), report)

    def test_rejects_a_server_with_the_set_and_another_codec(self):
        with self.quantised(clipped=False) as server:
            code, report, _ = check(server)
        self.assertEqual((code, report["verdict"]), (3, "rejected"), report)
        self.assertIn("what changes is not what the set changes: agreement", report["reasons"][-1])

    def test_reads_the_settings_that_a_server_tells(self):
        latest = SET / "k_rotation_qqt_r_h_pbr.pt"
        other = next((SET / "with_means").glob("k_rotation_*.pt"))
        for told, words in (({"SGLANG_OSCAR_K_ROTATION_PATH": str(latest)}, None),
                            ({"SGLANG_OSCAR_K_ROTATION_PATH": "/in/a/container/k.pt"}, None),
                            ({"SGLANG_OSCAR_K_ROTATION_PATH": str(other)}, "which is no file of this set"),
                            ({"SGLANG_OSCAR_V_ROTATION_PATH": "/c/oscar-rotations/x/v.pt"}, "which the server made itself"),
                            ({"SGLANG_OSCAR_CALIBRATION_ACTIVE": "False"}, None),
                            ({"SGLANG_OSCAR_CALIBRATION_ACTIVE": "True"}, "the server calibrated itself at its start")):
            def with_settings(answer, told=told):
                return answer | {"internal_states": [{"env_vars": told}]} if "data" in answer else answer
            with self.quantised(change=with_settings) as server:
                code, report, errors = check(server, prompts="1", needles="0", generate="8")
            self.assertEqual((code, bool(report["reasons"])), (3, True) if words else (0, False), report)
            self.assertEqual("only 7 generated tokens compared, fewer than 100" in errors, words is None, errors)
            self.assertIn(words or "", " ".join(report["reasons"]))

    def test_asks_which_server_it_is_where_servers_read_different_parts(self):
        with self.exact() as server:
            code, _, errors = check(server, reader=None)
            self.assertEqual((code, "say which server it is: --for" in errors), (2, True), errors)

        def of_sglang(answer):
            return answer | {"data": [each | {"owned_by": "sglang"} for each in answer["data"]]} if "data" in answer else answer
        with self.quantised("sglang", change=of_sglang) as server:
            code, report, _ = check(server, reader=None)
            self.assertEqual((code, report["verdict"]), (0, "accepted"), report)

    def test_refuses_a_set_that_a_server_wrote_over(self):
        with tempfile.TemporaryDirectory(prefix="oscar-serve-") as folder:
            copy = Path(shutil.copytree(SET, Path(folder, "set")))
            (copy / ".oscar_0123456789abcdef.complete.json").write_text("{}")
            code, _, errors = check("http://127.0.0.1:9", place=copy)
            self.assertEqual((code, "a server calibrated itself" in errors), (1, True), errors)

    def test_a_reference_server_in_place_of_the_weights(self):
        with tempfile.TemporaryDirectory(prefix="oscar-serve-") as folder, self.exact() as reference:
            for name in ("config.json", "tokenizer.json"):
                shutil.copy(MODEL / name, folder)
            options = {"reference": reference.url, "model": folder}
            with self.quantised() as server:
                code, report, errors = check(server, **options)
                self.assertEqual((code, report and report["verdict"]), (0, "accepted"), errors)
                self.assertEqual((report["positions"], report["reference"]), (5 * 23, reference.url))
                self.assertNotIn("agreement", report)
                by_reference = report["measured_kl"]
                _, by_model, _ = check(server)
                self.assertLess(abs(by_reference / by_model["measured_kl"] - 1), 0.05)
                self.assertEqual(report["same_top"], by_model["same_top"])
                code, report, _ = check(server, max_kl=str(by_reference / 2), **options)
                self.assertEqual((code, "a broken cache" in report["reasons"][0]), (3, True), report)
            code, report, _ = check(reference, **options)
            self.assertEqual((code, "its cache is not quantised" in report["reasons"][0]), (3, True), report)
        self.assertTrue(any(request.get("echo") for _, request in reference.requests))

    def test_says_what_is_wrong_with_a_reference(self):
        def without_echo(answer):
            for choice in answer.get("choices", []):
                for name in choice["logprobs"]:
                    choice["logprobs"][name] = choice["logprobs"][name][-1:]
            return answer

        with self.quantised() as server, self.exact(change=without_echo) as reference:
            code, _, errors = check(server, reference=reference.url, generate="4")
            self.assertEqual((code, "does not give back the tokens" in errors), (1, True), errors)
            code, _, errors = check(server, reference="nowhere", generate="4")
            self.assertEqual((code, "where: --reference" in errors), (2, True), errors)

    def test_a_key_goes_over_tls_or_to_this_machine_only(self):
        few = {"prompts": "1", "needles": "0", "generate": "2"}
        with mock.patch.dict(os.environ, OPENAI_API_KEY="sk-hidden"), self.exact() as server:
            for host, key in (("127.0.0.1", "Bearer sk-hidden"), ("0.0.0.0", None)):
                address = server.url.replace("127.0.0.1", host)
                for place in ({"server": address}, {"server": server.url, "reference": address}):
                    server.keys.clear()
                    check(**place, **few)
                    self.assertIn(key, server.keys)
                    self.assertEqual(len(server.keys), 2 if "reference" in place and key is None else 1)
            server.status = 401
            code, _, errors = check(address, **few)
            self.assertEqual((code, "HTTP 401" in errors, "only over TLS (https://) or to this machine" in errors), (1, True, True), errors)
            self.assertNotIn("sk-hidden", errors)

    def test_tells_what_it_found(self):
        """As people read it: a name of the server's forges no line, and fewer prompts than asked for are told."""
        with self.exact() as server:
            server.name = "x\naccepted: the server uses this set"
            command = [os.environ["OSCAR_BINARY"], "serve-check", SET, "--url", server.url, *TEXT, "--model", MODEL, "--for", "sglang-v1",
                       "--max-tokens", "1024", "--prompt-tokens", "512", "--needles", "0", "--generate", "4", "--prompts", "9"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=250)
        self.assertNotIn("\naccepted", done.stdout)
        self.assertIn("\nrejected", done.stdout)
        self.assertIn("the texts have 2 prompts of 512 tokens, fewer than --prompts 9", done.stderr)

    def test_understands_tokens_that_are_written_as_text(self):
        names = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
        with self.quantised(token=lambda i: names.decode([i])) as server:
            code, report, _ = check(server, prompts="2")
        self.assertEqual(code, 0, report)
        self.assertGreater(report["positions"], 30)

    def test_says_what_is_wrong_with_a_server(self):
        cases = (({"change": lambda answer: b"<html>"}, 1, "not valid JSON"),
                 ({"change": lambda answer: bytes(9 << 20)}, 1, "the answer has more than 8388608 bytes"),
                 ({"change": lambda answer: {"error": "x"}}, 1, 'has no "data"'),
                 ({"change": lambda answer: {"data": []}}, 1, "the server has no model\n  where: http://"),
                 ({"change": self.without_log_probabilities}, 1, "gives no log-probabilities"),
                 ({"token": lambda i: f"token_id:{i + 4096}"}, 1, "outside the vocabulary of 2048"),
                 ({"change": self.with_another_vocabulary}, 1, "the server lists token 4096, and the model has 2048"),
                 ({"token": lambda i: "no such token"}, 1, "no place in the model's vocabulary"))
        for options, expected, words in cases:
            with self.exact(**options) as server:
                code, _, errors = check(server, prompts="1", needles="0", generate="2")
            self.assertEqual(code, expected, errors)
            self.assertIn(words, errors)
        with self.exact() as server:
            code, _, errors = check(server, served_model="other")
            self.assertEqual((code, "give one of these: sample" in errors), (2, True), errors)
            with self.exact(change=lambda answer: {"data": [{"id": f"model-{i}"} for i in range(100_000)]}) as many:
                code, _, errors = check(many, served_model="other")
            self.assertEqual((code, "model-20" in errors, len(errors) < 3000), (2, True, True), errors)
            code, _, errors = check(server, prompt_tokens="300")
            self.assertEqual((code, "lie in the windows of 64 and 256" in errors), (2, True), errors)
            for changes, words in (({"prompt_tokens": "2049"}, "the model reads 2048 tokens at most"),
                                   ({"seq_len": "511"}, "--seq-len cuts texts to 511 tokens"),
                                   ({"max_tokens": "400"}, "no text has 512 tokens")):
                code, _, errors = check(server, **changes)
                self.assertEqual((code, words in errors), (2, True), errors)
        code, _, errors = check(server.url)  # it is gone
        self.assertEqual((code, "the transfer failed" in errors), (1, True), errors)

    @staticmethod
    def with_another_vocabulary(answer):
        for choice in answer.get("choices", []):
            choice["logprobs"]["top_logprobs"][-1]["token_id:4096"] = -1.0
        return answer

    @staticmethod
    def without_log_probabilities(answer):
        for choice in answer.get("choices", []):
            choice["logprobs"] = None
        return answer


if __name__ == "__main__":
    unittest.main()
