// SPDX-License-Identifier: MIT
// For loops that are worth compiling for several instruction sets: the loader takes the best that the machine has.
// Results stay the same, since the tree is built without fused multiply-adds.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define OSCAR_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define OSCAR_VECTOR_CLONES
#endif
