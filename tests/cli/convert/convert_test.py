# SPDX-License-Identifier: MIT
"""`oscar convert`, read back by the libraries that others use: convert_test.py [ConvertTest.test_…]
Run by the project's virtual environment; what that lacks is skipped."""
import copy
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SKIPPED = 77
SAMPLE = Path(os.environ["OSCAR_PROJECT"]) / "zoo/sample/qwen3-2m/latest"
KEYS, VALUES = "k_rotation_qqt_r_h_pbr.pt", "v_rotation_sst_r_h_pbr.pt"
HEAD_DIM, LAYERS = 128, 4
OF_ALL = "verification, which was of all parts"
OF_OTHERS = ["the part coded", "the part with_means", OF_ALL]


def need(name):
    """The module; without it the test is skipped."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise unittest.SkipTest(f"{error}; run scripts/setup.sh --tests") from error


class ConvertTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-convert-")))

    def oscar(self, *arguments, exit_code=0):
        done = subprocess.run([os.environ["OSCAR_BINARY"], *map(str, arguments)], capture_output=True, text=True,
                              cwd=self.folder, timeout=120)
        self.assertEqual(done.returncode, exit_code, done.stderr)
        self.assertNotIn("bug in oscar", done.stderr)
        return done

    def convert(self, *arguments):
        """Returns what was lost."""
        return json.loads(self.oscar("convert", *arguments, "--json").stdout)["lost"]

    def refuse(self, exit_code, fragment, *arguments):
        before = sorted(self.folder.rglob("*"))
        self.assertIn(fragment, self.oscar("convert", *arguments, exit_code=exit_code).stderr)
        self.assertEqual(sorted(self.folder.rglob("*")), before)

    def rotations(self, folder=SAMPLE):
        """(keys, values): {layer id: matrix}, as torch reads them with nothing but weights allowed."""
        torch = need("torch")
        sides = []
        for side in "kv":
            file, = Path(folder).glob(f"{side}_rotation*.pt")
            layers = torch.load(file, weights_only=True)["layers"]
            sides.append({layer: entry["rotation"].numpy() for layer, entry in layers.items()})
        return sides

    def contents(self, file):
        """All that torch finds in a .pt file, in its order, with the bytes of tensors."""
        torch = need("torch")

        def plain(value):
            if isinstance(value, dict):
                return [(key, plain(member)) for key, member in value.items()]
            return (value.dtype, value.shape, value.numpy().tobytes()) if isinstance(value, torch.Tensor) else value

        return plain(torch.load(file, weights_only=True))

    def assert_same(self, folder, keys=None, values=None):
        expected = (keys, values) if keys else self.rotations()
        for ours, theirs in zip(self.rotations(folder), expected):
            self.assertEqual(list(ours), list(theirs))
            for layer, matrix in ours.items():
                self.assertEqual(matrix.tobytes(), theirs[layer].tobytes(), layer)

    def assert_sound(self, folder):
        self.assertIn("sound", self.oscar("inspect", folder).stdout)

    def whole(self, name):
        """To one file and back: the .pt files come out bit for bit, the manifest says the same."""
        self.assertEqual(self.convert(SAMPLE, name), OF_OTHERS)
        self.oscar("inspect", name)
        self.assertEqual(self.convert(name, "back"), [])
        # The sample may have been written by an older version.
        self.assertEqual(self.convert(SAMPLE, "fresh", "--part", "rotations"), [OF_ALL])
        for file in (self.folder / "fresh").iterdir():
            self.assertEqual((self.folder / "back" / file.name).read_bytes(), file.read_bytes(), file.name)
        for file in (KEYS, VALUES):
            self.assertEqual(self.contents(self.folder / "back" / file), self.contents(SAMPLE / file), file)
        return self.folder / name

    def test_h5(self):
        h5py = need("h5py")
        keys, values = self.rotations()
        with h5py.File(self.whole("set.h5")) as file:
            for layer in range(LAYERS):
                self.assertEqual(file[f"layers/{layer}/key/rotation"][:].tobytes(), keys[layer].tobytes())
                self.assertEqual(file[f"layers/{layer}/value/rotation"][:].tobytes(), values[layer].tobytes())
                self.assertIn("covariance", file[f"layers/{layer}/key"])
        with h5py.File(self.folder / "set.h5", "r+") as file:
            said = file["manifest"][:].tobytes().replace(b'"num_layers": 4', b'"num_layers": 2')
            file["manifest"][...] = need("numpy").frombuffer(said, "u1")
        self.refuse(1, "the model has 2 layers", "set.h5", "another")

    def test_safetensors(self):
        load = need("safetensors.numpy").load_file
        keys, values = self.rotations()
        tensors = load(self.whole("set.safetensors"))
        self.assertEqual(tensors["layers.3.key.rotation"].tobytes(), keys[3].tobytes())
        need("safetensors.numpy").save_file(tensors, self.folder / "bare.safetensors")
        self.refuse(1, "it has no manifest", "bare.safetensors", "foreign")

    def test_parts_are_chosen_by_name(self):
        self.assertEqual(self.convert(SAMPLE, "all"), [])
        self.assert_sound("all")
        self.assertEqual({path.name for path in (self.folder / "all").iterdir()}, {path.name for path in SAMPLE.iterdir()})
        for part, file in (("coded", "coded.safetensors"), ("with_means", "with_means/rotations.h5")):
            self.assertEqual(self.convert(SAMPLE, part, "--part", part), [OF_ALL])
            self.assert_sound(part)
            self.assertEqual((self.folder / part / file).read_bytes(), (self.folder / "all" / file).read_bytes())
            self.assertEqual(list(json.loads((self.folder / part / "manifest.json").read_text())["parts"]), [part])
        self.convert(SAMPLE, "means.h5", "--part", "with_means")
        self.convert("means.h5", "means")
        self.assertTrue((self.folder / "means/with_means/k_mean.pt").exists())
        self.convert("with_means", "one.h5")  # its only part
        self.refuse(1, "the coded cache has no rotations", "coded", "x", "--to", "pt")
        self.refuse(1, "the coded cache has no rotations", SAMPLE, "x.h5", "--part", "coded")
        self.assertIn(f"left out of again: {OF_ALL}\n", self.oscar("convert", SAMPLE, "again", "--part", "coded").stderr)
        self.refuse(2, "choose another output, or pass --force", SAMPLE, "again")
        self.refuse(2, 'unknown', SAMPLE, "x", "--part", "means")

    def test_folders_of_others_are_not_replaced(self):
        self.convert(SAMPLE, "ours", "--to", "pt")
        self.convert(SAMPLE, "ours", "--to", "pt", "--force")
        keys = (self.folder / "ours" / KEYS).read_bytes()
        for name, content in (("layer_0_rank0.pt", b"rows"), ("layer_0.pt", b"rows"), ("layer_00.pt", b""), ("k_rotation.pt", keys),
                              ("k_rotation_mine.pt", keys), (KEYS, b"rows"), (VALUES.replace("v_", "w_"), keys)):
            theirs = self.folder / name.replace(".", "_")
            theirs.mkdir()
            (theirs / name).write_bytes(content)
            for shape in ("pt", "mla"):
                self.refuse(2, f"no part of a folder of .pt files that oscar wrote: {name}", SAMPLE, theirs, "--to", shape, "--force")
            self.assertEqual((theirs / name).read_bytes(), content)

    def test_pt_versions(self):
        torch = need("torch")
        self.assertIn("clip ratios", self.convert(SAMPLE, "one", "--to", "pt"))
        self.assertEqual(self.contents(self.folder / "one" / KEYS), self.contents(SAMPLE / KEYS))
        self.assertEqual(len(list((self.folder / "one").iterdir())), 2)
        for version in (2, 3):
            self.convert(SAMPLE, f"v{version}", "--to", "pt", "--pt-version", version)
            file = torch.load(self.folder / f"v{version}" / KEYS, weights_only=True)
            self.assertEqual(file["format_version"], version)
            self.assertEqual(file["source_grouping"], "head" if version == 2 else "layer")
            self.assertEqual(list(file["layers"][0]["rotation"].shape)[-2:], [HEAD_DIM, HEAD_DIM])
        self.assertEqual(file["calibration"]["model_path"], "qwen3-2m")
        # A folder of bare files becomes a set that says what it does not know.
        self.convert("v3", "set")
        self.assert_same(self.folder / "set")
        self.assert_sound("set")
        manifest = json.loads((self.folder / "set/manifest.json").read_text())
        self.assertEqual(manifest["model"]["id"], "qwen3-2m")
        self.assertEqual(manifest["origin"]["format"], "pt v3")
        self.assertEqual(set(manifest["origin"]["unknown"]), {"recipe", "windows", "verification"})
        scalar = json.loads((SAMPLE / "manifest.json").read_text())["parts"]["rotations"]["codec"]["clip_scalar"]["key"]
        self.assertIn(f"K_CLIP_RATIO={scalar}\n", (self.folder / "set/serve.env").read_text())
        # Version 1 has no place for clip ratios.
        self.convert("one", "older")
        unknown = json.loads((self.folder / "older/manifest.json").read_text())["origin"]["unknown"]
        self.assertIn("clip_ratios", unknown)
        self.assertIn("published ones", (self.folder / "older/serve.env").read_text())

    def test_pt_version_3_tells_the_codec(self):
        torch = need("torch")
        self.assertEqual(self.convert(SAMPLE, "bare", "--to", "pt", "--pt-version", 3),
                         [*OF_OTHERS, "covariances", "windows, recipe and most of the provenance"])

        def tell(name, **fields):
            file = torch.load(self.folder / "bare" / name, weights_only=True)
            file["transform"].update(fields)
            torch.save(file, self.folder / "bare" / name)

        told = {"scale_dtype": "float16", "group_size": 128}
        for name in (KEYS, VALUES):
            tell(name, codec="lloyd-max", **told)
        self.convert("bare", "set")
        manifest = json.loads((self.folder / "set/manifest.json").read_text())
        codec = manifest["parts"]["rotations"]["codec"]
        self.assertEqual({**codec, **told, "name": "lloyd-max"}, codec)
        self.assertNotIn("codec", manifest["origin"]["unknown"])
        self.assertEqual(self.convert("bare", "v1", "--to", "pt", "--pt-version", 1), ["clip ratios", "codec and provenance"])
        for name in (KEYS, VALUES):
            file = torch.load(self.folder / "bare" / name, weights_only=True)
            for ratio in ("clip_ratio", "clip_scalar"):
                del file["calibration"][ratio]
            torch.save(file, self.folder / "bare" / name)
        self.convert("bare", "published_ratios")
        self.assertIn("sglang", json.loads((self.folder / "published_ratios/manifest.json").read_text())["readers"])
        tell(VALUES, group_size=64)
        self.refuse(1, "have different codecs", "bare", "x")
        tell(VALUES, group_size=48)
        self.refuse(1, "groups of 48 channels do not fit layer 0", "bare", "x")
        tell(VALUES, group_size=128, value_levels=8)
        self.refuse(1, "the codec has 8 levels, and sets have 4", "bare", "x")

    def test_what_one_file_of_two_tells_is_not_passed_over(self):
        torch = need("torch")
        self.convert(SAMPLE, "bare", "--to", "pt", "--pt-version", 3)
        whole = torch.load(self.folder / "bare" / VALUES, weights_only=True)

        def tell(change):
            file = copy.deepcopy(whole)
            change(file)
            torch.save(file, self.folder / "bare" / VALUES)

        def ratios(ratio):
            return lambda file: file["calibration"]["clip_ratio"].update({1: torch.tensor([ratio])})

        for said, change in (
                ("have different models", lambda file: file["calibration"].update(model_path="another/model")),
                ("have different calibration data", lambda file: file["calibration"].update(prompt_sha256="0" * 64)),
                ('"group_size" is absent or of another type', lambda file: file["transform"].update(group_size="128")),
                ('"clip_scalar" is absent or of another type', lambda file: file["calibration"].update(clip_scalar="1")),
                ("clip_scalar is not from 0 to 1", lambda file: file["calibration"].update(clip_scalar=float("nan"))),
                ("clip ratios from 0 to 1 of layer 1", lambda file: file["calibration"]["clip_ratio"].pop(1)),
                ("clip ratios from 0 to 1 of layer 1", ratios(float("nan"))), ("clip ratios from 0 to 1 of layer 1", ratios(-1)),
                ("the value file has k_mean", lambda file: file["layers"][1].update(k_mean=torch.ones(1, HEAD_DIM)))):
            with self.subTest(said):
                tell(change)
                self.refuse(1, said, "bare", "x")
        tell(lambda file: file["calibration"].update(clip_scalar=1, model_revision=None))
        self.convert("bare", "set")
        codec = json.loads((self.folder / "set/manifest.json").read_text())["parts"]["rotations"]["codec"]
        self.assertEqual(codec["clip_scalar"]["value"], 1)

    def make_model(self, blocks=LAYERS, head_dim=HEAD_DIM, parts=0):
        gguf, numpy = need("gguf"), need("numpy")
        writer = gguf.GGUFWriter(self.folder / "model.gguf", "qwen3")
        writer.add_block_count(blocks)
        writer.add_key_length(head_dim)
        writer.add_uint16("split.count", parts)  # 0: merged
        writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "ü"])
        random = numpy.random.default_rng(1)
        writer.add_tensor("token_embd.weight", random.standard_normal((3, 96), dtype=numpy.float32))
        packed = random.integers(0, 256, (4, 34 * 3), dtype=numpy.uint8)
        writer.add_tensor("blk.0.attn_q.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor("odd", random.standard_normal(5).astype(numpy.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def test_gguf(self):
        gguf = need("gguf")
        keys, values = self.rotations()
        self.make_model()
        self.assertEqual(self.convert(SAMPLE, "baked.gguf", "--into", "model.gguf"), [*OF_OTHERS, "eigenvalues", "covariances"])
        before, after = gguf.GGUFReader(self.folder / "model.gguf"), gguf.GGUFReader(self.folder / "baked.gguf")
        tensors = {tensor.name: tensor for tensor in after.tensors}
        self.assertEqual(len(tensors), len(before.tensors) + 2 * LAYERS)
        for tensor in before.tensors:
            self.assertEqual(tensors[tensor.name].data.tobytes(), tensor.data.tobytes())
            self.assertEqual(tensors[tensor.name].tensor_type, tensor.tensor_type)
        self.assertEqual(after.fields["tokenizer.ggml.tokens"].contents(), ["a", "bc", "ü"])
        for layer in range(LAYERS):
            for side, matrices in (("k", keys), ("v", values)):
                baked = tensors[f"blk.{layer}.attn_{side}_rot.weight"]
                self.assertEqual(baked.tensor_type, gguf.GGMLQuantizationType.F32)
                self.assertEqual(baked.data.reshape(HEAD_DIM, HEAD_DIM).T.tobytes(), matrices[layer].tobytes())
        # Again into the copy: replaced, not doubled.
        self.convert(SAMPLE, "again.gguf", "--into", "baked.gguf")
        self.assertEqual((self.folder / "again.gguf").stat().st_size, (self.folder / "baked.gguf").stat().st_size)
        self.convert("again.gguf", "back")
        self.assert_same(self.folder / "back", keys, values)
        # Without eigenvalues the files have other hashes, which serve.env holds; its comments are of its version.
        there, back = ([line for line in (folder / "serve.env").read_text().splitlines() if not re.match("[0-9a-f]{64} |#", line)]
                       for folder in (SAMPLE, self.folder / "back"))
        self.assertEqual(back, there)
        self.assertIn("key rotations", self.oscar("inspect", "again.gguf").stdout)
        baked = (self.folder / "baked.gguf").read_bytes().replace(b"oscar.manifest", b"other.manifest")
        (self.folder / "baked.gguf").write_bytes(baked.replace(b"blk.3.attn_k_rot", b"blk.3.attn_x_rot"))
        self.refuse(1, "there is no tensor blk.3.attn_k_rot.weight", "baked.gguf", "x")

    def test_gguf_of_another_model_is_refused(self):
        self.make_model(blocks=2)
        self.refuse(1, "the model has 2 layers, the set has layer 2", SAMPLE, "x.gguf", "--into", "model.gguf")
        self.make_model(head_dim=64)
        self.refuse(1, "the model has head_dim 64, the set has 128", SAMPLE, "x.gguf", "--into", "model.gguf")
        self.make_model(parts=2)
        self.refuse(1, "llama-gguf-split --merge", SAMPLE, "x.gguf", "--into", "model.gguf")
        self.refuse(2, "--into MODEL.gguf", SAMPLE, "x.gguf")
        self.refuse(2, "must lie on a disk", SAMPLE, "x.gguf", "--into", "https://127.0.0.1:1/model.gguf")

    def test_mla(self):
        torch = need("torch")
        (self.folder / "mla").mkdir()
        latent, _ = torch.linalg.qr(torch.randn(64, 64))
        torch.save(latent, self.folder / "mla/layer_0.pt")
        torch.save({"rotation": latent * 2, "q_rotation": latent / 2, "mean": torch.arange(64.0)},
                   self.folder / "mla/layer_5.pt")
        self.convert("mla", "set.h5")
        self.assertEqual(self.convert("set.h5", "back", "--to", "mla"), ["windows, codec and provenance"])
        first = torch.load(self.folder / "back/layer_0.pt", weights_only=True)
        fifth = torch.load(self.folder / "back/layer_5.pt", weights_only=True)
        self.assertTrue(torch.equal(first, latent))  # as every tree of SGLang reads it
        self.assertTrue(torch.equal(fifth["q_rotation"], latent / 2))
        self.assertTrue(torch.equal(fifth["mean"], torch.arange(64.0)))
        self.convert("mla", "set")
        self.assert_sound("set")
        self.convert("mla", "unserved", "--format", "h5")
        self.assertIn("no .pt files for sglang", self.oscar("serve-env", "unserved", exit_code=1).stderr)
        self.refuse(1, "what llama.cpp cannot use", "mla", "x.gguf", "--into", "mla/layer_0.pt")
        self.refuse(1, "which version 1 cannot hold", "mla", "x", "--to", "pt", "--pt-version", "1")
        self.refuse(1, "an MLA cache has one row for all", SAMPLE, "x", "--to", "mla")
        torch.save(-latent, self.folder / "mla/layer_05.pt")
        self.refuse(1, "two files are of layer 5", "mla", "x")

    def test_what_cannot_be_converted_is_told(self):
        (self.folder / "page.pt").write_text("<html>")
        (self.folder / "empty").mkdir()
        self.refuse(1, "no such file", "nothing", "x")
        self.refuse(1, "holds no rotations", "page.pt", "x")
        self.refuse(1, "holds no rotations", "empty", "x")
        self.refuse(1, "name the folder that holds both", SAMPLE / KEYS, "x")
        self.refuse(2, "exists already", SAMPLE, "page.pt", "--to", "h5")
        (self.folder / "outer/inner").mkdir(parents=True)
        self.refuse(2, "exists already", SAMPLE, "outer/inner/..")
        self.refuse(2, "is a folder of them", SAMPLE, "x.pt")
        self.refuse(2, "only .pt output has versions", SAMPLE, "x.h5", "--pt-version", "2")
        self.convert(SAMPLE, "bare_v1", "--to", "pt", "--pt-version", "1")
        self.refuse(1, "nothing tells how many there are", "bare_v1", "x", "--to", "pt", "--pt-version", "2")
        self.refuse(2, "only GGUF output takes a model", SAMPLE, "x.h5", "--into", "page.pt")
        self.refuse(2, "not a set of oscar", SAMPLE, "page.pt", "--to", "h5", "--force")
        (self.folder / "page.pt").unlink()
        for _ in range(2):
            self.oscar("convert", SAMPLE, "page.pt", "--to", "h5", "--force")
        self.oscar("inspect", "page.pt")
        self.refuse(2, "over IN", "page.pt", "page.pt", "--to", "h5", "--force")


if __name__ == "__main__":
    program = unittest.main(exit=False)
    if program.result.skipped:
        print("skipped:", program.result.skipped[0][1])
    sys.exit(1 if not program.result.wasSuccessful() else SKIPPED if program.result.skipped else 0)
