# SPDX-License-Identifier: MIT
"""A model in GGUF goes wherever a checkpoint's folder goes: gguf_test.py [GgufTest.test_…]."""
import json
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "remote"))
from remote_case import DATA, MODEL, TOKENS, RemoteCase, read_folder
from peers import FileServer

try:
    import numpy
    from gguf import GGUFValueType
    from sample import KIND, write_sample
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup.sh --tests")
    sys.exit(77)

TEXT = ["--text", DATA / "text/pep-0334.txt", "--max-tokens", "600"]
ROTATIONS = ["--recipe", "oscar"]  # reads the model once


class GgufTest(RemoteCase):
    def sample(self, name="sample.gguf", **more):
        return write_sample(self.folder / name, MODEL, **more)

    def refused(self, fragments, path, *options, code=1):
        self.fail_with([*fragments, path.name], "fit", "--model", path, *(options or TOKENS), "--out", "set", code=code)

    def test_a_file_in_bfloat16_is_the_checkpoint(self):
        path = self.sample()
        for options in (TOKENS, TEXT):  # ids, and the file's own tokenizer
            dumped = []
            for place, out in ((MODEL, "a"), (path, "b")):
                self.succeed("dump", "-q", "--force", "--model", place, *options, "--out", out)
                dumped.append({name: content for name, content in read_folder(self.folder / out).items() if name.startswith("layer_")})
            self.assertTrue(dumped[0])
            self.assertEqual(*dumped)

    def test_fit_and_verify(self):
        path = self.sample(kind=KIND.Q8_0)
        files = self.fit("set", "--model", path, "--recipe", "stretch", *TOKENS)
        identity = json.loads(files["manifest.json"])["model"]
        self.assertEqual((identity["id"], identity["num_layers"], identity["head_dim"]), ("sample", 4, 128))
        verify = ["verify", "-q", "set", *TOKENS, "--compare", "none", "--no-default-limits", "--recent", "64", "--json"]
        done = json.loads(self.succeed(*verify, "--model", path).stdout)
        self.assertLess(done["methods"][0]["model"]["kld_mean"], 0.1)
        checkpoint = json.loads(self.succeed(*verify, "--model", MODEL).stdout)
        self.assertLessEqual({("model_identity", True), ("model_weights", True)},
                             {(check["name"], check["ok"]) for check in checkpoint["structure"]["checks"]})

    def test_at_an_address(self):
        path = self.sample(kind=KIND.Q4_1)
        here = self.fit("a", "--model", path, *TEXT, *ROTATIONS)
        server = FileServer({"models/sample.gguf": path.read_bytes()})
        with server as url:
            self.assertEqual(self.fit("b", "--model", f"{url}/models/sample.gguf", *TEXT, *ROTATIONS), here)
            asked = [piece for _, piece in server.seen]
        self.assertNotIn(None, asked)

    def test_in_parts(self):
        whole = self.fit("a", "--model", self.sample(), *TOKENS, *ROTATIONS)
        names = [f"sample-{part:05}-of-00003.gguf" for part in (1, 2, 3)]
        parts = [self.sample(name, parts=3, part=part + 1) for part, name in enumerate(names)]
        self.assertEqual(self.fit("b", "--model", parts[0], *TOKENS, *ROTATIONS), whole)
        server = FileServer({f"m/{name}": part.read_bytes() for name, part in zip(names, parts)})
        with server as url:
            self.assertEqual(self.fit("c", "--model", f"{url}/m/{names[0]}", *TOKENS, *ROTATIONS), whole)
        self.refused(["is not the first part", names[0]], parts[1])
        parts[2].unlink()
        self.fail_with(["no such file", names[2]], "fit", "--model", parts[0], *TOKENS, "--out", "set")
        renamed = parts[0].rename(self.folder / "first.gguf")
        self.refused(["one of 3 parts", "-of-00003.gguf"], renamed)

    def test_what_is_not_supported_is_named(self):
        self.refused(['"mamba" is not supported', "qwen3moe"], self.sample(architecture="mamba"))
        self.refused(["no tokenizer", "--tokens"], self.sample(tokenizer=False), *TEXT)
        self.fit("a", "--model", self.sample(tokenizer=False), *TOKENS)
        strange = {"blk.0.attn_sub_norm.weight": numpy.ones(128, dtype=numpy.float32)}
        self.refused(["blk.0.attn_sub_norm.weight", "do not have"], self.sample(more=strange))
        self.refused(["blk.0.ffn_down.weight", "TQ1_0", "not supported", "Q4_0"], self.sample(kind=KIND.TQ1_0))

    def test_metadata_that_is_not_read_is_named(self):
        number, text, flag, array = GGUFValueType.FLOAT32, GGUFValueType.STRING, GGUFValueType.BOOL, GGUFValueType.ARRAY
        for key, value, kind in (("attention.clamp_kqv", 8.0, number), ("attention.causal", False, flag), ("rope.unheard_of", 3.0, number),
                                 ("attention.sliding_window", 64, GGUFValueType.UINT32), ("logit_scale", 0.5, number),
                                 ("rope.scaling.attn_factor", 0.7, number), ("rope.scaling.type", "longrope", text),
                                 ("attention.value_length", 64, GGUFValueType.UINT32), ("attention.head_count", [3, 3, 2, 3], array),
                                 ("attention.layer_norm_rms_epsilon", float("inf"), number), ("attention.scale", float("inf"), number)):
            self.refused([f"qwen3.{key}"], self.sample(metadata=[("qwen3." + key, value, kind)]))
        self.fit("a", "--model", self.sample(metadata=[("qwen3.rope.scaling.finetuned", True, flag)]), *TOKENS)
        yarn = [("rope.scaling.type", "yarn", text), ("rope.scaling.factor", 4.0, number), ("rope.scaling.yarn_beta_fast", 16.0, number)]
        path = self.sample(metadata=[("qwen3." + key, value, kind) for key, value, kind in yarn])
        done = self.succeed("dump", "--model", path, *TOKENS, "--out", "d")
        self.assertIn("yarn_beta_fast is 16.0 and counts; llama.cpp does not", done.stderr)
        ones = numpy.ones(64, dtype=numpy.float32)
        self.refused(["rope_factors_short.weight"], self.sample(more={"rope_factors_long.weight": ones}))
        self.refused(["model.layers.0.post_attention_layernorm.bias", "do not use"],
                     self.sample(more={"blk.0.ffn_norm.bias": numpy.ones(192, dtype=numpy.float32)}))

    def test_a_file_for_other_machines_is_named(self):
        path = self.sample()
        content = bytearray(path.read_bytes())
        content[4:8] = content[4:8][::-1]
        path.write_bytes(content)
        self.refused(["big-endian"], path)

    def test_words_that_the_file_does_not_tell_are_cut_as_by_default(self):
        path = self.sample(metadata=[("tokenizer.ggml.pre", "default", GGUFValueType.STRING)])
        self.succeed("dump", "-q", "--model", path, *TEXT, "--out", "told")
        named = json.loads((self.folder / "told/manifest.json").read_text())["calibration"]["data_sha256"]
        path.write_bytes(path.read_bytes().replace(b"tokenizer.ggml.pre", b"tokenizer.ggml.prE"))
        done = self.succeed("dump", "--model", path, *TEXT, "--out", "untold")
        self.assertIn("tokenizer.ggml.pre is missing", done.stderr)
        self.assertEqual(json.loads((self.folder / "untold/manifest.json").read_text())["calibration"]["data_sha256"], named)

    def test_damage_is_named(self):
        path = self.sample()
        content = path.read_bytes()
        for size in (3, 100, len(content) // 50, len(content) - 1000):
            path.write_bytes(content[:size])
            self.refused(["not a sound GGUF file"], path)
        path.write_bytes(content.replace(b"qwen3.block_count", b"qwen3.blocc_count"))
        self.refused(["qwen3.block_count is missing"], path)
        path.write_bytes(content.replace(b"blk.1.attn_k.weight", b"blk.7.attn_k.weight"))
        self.refused(["model.layers.1.self_attn.k_proj.weight"], path)
        path.write_bytes(content.replace(b"general.architecture", b"general.architektur"+b"e"))
        self.refused(["general.architecture is missing"], path)

    def test_strange_names_and_tokenizers_are_named(self):
        name = "blk.0." + "a" * 300_000 + ".weight"  # which no search may recurse over
        self.refused(["which models of the architecture", "do not have"], self.sample(more={name: numpy.ones(128, dtype=numpy.float32)}))
        twice = {"blk.00.attn_norm.weight": numpy.ones(128, dtype=numpy.float32)}
        self.refused(["blk.00.attn_norm.weight"], self.sample(more=twice))
        array, key = GGUFValueType.ARRAY, "tokenizer.ggml."
        for metadata, told in (((key + "merges", [1, 2], array), "merges has what is no text"),
                               ((key + "token_type", [0.5] * 4096, array), "token_type has"),
                               ((key + "add_bos_token", "yes", GGUFValueType.STRING), "add_bos_token is neither true nor false")):
            self.refused([told], self.sample(metadata=[metadata]), *TEXT)

    def test_a_folder_with_a_file_tells_to_name_the_file(self):
        self.copy(MODEL, "m")
        for weights in (self.folder / "m").glob("*.safetensors*"):
            weights.unlink()
        self.sample("m/sample.gguf")
        self.fail_with(["no weights", "name the .gguf file itself"], "fit", "--model", "m", *TOKENS, "--out", "set")


if __name__ == "__main__":
    unittest.main()
