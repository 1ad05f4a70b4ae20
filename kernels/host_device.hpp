// SPDX-License-Identifier: MIT
#pragma once

/// Marks functions that kernels and the host share, also where a compiler without CUDA reads them.
#ifdef __CUDACC__
#define OSCAR_HOST_DEVICE __host__ __device__
#else
#define OSCAR_HOST_DEVICE
#endif
