/* SPDX-License-Identifier: MIT */
/* The write path of the coded KV cache on NVIDIA GPUs: rows of keys and values become the pages that oscar_coded_decode()
 * reads (oscar/coded_attention.h), in one launch; and the way back, to rows of bfloat16. C ABI, for servers.
 *
 * A row y is a row x of the caller, or of keys before RoPE what oscar_coded_turn says. Its codes and scales are those of the packed
 * rows of oscar's reference (kernels/reference/coded_row.hpp), to the bit. For each class of channels, wide ones with 4 bits or
 * more and narrow ones, s is the power 2^((b - 128) / 16), b from 0 to 255, nearest to the root mean square of y_i / sigma_i;
 *   c_i = floor(y_i / (s step_i) + 2^w / 2), held to 0 ... 2^w - 1;
 *   gain = <y, y> / <y, y^> over the channels with bits, held to 1/2 ... 2, multiplies both scales, which are rounded again. */
#ifndef OSCAR_CODED_PACK_H_
#define OSCAR_CODED_PACK_H_

#include "oscar/coded_attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes what oscar_coded_pack() reads of a format, *table_bytes, to `table`, host memory, unless that is null. k_sigmas,
 * v_sigmas: (num_kv_heads, head_dim), positive where there are bits: root mean squares of the channels. Returns as
 * oscar_coded_layout_of() does. */
int oscar_coded_pack_table_of(const oscar_coded_format* format, const float* k_sigmas, const float* v_sigmas,
                              int64_t* table_bytes, void* table);

/* Rows of keys, or of values: those of the tokens' KV heads. Device memory. */
typedef struct {
  const void* x;                         /* bfloat16, head_dim finite values per (token, KV head), 16-byte aligned; null: none */
  int64_t x_token_stride, x_head_stride; /* bytes */
} oscar_coded_rows;

typedef struct {
  int32_t head_dim, num_kv_heads; /* of the layout that oscar_coded_layout_of() made of the same format */
  int64_t token_bytes;
  const void* table;    /* device memory, 16-byte aligned: what oscar_coded_pack_table_of() wrote */
  int32_t num_tokens;
  oscar_coded_rows k, v;  /* a side without rows is not written */
  oscar_coded_turned turned; /* the keys; values are a launch of their own */
  const int32_t* slots;   /* (num_tokens): page * page_size + token in page; negative: not written. Device memory */
  int32_t page_size;      /* a power of two, 4 to 256 */
  void* pages;            /* 16-byte aligned */
  int64_t page_stride;    /* bytes, a multiple of 16 */
} oscar_coded_pack_args;

/* Enqueues the work on `stream`; returns as oscar_coded_decode() does. Tokens of equal slots must not differ. Nothing is
 * allocated, so that it can be captured in a graph. The table is read while launches before may still be running: they must not
 * write it. */
int oscar_coded_pack(const oscar_coded_pack_args* args, void* stream);

/* The inverse for attention kernels that read only bfloat16 rows, such as prefill's: rows y of the packed tokens, each
 * s (c_i - (2^w - 1) / 2) step_i of oscar/coded_attention.h in float32, one rounding per operation, the scale last, then
 * rounded to bfloat16; 0 for channels without bits. */
typedef struct {
  int32_t head_dim, num_kv_heads; /* these four as for oscar_coded_pack() */
  int64_t token_bytes;
  const void* table;
  int32_t num_tokens;
  const int32_t* slots;   /* (num_tokens): page * page_size + token in page; negative: its rows are left as they are */
  int32_t page_size;      /* a power of two, 4 to 256 */
  const void* pages;      /* 16-byte aligned */
  int64_t page_stride;    /* bytes, a multiple of 16 */
  oscar_bf16_rows k, v;   /* rows i are those of slots[i]; null data: this side is not read */
  oscar_coded_turned turned; /* unless all zeros, k gets keys at these positions of rows y, rounded as oscar_coded_turn says */
} oscar_coded_unpack_args;

/* Enqueues the work on `stream`; returns as oscar_coded_decode() does. */
int oscar_coded_unpack(const oscar_coded_unpack_args* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* OSCAR_CODED_PACK_H_ */
