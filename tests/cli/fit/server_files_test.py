# SPDX-License-Identifier: MIT
"""What OSCAR's SGLang keeps of its calibration, as torch writes it: fitted, inspected, verified, and refused where it is not whole.
server_files_test.py [ServerFilesTest.test_…]"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import torch
    from safetensors.torch import load_file
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

sys.path.insert(0, str(Path(__file__).parents[2] / "data/make"))
import server_calibration as server  # noqa: E402

WINDOWS = ("--sink", "16", "--recent", "32")
PAIR = ("k_rotation_qqt_r_h_pbr.pt", "v_rotation_sst_r_h_pbr.pt")


TOLD = {"schema": "oscar.dump.v1", "oscar_version": "", "format": "pt", "dtype": "bfloat16", "layers": [],
        "model": {"id": "m", "num_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "config_sha256": "c"},
        "calibration": {"data_sha256": "", "tokens": 340, "sequences": 2, "blocks": ["1" * 6400, "2" * 16], "image_tokens": 7}}


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/oscar-was-here",)


class ServerFilesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="oscar-server-")))
        cls.rows = server.made_rows()
        cls.dump = server.dump(cls.folder / "dump", cls.rows)
        cls.one = server.save(cls.folder / "one", cls.rows, rho=False, scaling=None)
        cls.two = server.save(cls.folder / "two", cls.rows, ranks=2)

    def oscar(self, *arguments, status=0):
        done = subprocess.run([os.environ["OSCAR_BINARY"], *map(str, arguments)], capture_output=True, text=True, cwd=self.folder, timeout=120)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def fit(self, out, *options, status=0):
        return self.oscar("fit", *options, *WINDOWS, "--out", out, "--force", status=status)

    def sums(self, *options):
        """Second moments by name."""
        self.oscar("fit", "--recipe", "stretch", "--center", "--clip", "off", *options, "--save-stats", "s", "--force")
        tensors = load_file(self.folder / "s")
        return {name: x / tensors[name.replace("sums", "total")].reshape(-1, 1, 1) if x.dim() == 3 else x
                for name, x in tensors.items() if name.endswith(".sums")}

    def test_sums_are_those_of_our_own_statistics(self):
        # Both are float64 sums of products of bfloat16: at most 2 x 340 roundings of 1.1e-16, and room for what sst weighs by.
        own = self.sums("--dump", self.dump, *WINDOWS)
        for stats in ([self.one], [self.two], [self.two / f"oscar_moments_rank{rank}.pt" for rank in (1, 0)]):
            theirs = self.sums("--stats", *stats)
            self.assertEqual({name.split(".")[1] for name in theirs}, {"qqt", "ktk", "keys", "sst"})
            for name, sums in theirs.items():
                self.assertLess((sums - own[name].reshape(sums.shape)).abs().max(), 1e-12 * own[name].abs().max(), name)

    def test_a_set_has_rotations_and_means_and_says_what_it_lacks(self):
        said = self.fit("moments", "--stats", self.two)
        for line in ("part coded is left out: it needs rows", "part with_means weighs all queries and keys alike"):
            self.assertIn(line, said)
        self.fit("own", "--dump", self.dump, "--clip", "0.96,0.92")
        recipes = [json.loads((self.folder / made / "manifest.json").read_text())["parts"]["rotations"]["recipe"] for made in ("own", "moments")]
        self.assertAlmostEqual(*(recipe["mean_key"]["share_of_energy"] for recipe in recipes))
        for name in PAIR:
            own, theirs = (torch.load(self.folder / made / name)["layers"] for made in ("own", "moments"))
            for layer in server.LAYERS:
                self.assertLess((own[layer]["rotation"] - theirs[layer]["rotation"]).abs().max(), 1e-6)
        self.assertIn("k_mean", torch.load(self.folder / "moments/with_means" / "k_rotation_stretch_qqt_r_h_pbr.pt")["layers"][3])
        said = self.oscar("verify", "moments", "--stats", self.two, "--json")
        self.assertIn("decomposition_on_data", said)
        self.assertNotIn('"ok": false', said)

    def test_rows_are_a_dump_byte_for_byte_where_all_queries_are_there(self):
        every = server.save(self.folder / "every", self.rows, ranks=2, stride=1, kinds=("rows",))
        self.fit("of_dump", "--dump", self.dump)
        self.assertNotIn("one query in", self.fit("of_rows", "--dump", every))
        for name in ("coded.safetensors", *PAIR):
            self.assertEqual((self.folder / "of_dump" / name).read_bytes(), (self.folder / "of_rows" / name).read_bytes(), name)
        for path in every.iterdir():
            torch.save(torch.load(path) | {"manifest": json.dumps(TOLD)}, path)
        self.fit("of_told", "--dump", every)
        told = json.loads((self.folder / "of_told/manifest.json").read_text())
        self.assertEqual((told["model"]["config_sha256"], told["model"]["num_layers"]), ("c", 5))
        self.assertEqual((told["calibration"]["blocks"], told["calibration"]["image_tokens"]), (["1" * 16, "2" * 16], 7))
        scaled = server.save(self.folder / "scaled", {i: (q / 2, k, v) for i, (q, k, v) in self.rows.items()}, stride=1, scaling=0.5, kinds=("rows",))
        self.fit("of_scaled", "--dump", scaled)
        self.assertEqual(*((self.folder / made / "coded.safetensors").read_bytes() for made in ("of_dump", "of_scaled")))

    def test_a_kept_query_stands_for_those_nearest_to_it(self):
        self.assertIn("kept rows of 2 layers, and one query in 32, which stands for those nearest to it", self.fit("of_kept", "--dump", self.two))
        # Those of tokens 0, 32 … 192 are of the first sequence, and of the second, from token 200 on, 224 … 320.
        places = [min((t + 16) // 32 * 32, 192) if t < 200 else max(224, min((t + 16) // 32 * 32, 320)) for t in range(server.TOKENS)]
        stand_ins = server.dump(self.folder / "stand_ins", {i: (q[places], k, v) for i, (q, k, v) in self.rows.items()})
        self.fit("of_stand_ins", "--dump", stand_ins)
        for name in ("coded.safetensors", *PAIR):
            self.assertEqual((self.folder / "of_kept" / name).read_bytes(), (self.folder / "of_stand_ins" / name).read_bytes(), name)
        report = self.oscar("verify", "of_kept", "--dump", self.two, "--compare", "none", "--json")
        self.assertIn('"tokens_per_layer":340', report.replace(" ", ""))

    def test_inspect_says_what_it_is(self):
        facts = lambda path: json.loads(self.oscar("inspect", path, "--json"))["facts"]
        self.assertEqual(facts(self.two / "oscar_moments_rank1.pt")["kv_heads"], "1 to 1 of 2")
        self.assertEqual(facts(self.two / "oscar_rows_rank1.pt")["tokens_per_query"], 32)
        self.assertEqual(facts(self.two)["dump of the ranks of a tensor-parallel server"]["query_heads"], 4)
        spoilt = server.save(self.folder / "spoilt", {i: (q, k, v * float("nan")) for i, (q, k, v) in self.rows.items()}, ranks=2, kinds=("rows",))
        self.assertIn("layer 3: v holds values that are NaN", self.oscar("inspect", spoilt / "oscar_rows_rank0.pt", status=1))
        server.save(spoilt, self.rows, ranks=2)
        (spoilt / "oscar_moments_rank1.pt").unlink()
        self.assertIn("moments of some ranks are missing", self.oscar("inspect", spoilt, status=1))

    def test_what_is_not_whole_is_refused(self):
        nan = float("nan")
        told, tell = TOLD, lambda **other: lambda file: file.update(manifest=json.dumps(TOLD | other))
        cases = (
            ("moments", "has values that are not finite", lambda file: file["layers"][3]["M_k"].fill_(nan)),
            ("moments", '"count" is no such number', lambda file: file["layers"][3].update(count=0)),
            ("moments", "layers count other tokens than the file", lambda file: file.update(tokens=341)),
            ("moments", "no such number", lambda file: file.update(head_dim=2**40)),
            ("moments", "do not fit together", lambda file: file.update(tp_rank=2)),
            ("moments", "not of the same data", lambda file: [each.update(tokens=9, count=9) for each in (file, *file["layers"].values())]),
            ("moments", "ranks of different models", lambda file: file.update(head_dim=8, v_head_dim=8)),
            ("moments", '"M_q" of layer 0 has shape [1, 8, 8], not [1, 16, 16]', lambda file: file["layers"][0].update(M_q=torch.ones(1, 8, 8))),
            ("moments", "ranks with different layers", lambda file: file["layers"].pop(3)),
            ("moments", 'there is no "S_v" of layer 0', lambda file: file["layers"][0].pop("S_v")),
            ("moments", "strided view", lambda file: file["layers"][0].update(M_q=torch.zeros(1, 1, 1).expand(1, 16, 16))),
            ("moments", "format version 3 is not known", lambda file: file.update(format_version=3)),
            ("moments", "a layer has no number", lambda file: file["layers"].update(x={})),
            ("moments", 'forbidden global "posix.system"', lambda file: file.update(model_path=Evil())),
            ("moments", "model_path holds control characters", lambda file: file.update(model_path="\x1b[2J")),
            ("rows", "k has NaN or Inf", lambda file: file["layers"][3]["k"].fill_(nan)),
            ("rows", "no position follows another", lambda file: file["layers"][0]["positions"].zero_()),
            ("rows", "another calibration than that of the first rank", lambda file: file.update(prompt_sha256="b" * 64)),
            ("rows", "another calibration than that of the first rank", tell()),
            ("rows", "other heads, layers or tokens than the file has", tell(model=told["model"] | {"num_layers": 3})),
            ("rows", "other heads, layers or tokens than the file has", tell(model=told["model"] | {"num_key_value_heads": 1})),
            ("rows", "other heads, layers or tokens than the file has", tell(calibration=told["calibration"] | {"tokens": 341})),
            ("rows", "rows_rank1.pt: manifest", tell(schema="oscar.set.v1")),
            ("rows", "q_scaling is no scale", lambda file: file["layers"][0].update(q_scaling=nan)),
            ("rows", '"k" of layer 0 has shape [340, 1, 8]', lambda file: file["layers"][0].update(k=torch.zeros(340, 1, 8))),
            ("rows", "int32", lambda file: file["layers"][0].update(k=torch.zeros(340, 1, 16, dtype=torch.int32))),
            ("rows", '"q_sample_stride" is no such number', lambda file: file.update(q_sample_stride=0)),
            ("rows", '"q_sample_stride" is above 256', lambda file: file.update(q_sample_stride=340)))
        said = {"moments": "two ranks with the same KV heads", "rows": "the file says that it is of rank 0"}
        lack = {"moments": "of 2 KV heads only 0 to 0 are here", "rows": "rank 1 of 2 is missing"}
        for kind, option in (("moments", "--stats"), ("rows", "--dump")):
            path = server.save(self.folder / "broken", self.rows, ranks=2) / f"oscar_{kind}_rank1.pt"
            whole = path.read_bytes()
            refused = lambda text: self.assertIn(text, self.fit("never", option, path.parent, status=1))
            for own, text, change in cases:
                if own != kind:
                    continue
                with self.subTest(text):
                    path.write_bytes(whole)
                    content = torch.load(path)
                    change(content)
                    torch.save(content, path)
                    refused(text)
            with self.subTest(kind):
                path.write_bytes(whole[:len(whole) // 2])
                refused(path.name)
                path.write_bytes((path.parent / f"oscar_{kind}_rank0.pt").read_bytes())
                refused(said[kind])
                path.unlink()
                refused(lack[kind])
                server.save(path.parent, self.rows, ranks=2, copies=2)
                refused("ranks shared KV heads, and each saw a part of the queries")
        self.assertIn("of 2 KV heads only 1 to 1 are here", self.oscar(
            "fit", "--stats", self.two / "oscar_moments_rank1.pt", "--save-stats", "part", status=1))
        self.assertFalse(Path("/tmp/oscar-was-here").exists())
        self.assertIn("has no moments of a server", self.fit("never", "--stats", self.dump, status=1))
        self.assertIn("these are rows", self.fit("never", "--stats", self.two / "oscar_rows_rank0.pt", status=1))


if __name__ == "__main__":
    unittest.main()
