# SPDX-License-Identifier: MIT
"""Keys in product codes of codebooks trained here, beside a rotation set and a coded set: product_codes_test.py."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import numpy
    import torch
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup.sh --tests")
    sys.exit(77)

PROJECT = Path(os.environ["OSCAR_PROJECT"])
GOLDEN, SETS = PROJECT / "tests/data/golden/qwen3-2m", PROJECT / "zoo/sample/qwen3-2m"
MODEL = PROJECT / "tests/data/qwen3-2m"
LAYERS, PIECES, DIM = 4, 16, 8


def distances(rows, centroids):
    return (centroids**2).sum(1) - 2 * rows @ centroids.T


def k_means(rows, count):
    """(count, channels), and what it leaves of the rows."""
    centroids = rows[numpy.random.default_rng(1).permutation(len(rows))[:count]]
    for _ in range(4):
        codes = distances(rows, centroids).argmin(1)
        counts = numpy.bincount(codes, minlength=count)
        sums = numpy.stack([numpy.bincount(codes, column, count) for column in rows.T], 1)
        centroids = numpy.where(counts[:, None] > 0, sums / numpy.maximum(counts, 1)[:, None], centroids)
    return centroids, rows - centroids[distances(rows, centroids).argmin(1)]


def rotated_keys(folder, tokens, count):
    """(tokens, pieces * channels) of each layer, as the set turns them."""
    subprocess.run([os.environ["OSCAR_BINARY"], "dump", "--model", MODEL, "--tokens", GOLDEN / tokens, "--max-tokens", str(count),
                    "--seq-len", "1024", "--out", folder, "--quiet"], check=True)
    rotations = torch.load(SETS / "latest/k_rotation_qqt_r_h_pbr.pt")["layers"]
    for layer in range(LAYERS):
        keys = torch.cat([torch.load(path) for path in sorted((folder / f"layer_{layer}/k").iterdir())]).float()
        yield (keys.reshape(-1, PIECES * DIM) @ rotations[layer]["rotation"]).numpy()


def codebooks(folder):
    """(layers, pieces, centroids, channels) of 256, and of 16 for what those leave."""
    stages = [[], []]
    for rows in rotated_keys(folder / "dump", "tokens_calib.npy", 4096):
        first = [k_means(rows[:, i:i + DIM], 256) for i in range(0, PIECES * DIM, DIM)]
        stages[0].append(numpy.stack([centroids for centroids, _ in first]))
        stages[1].append(numpy.stack([k_means(left, 16)[0] for _, left in first]))
    return [torch.from_numpy(numpy.stack(stage)) for stage in stages]


def sqnr_db(rows, stages):
    """Of rows in the codes of these stages, each (pieces, centroids, channels)."""
    left = rows.reshape(-1, PIECES, DIM).copy()
    for stage in stages:
        for piece, centroids in enumerate(stage):
            left[:, piece] -= centroids[distances(left[:, piece], centroids).argmin(1)]
    return 10 * numpy.log10((rows**2).sum() / (left**2).sum())


class ProductCodesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.first, cls.second = codebooks(cls.folder)
        cls.one = cls.save("one.pt", codebooks_per_layer=cls.first, tensor="k", n_sub=PIECES)
        cls.two = cls.save("two.pt", codebooks_stage1=cls.first, codebooks_stage2=cls.second)

    @classmethod
    def save(cls, name, **members):
        torch.save(members, cls.folder / name)
        return cls.folder / name

    def verify(self, rotations, *arguments, code=0):
        command = [os.environ["OSCAR_BINARY"], "verify", rotations, "--no-record", "--quiet", *arguments]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=self.folder)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr if code else {method["name"]: method for method in json.loads(done.stdout)["methods"]}

    def measure(self, rotations, compare, *arguments):
        """On text that codebooks and sets have not seen."""
        return self.verify(rotations, "--model", MODEL, "--tokens", GOLDEN / "tokens_eval.npy", "--sequences", 1, "--seq-len", 1024,
                           "--no-default-limits", "--json", "--compare", compare, *arguments)

    def test_they_stand_beside_a_set_and_beside_a_coded_set(self):
        given = "--pq-codebook", self.one, "--pq-codebook", self.two
        methods = self.measure(SETS / "latest", "bf16,hadamard,pq_1.0,pq_1.5", *given)
        self.assertEqual(list(methods), ["bf16", "hadamard", "pq_1.0", "pq_1.5", "oscar"])
        # Keys 1 or 1.5 bits without a scale, values 2 bits, a scale and a zero point for 128 of them.
        bits = [methods[name]["bits_per_element"]["fp16_params"] for name in ("pq_1.0", "pq_1.5")]
        self.assertEqual(bits, [(1 + 2.25) / 2, (1.5 + 2.25) / 2])
        self.assertIn(str(self.one), methods["pq_1.0"]["description"])
        self.assertEqual(methods["pq_1.0"]["windows"], methods["oscar"]["windows"])
        kld = {name: method["model"]["kld_mean"] for name, method in methods.items()}
        self.assertLess(kld["oscar"], kld["pq_1.5"], kld)
        self.assertLess(kld["pq_1.5"], kld["pq_1.0"], kld)
        noise = {name: [layer["attention"] for layer in method["layers"]] for name, method in methods.items()}
        for layer, keys in enumerate(rotated_keys(self.folder / "held_out", "tokens_eval.npy", 1024)):
            history = keys[64:-256]  # outside the windows
            first, second = self.first[layer].numpy(), self.second[layer].numpy()
            self.assertAlmostEqual(noise["pq_1.0"][layer]["k_sqnr_db"], sqnr_db(history, [first]), delta=0.05)
            self.assertAlmostEqual(noise["pq_1.5"][layer]["k_sqnr_db"], sqnr_db(history, [first, second]), delta=0.05)
            self.assertEqual(noise["pq_1.0"][layer]["v_sqnr_db"], noise["oscar"][layer]["v_sqnr_db"])

        beside = self.measure(SETS / "coded", "pq_1.0", *given[:2], "--pq-rotations", SETS / "latest")
        self.assertEqual(list(beside), ["pq_1.0", "coded"])
        self.assertEqual(beside["pq_1.0"]["model"]["kld_mean"], kld["pq_1.0"])

    def test_what_does_not_fit_is_refused(self):
        def refused(*arguments, code=1, rotations="latest", compare="pq_1.0"):
            return self.verify(SETS / rotations, "--compare", compare, *arguments, code=code)

        self.assertIn("train_pq_codebooks.py", refused(code=2))
        self.assertIn('no codebooks for "pq_1.5"', refused("--pq-codebook", self.one, compare="pq_1.0,pq_1.5", code=2))
        self.assertIn("add pq_1.5 to --compare", refused("--pq-codebook", self.two, code=2))
        self.assertIn("two files make pq_1.0", refused("--pq-codebook", self.one, "--pq-codebook", self.one, code=2))
        self.assertIn("--pq-rotations SET", refused("--pq-codebook", self.one, rotations="coded", code=2))
        self.assertIn("add --pq-codebook", refused("--pq-rotations", SETS / "latest", code=2))
        foreign = "--pq-codebook", self.one, "--pq-rotations"
        self.assertIn("of other layers than the set", refused(*foreign, PROJECT / "tests/data/tiny-set"))
        self.assertIn("rotations of one side", refused(*foreign, SETS / "latest/k_rotation_qqt_r_h_pbr.pt"))
        self.assertIn("nothing.pt", refused("--pq-codebook", "nothing.pt"))

        def of(**members):
            return refused("--pq-codebook", self.save("bad.pt", **members))

        self.assertIn("heads of 64, and layer 0 has heads of 128", of(codebooks_per_layer=self.first[:, :8]))
        self.assertIn("no codebook for layer 3", of(codebooks_per_layer=self.first[:3]))
        self.assertIn("NaN or infinite", of(codebooks_per_layer=self.first * float("inf")))
        self.assertIn("are of values", of(codebooks_per_layer=self.first, tensor="v"))
        self.assertIn("holds no product codebooks", of(rotation=self.first))


if __name__ == "__main__":
    unittest.main()
