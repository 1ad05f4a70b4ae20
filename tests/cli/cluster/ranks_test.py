# SPDX-License-Identifier: MIT
"""oscar fit by several processes: the bytes of one, whoever launches them; --resume. Failures: failures_test.py."""
import shutil
import subprocess
import unittest

import numpy
import torch
import transformers

from ranks_case import BINARY, DATA, ON_CPU, TORCHRUN, RanksCase, free_port


def slurm_variables(rank, size, port):
    return {"SLURM_JOB_ID": port, "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(size),
            "SLURM_NTASKS": str(size), "SLURM_LOCALID": str(rank), "SLURM_STEP_TASKS_PER_NODE": str(size),
            "SLURM_STEP_NODELIST": "localhost"}


def mpich_variables(rank, size, port):
    return {"PMI_RANK": str(rank), "PMI_SIZE": str(size), "MPI_LOCALRANKID": str(rank), "MPI_LOCALNRANKS": str(size),
            "MASTER_PORT": port}


def mpi_variables(rank, size, port):
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(size), "PMIX_NAMESPACE": f"prterun-{port}@1"}


def write_model_with_experts(folder):
    """Five layers: the first dense, the others with eight experts."""
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, moe_intermediate_size=32, num_hidden_layers=5,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=8, num_experts_per_tok=2,
        mlp_only_layers=[0], max_position_embeddings=1024)
    transformers.Qwen3MoeForCausalLM(config).save_pretrained(folder)
    numpy.save(folder / "tokens.npy", numpy.random.default_rng(0).integers(0, 256, 20000, dtype=numpy.int32))


class RanksTest(RanksCase):
    def resume_with_another_layer(self, layer, fit):
        """As if a server had written that layer again, of the same shape."""
        folder = self.folder / f"dump/layer_{layer}"
        folder.rename(self.folder / "own")
        shutil.copytree(self.folder / "dump/layer_2", folder)
        try:
            return subprocess.run([BINARY, *fit], cwd=self.folder, capture_output=True, text=True, env=ON_CPU)
        finally:
            shutil.rmtree(folder)
            (self.folder / "own").rename(folder)

    def test_two_ranks_of_torchrun_write_the_bytes_of_one_process(self):
        options = ["--dump", "dump", "--recipe", "stretch", "--target", "any", "--device", "cpu"]
        self.run_alone("fit", *options, "--out", "alone")
        done = subprocess.run([TORCHRUN, "--no-python", "--nproc-per-node", "2", "--master-port", free_port(), BINARY, "fit",
                               *options, "--out", "together"], cwd=self.folder, capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2 ranks", done.stderr)
        self.expect_same("alone", "together")
        self.assertFalse((self.folder / "together.partial").exists())

    def test_ranks_of_srun_and_of_mpirun_write_the_bytes_of_one_process(self):
        self.run_alone("fit", "--dump", "dump", "--recipe", "oscar", "--out", "one")
        for name, variables in (("slurm", slurm_variables), ("mpi", mpi_variables), ("mpich", mpich_variables)):
            codes, errors = self.finish(self.start("--dump", "dump", "--out", name, variables=variables))
            self.assertEqual(codes, [0, 0], errors)
            self.expect_same("one", name)

    def test_ranks_share_the_text_of_a_model(self):
        text = ["--model", DATA / "qwen3-2m", "--tokens", DATA / "golden/qwen3-2m/tokens_calib.npy", "--seq-len", "2048",
                "--max-tokens", "0", "--sequences"]
        for sequences, size in (("6", 2), ("6", 3), ("1", 2)):  # two blocks, or one: a rank of the last two has no text
            one, shared = f"live_{sequences}", f"live_{sequences}_by_{size}"
            if not (self.folder / one).exists():
                self.run_alone("fit", *text, sequences, "--recipe", "oscar", "--out", one)
            codes, errors = self.finish(self.start(*text, sequences, "--out", shared, size=size))
            self.assertEqual(codes, size * [0], errors)
            self.expect_same(one, shared)

    def test_ranks_share_a_text_by_every_recipe_that_fits_layer_by_layer(self):
        write_model_with_experts(self.folder / "recipes")
        text = ["--model", self.folder / "recipes", "--tokens", self.folder / "recipes/tokens.npy", "--seq-len", "1000",
                "--max-tokens", "20000"]  # three blocks
        self.run_alone("fit", *text, "--recipe", "hadamard", "--out", "reference")
        for name, options in (("hadamard", ["--recipe", "hadamard"]),
                              ("lsq", ["--recipe", "lsq", "--target", "any", "--granularity", "head", "--value-objective", "oto"]),
                              ("ktk_vtv", ["--recipe", "ktk_vtv", "--layers", "1,2,4"]),
                              ("stretch", ["--recipe", "stretch", "--target", "any", "--key-objective", "fisher", "--center", "--refine"]),
                              ("output", ["--recipe", "stretch", "--target", "any", "--value-objective", "output"]),
                              ("uresidual", ["--recipe", "uresidual", "--reference-rotation", "reference"])):
            with self.subTest(name):
                self.run_alone("fit", *text, *options, "--out", f"{name}_by_1")
                codes, errors = self.finish(self.start(*text, *options, "--out", f"{name}_by_3", size=3))
                self.assertEqual(codes, 3 * [0], errors)
                self.expect_same(f"{name}_by_1", f"{name}_by_3")

    def test_ranks_share_a_model_with_experts_and_no_folder(self):
        write_model_with_experts(self.folder / "experts")
        text = ["--model", self.folder / "experts", "--tokens", self.folder / "experts/tokens.npy", "--seq-len", "400",
                "--max-tokens", "20000"]
        self.run_alone("fit", *text, "--recipe", "oscar", "--out", "experts_one")
        processes = self.start(*text, size=3, of_rank={rank: ["--out", f"of_rank_{rank}"] for rank in range(3)})
        codes, errors = self.finish(processes)
        self.assertEqual(codes, [0, 0, 0], errors)
        self.expect_same("experts_one", "of_rank_0")
        self.assertEqual([path.name for path in self.folder.glob("of_rank_*")], ["of_rank_0"])

    def test_one_process_resumes_and_refuses_the_layers_of_another_fit(self):
        fit = ["fit", "--dump", "dump", "--recipe", "oscar", "--resume", "--out", "resumed"]
        mend = self.spoil(3)
        self.addCleanup(mend)
        done = subprocess.run([BINARY, *fit], cwd=self.folder, capture_output=True, text=True, env=ON_CPU)
        self.assertEqual(done.returncode, 1)
        self.assertIn("layer_3", done.stderr)
        mend()
        done = subprocess.run([BINARY, *fit, "--sink", "32"], cwd=self.folder, capture_output=True, text=True,
                              env=ON_CPU)
        self.assertEqual(done.returncode, 1)
        self.assertIn("is of another: windows differ", done.stderr)
        done = self.resume_with_another_layer(0, fit)
        self.assertEqual(done.returncode, 1)
        self.assertIn("the file changed after the dump's manifest was written", done.stderr)
        self.run_alone(*fit)
        self.doCleanups()
        self.run_alone("fit", "--dump", "dump", "--recipe", "oscar", "--out", "at_once")
        self.expect_same("at_once", "resumed")
        self.assertFalse((self.folder / "resumed.partial").exists())


if __name__ == "__main__":
    unittest.main()
