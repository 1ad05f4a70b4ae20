# SPDX-License-Identifier: MIT
"""A few tokens through coded_pack, coded_decode, coded_unpack and int2_unpack, for compute-sanitizer on a GPU: coded_small.py LIBRARY"""
import sys

import torch

import norm_rope_ops_test
from coded_ops_test import Cache, check_bytes, check_rotation
from unpack_ops_test import check_coded, check_int2

torch.manual_seed(0)
torch.ops.load_library(sys.argv[1])
for dim, page in ((64, 4), (128, 16), (256, 64)):
    cache = Cache("cuda", dim, lengths=(70, 9, 1), page=page)
    cache.prepare()
    check_bytes(cache, "normal")
    check_rotation(cache)
    lacking = norm_rope_ops_test.Case(cache)
    for interleaved in (False, True):
        norm_rope_ops_test.check_bytes(lacking, lacking.options(torch.bfloat16, dim, interleaved), interleaved)
    cache.attend()
    check_coded(cache)
    check_int2("cuda", dim, dim // 32, torch.float32, page)
torch.cuda.synchronize()
