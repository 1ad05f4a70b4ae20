# SPDX-License-Identifier: MIT
"""The rules of the house as data: who may include whom, who may include what from outside, how long a file may be."""

# The parts of a checkpoint that others see; nobody sees the plug-in (lib/model/torch).
MODEL = ["lib/model/gguf", "lib/model/config", "lib/model/weights", "lib/model/tokenizer", "lib/model/run"]

# A folder may include itself and the folders listed. The order is the data flow; nobody lists a later stage.
MAY_INCLUDE = {
    "lib/base": [],
    "lib/remote": ["lib/base"],
    "lib/tensor": ["lib/base"],
    "kernels": ["lib/base", "lib/tensor"],
    "kernels/cpu": ["lib/base", "lib/tensor", "kernels", "kernels/reference"],
    "kernels/reference": ["lib/base", "lib/tensor", "kernels"],
    "kernels/cuda": ["lib/base", "lib/tensor", "kernels", "kernels/reference"],
    "kernels/absent": ["lib/base", "lib/tensor", "kernels"],
    "lib/model/gguf": ["lib/base", "lib/tensor"],
    "lib/model/config": ["lib/base", "lib/tensor", "lib/model/gguf"],
    "lib/model/weights": ["lib/base", "lib/tensor", "lib/model/gguf", "lib/model/config"],
    "lib/model/tokenizer": ["lib/base", "lib/tensor", "lib/model/gguf", "lib/model/config"],
    "lib/model/run": ["lib/base", "lib/tensor", "kernels", "lib/model/config", "lib/model/weights", "lib/model/tokenizer"],
    "lib/model/torch": ["lib/base", "lib/tensor", "kernels", "lib/model/config", "lib/model/weights", "lib/model/run"],
    "lib/dump": ["lib/base", "lib/tensor", "kernels", *MODEL],
    "lib/moments": ["lib/base", "lib/tensor", "kernels", *MODEL, "lib/dump"],
    "lib/set": ["lib/base", "lib/tensor", "kernels", "kernels/reference", *MODEL],
    # What a set does to attention and to a model. Fit and verify see it; it sees neither.
    "lib/measure": ["lib/base", "lib/tensor", "kernels", "kernels/reference", *MODEL, "lib/dump", "lib/set"],
    "lib/method": ["lib/base", "lib/tensor", "kernels", "kernels/reference", "lib/dump", "lib/moments", "lib/set", "lib/measure"],
    "lib/fit": ["lib/base", "lib/tensor", "kernels", *MODEL, "lib/dump", "lib/moments", "lib/method", "lib/measure",
                "lib/set"],
    # The checker shares no code with what it checks: neither fit nor method.
    "lib/verify": ["lib/base", "lib/tensor", "kernels", *MODEL, "lib/dump", "lib/moments", "lib/measure", "lib/set"],
    "lib/serve": ["lib/base", "lib/tensor", "kernels", *MODEL, "lib/measure", "lib/set", "lib/verify"],
    "lib/zoo": ["lib/base", "lib/remote", "lib/tensor", "kernels", *MODEL, "lib/set"],
    "lib/inspect": ["lib/base", "lib/tensor", *MODEL, "lib/dump", "lib/moments", "lib/set", "lib/verify", "lib/zoo"],
    "apps/torch": ["lib/base", "lib/tensor", "kernels", "kernels/reference", "lib/moments"],
    "apps/oscar": ["lib/base", "lib/remote", "lib/tensor", "kernels", *MODEL, "lib/dump", "lib/moments", "lib/set", "lib/measure", "lib/fit",
                   "lib/verify", "lib/serve", "lib/zoo", "lib/inspect"],
}

# Third-party headers, by the start of the include path, and the files (by the start of their path) that wrap them.
WRAPPERS = {
    ("torch/", "ATen/", "c10/", "caffe2/"): ["lib/model/torch/", "apps/torch/"],
    ("hdf5", "H5"): ["lib/tensor/hdf5.cpp"],
    ("zlib",): ["lib/tensor/pt.cpp"],
    ("curl/",): ["lib/remote/curl_"],
    ("toml++/",): ["apps/oscar/toml_options.cpp"],
    ("openssl/",): ["lib/base/sha256.cpp", "lib/zoo/set_manifest.cpp"],
    ("CLI/",): ["apps/oscar/"],
    ("Eigen/",): ["kernels/cpu/eigh.cpp", "lib/set/coded_part.cpp"],
    ("pcre2", "utf8proc"): ["lib/model/tokenizer"],
    ("sentencepiece",): ["lib/model/tokenizer/sentencepiece.cpp"],
    ("valijson/",): ["lib/base/json_schema.cpp"],
    ("cuda", "cublas", "cusolver", "curand", "thrust/", "cub/", "nvrtc"): ["kernels/cuda/", "apps/torch/gpu.cpp"],
}

MAX_LINES = 500
MAX_TEST_LINES = 600
SOURCE_SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh", ".in", ".py", ".sh", ".cmake"}
HEADER_SUFFIXES = {".hpp", ".cuh"}
INCLUDING_SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh", ".in"}
