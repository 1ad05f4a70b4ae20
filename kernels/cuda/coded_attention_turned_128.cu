// SPDX-License-Identifier: MIT
#include "kernels/cuda/coded_attention_kernel.cuh"

template int oscar::cuda::launch_coded<128, true>(const CodedParams&, cudaStream_t);
