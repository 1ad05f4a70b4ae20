/* SPDX-License-Identifier: MIT */
/* Rows of queries, keys, values or outputs times the matrices of a set, on NVIDIA GPUs: all products of one step of a layer in one
 * launch. C ABI, for servers.
 *
 *   y = bfloat16(bfloat16(x - mean) M)   or   y = bfloat16(bfloat16(x) M + mean)      with float32 sums
 *
 * A matrix, and a mean, belongs to one head or to neighbouring heads. Keys and values are stored with the first, queries have the
 * matrix of their KV head and no mean, and outputs of attention become the model's with the second. */
#ifndef OSCAR_ROTATE_ROWS_H_
#define OSCAR_ROTATE_ROWS_H_

#include "oscar/coded_attention.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OSCAR_MOST_PRODUCTS = 4 }; /* of one launch */

/* Rows of one kind. Device memory. */
typedef struct {
  int32_t num_tokens, num_heads;         /* without tokens, what follows the means is not looked at */
  int32_t num_matrices;                  /* num_heads / num_matrices neighbouring heads share one */
  int32_t num_means;                     /* the same; 0: none */
  int32_t adds_mean;                     /* 0: the mean is subtracted before the product; 1: it is added after it */
  const void* x;                         /* head_dim values per (token, head), rows 16-byte aligned */
  oscar_dtype x_dtype;                   /* bfloat16 or float32 */
  int64_t x_token_stride, x_head_stride; /* bytes */
  const void* matrices;                  /* M: bfloat16 (num_matrices, head_dim, head_dim), 16-byte aligned */
  const float* means;                    /* (num_means, head_dim), 16-byte aligned; null if num_means is 0 */
  oscar_bf16_rows out;                   /* y of each token; null data: not wanted */
  oscar_bf16_rows kept;                  /* y of each token at its slot, too; null data: not wanted */
  const int32_t* slots;                  /* (num_tokens): rows of `kept`; negative: the token is not kept. null if kept is */
} oscar_row_product;

/* Enqueues the work on `stream`; returns as oscar_coded_decode() does, whose oscar_last_error() says what was refused. Tokens of
 * equal slots must not differ. Nothing is allocated, so that it can be captured in a graph. Matrices are read while launches
 * before may still be running: they must not write them.
 *   products: `count` of 1 to OSCAR_MOST_PRODUCTS, host memory, of which no one reads what another writes
 *   head_dim: 64, 128 or 256 */
int oscar_rotate_rows(const oscar_row_product* products, int32_t count, int32_t head_dim, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* OSCAR_ROTATE_ROWS_H_ */
