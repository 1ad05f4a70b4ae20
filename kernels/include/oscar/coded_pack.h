/* SPDX-License-Identifier: MIT */
/* The write path of the coded KV cache on NVIDIA GPUs: rows of keys and values become the pages that oscar_coded_decode()
 * reads (oscar/coded_attention.h), in one launch; and the way back, to rows of bfloat16. C ABI, for servers.
 *
 * A row y is a row x of the caller, or bfloat16((x - mean) R) with float32 sums, or of keys before RoPE what oscar_coded_turn says; keys x may lack their norm and RoPE (oscar_norm_rope). Its codes and scales are those of the packed
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
  const void* rotation;                  /* R: bfloat16 (head_dim, head_dim) for a head, 16-byte aligned; null: none */
  int64_t rotation_head_stride;          /* bytes; 0: one for all heads */
  const float* mean;                     /* float32 (head_dim) for a head; null: 0. Needs a rotation */
  int64_t mean_head_stride;              /* bytes; 0: one for all heads */
} oscar_coded_rows;

/* What a server's keys go through between their projection and the cache, here before anything else: an RMS norm of each head's
 * row, then a rotary embedding (RoPE) of its first rotary_dim channels. Each is optional; all zeros means neither. With float32
 * arithmetic, one rounding per operation,
 *   r = 1 / sqrt(mean of x_i^2 + norm_epsilon), rounded once;   y_i = bfloat16(bfloat16(x_i r) w_i) for a weight w of bfloat16,
 *   as servers round, or bfloat16(x_i r w_i) for one of float32;
 *   channels a and b of pair f become bfloat16(y_a cos_f - y_b sin_f) and bfloat16(y_b cos_f + y_a sin_f).
 * The mean's sum has 32 partial sums, as those of kernels/reference/coded_row.hpp. kernels/reference/attention.hpp has these bits. */
typedef struct {
  const void* norm_weight;   /* (head_dim), 16-byte aligned; null: no norm */
  oscar_dtype norm_dtype;    /* of the weight: float32 or bfloat16 */
  float norm_epsilon;        /* positive */
  const void* cos_sin;       /* (any number, rotary_dim), 16-byte aligned: each row has rotary_dim / 2 cosines, then as many sines;
                                null: no RoPE */
  oscar_dtype cos_sin_dtype; /* float32 or bfloat16 */
  int32_t rotary_dim;        /* a multiple of 8 up to head_dim */
  int32_t interleaved;       /* 0: pair f has the channels f and f + rotary_dim / 2 (NeoX); 1: 2 f and 2 f + 1 (GPT-J) */
  const void* positions;     /* (num_tokens): each token's row of cos_sin, which nothing checks */
  int32_t position_bytes;    /* 4: int32; 8: int64, of values below 2^31 */
  oscar_bf16_rows rows;      /* null data: not wanted. Else gets every token's finished key, also where its slot is negative. 16-byte
                                aligned; may be the rows that are read */
} oscar_norm_rope;

typedef struct {
  int32_t head_dim, num_kv_heads; /* of the layout that oscar_coded_layout_of() made of the same format */
  int64_t token_bytes;
  const void* table;    /* device memory, 16-byte aligned: what oscar_coded_pack_table_of() wrote */
  int32_t num_tokens;
  oscar_coded_rows k, v;  /* a side without rows is not written */
  oscar_norm_rope norm_rope; /* of the keys, which there must be unless it is all zeros */
  oscar_coded_turned turned; /* the keys, k or what norm_rope makes of them, which then have neither rotation nor mean; values are a
                                launch of their own */
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
