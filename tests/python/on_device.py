# SPDX-License-Identifier: MIT
"""The device of tests that run on CPUs and on a GPU: the CPU, or a GPU if OSCAR_TEST_DEVICE=cuda. Importing this ends a test with
status 77 where there is none, or no torch."""
import os
import sys

try:
    import torch
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

DEVICE = os.environ.get("OSCAR_TEST_DEVICE", "cpu")
if DEVICE == "cuda" and not torch.cuda.is_available():
    print("skipped: needs an NVIDIA GPU")
    sys.exit(77)
torch.set_num_threads(1)
