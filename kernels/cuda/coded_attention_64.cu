// SPDX-License-Identifier: MIT
#include "kernels/cuda/coded_attention_kernel.cuh"

template int oscar::cuda::launch_coded<64, false>(const CodedParams&, cudaStream_t);
