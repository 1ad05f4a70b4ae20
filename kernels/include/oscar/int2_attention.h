/* SPDX-License-Identifier: MIT */
/* Decode attention over a paged, mixed-precision KV cache on NVIDIA GPUs: bfloat16 windows (sink and recent tokens) and
 * an INT2 history, one launch from query to output. C ABI, for servers.
 *
 *   out[b, h] = softmax(scale * q[b, h] K_b^T) V_b      over the window tokens and the history tokens of sequence b
 *
 * Queries, keys and values are in transformed coordinates (q' = q R_k, k' = k R_k, v' = v R_v); the caller undoes R_v.
 * A history row of head_dim channels is stored as head_dim / 4 bytes,
 *   byte[i] = code[i] | code[i + d/4] << 2 | code[i + d/2] << 4 | code[i + 3d/4] << 6,
 * and one (scale, zero) pair per group of group_size channels: x = (code - zero) * scale.
 * A result depends to the bit on its own sequence and on split_batch, whatever else is in the batch. */
#ifndef OSCAR_INT2_ATTENTION_H_
#define OSCAR_INT2_ATTENTION_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { OSCAR_FLOAT32 = 0, OSCAR_FLOAT16 = 1, OSCAR_BFLOAT16 = 2 } oscar_dtype;

/* Rows of a paged pool: row (page, token in page, KV head) starts at data + the sum of index * stride. Device memory. */
typedef struct {
  const void* data;
  int64_t page_stride, token_stride, head_stride; /* bytes */
} oscar_paged_rows;

/* Which pages hold the tokens of each sequence. Device memory. */
typedef struct {
  const int32_t* pages;   /* (batch, pages_per_sequence): token t of sequence b lies in pages[b][t / page_size] */
  const int32_t* lengths; /* (batch): tokens of each sequence; 0 is allowed */
  int32_t pages_per_sequence; /* enough for max_length; what lies behind a sequence's own pages is not used */
  int32_t page_size;  /* a power of two, 1 to 256 */
  int32_t max_length; /* no length is larger */
} oscar_page_table;

typedef struct {
  int32_t batch, num_q_heads, num_kv_heads; /* num_q_heads / num_kv_heads: 1 to 16 */
  int32_t head_dim;                         /* 64, 128 or 256 */
  int32_t group_size;                       /* head_dim, 64 or 32 */
  oscar_dtype param_dtype;                  /* of scales and zeros */
  float softmax_scale;                   /* positive */
  int32_t split_batch;                   /* the batch size that sequences are cut for; 0: batch */
  const void* q;                         /* bfloat16 (batch, num_q_heads, head_dim), 16-byte aligned */
  oscar_paged_rows k_codes, v_codes;     /* rows 16-byte aligned */
  oscar_paged_rows k_params, v_params;   /* (groups, 2) per row, rows aligned to their size or to 16 bytes */
  oscar_page_table history;
  oscar_paged_rows k_window, v_window;   /* bfloat16, rows 16-byte aligned */
  oscar_page_table window;
  float* out; /* (batch, num_q_heads, head_dim), 8-byte aligned */
  float* lse; /* (batch, num_q_heads): log of the sum of exp(scores); may be null */
  void* workspace;
  size_t workspace_bytes;
} oscar_int2_decode_args;

/* Bytes of workspace that these arguments need; out, lse and workspace are not looked at. The workspace must be zeroed
 * once; every call leaves it ready for the next. Calls of different arguments, of a coded cache too, may take turns on one
 * workspace that has the bytes of each, if none has more than 16384 units: batch * num_kv_heads * ceil(query rows of a KV
 * head / 8). 0 if the arguments are refused. */
size_t oscar_int2_decode_workspace(const oscar_int2_decode_args* args);

/* Enqueues the work on `stream` (a cudaStream_t). Returns 0, or a cudaError_t: cudaErrorInvalidValue if the arguments
 * are refused; oscar_last_error() then says why. Allocates nothing and does not synchronise: can be captured in a graph. */
int oscar_int2_decode(const oscar_int2_decode_args* args, void* stream);

/* The write path: rows of keys or values, bfloat16, are rotated (x R, rounded to bfloat16), encoded and written into the
 * paged pool. Rows must be finite.
 * With the threshold t = the min(int(clip_ratio * d), d - 1)-th smallest magnitude of the whole row (0 =
 * the smallest), x is clamped to [-t, t]; then per group scale = max(max - min, 1e-8) / 3, zero = -min / scale,
 * code = trunc(x / scale + zero + 0.5), in fp32 with one rounding per operation. */
typedef struct {
  int32_t num_tokens, num_kv_heads;
  int32_t head_dim;                        /* 64, 128 or 256 */
  int32_t group_size;                      /* head_dim, 64 or 32 */
  oscar_dtype param_dtype;                 /* scales and zeros are computed in float32, then rounded to it */
  double clip_ratio;                       /* 0 or less: no clipping; at most 1 */
  const void* x;                           /* bfloat16, head_dim values per (token, KV head), 16-byte aligned */
  int64_t x_token_stride, x_head_stride;   /* bytes */
  const void* rotation;                    /* bfloat16 (head_dim, head_dim) for a head, 4-byte aligned; null: no rotation */
  int64_t rotation_head_stride;            /* bytes; 0: one rotation for all heads */
  const int32_t* slots;                    /* (num_tokens): page * page_size + token in page; negative: not written */
  int32_t page_size;                       /* any */
  oscar_paged_rows codes, params;          /* written: rows 8-byte aligned, pairs of params aligned to their size */
  const int32_t* clip_ranks;               /* (num_kv_heads): in place of clip_ratio, the rank of each head's threshold, as above, below
                                              head_dim; negative: no clipping. Device memory; null: clip_ratio for all */
} oscar_int2_pack_args;

/* Enqueues the work on `stream`; returns as oscar_int2_decode() does. */
int oscar_int2_pack(const oscar_int2_pack_args* args, void* stream);

/* Rows of bfloat16 that are written: head_dim values per (token, KV head), rows 16-byte aligned. Device memory. */
typedef struct {
  void* data;
  int64_t token_stride, head_stride; /* bytes */
} oscar_bf16_rows;

/* Packed rows of keys, or of values, become bfloat16 rows, for attention kernels that read only those, such as prefill's:
 * x = (code - zero) * scale in float32, one rounding per operation, then rounded to bfloat16. */
typedef struct {
  int32_t num_tokens, num_kv_heads;
  int32_t head_dim;               /* 64, 128 or 256 */
  int32_t group_size;             /* head_dim, 64 or 32 */
  oscar_dtype param_dtype;
  const int32_t* slots;           /* (num_tokens): page * page_size + token in page; negative: its row is left as it is */
  int32_t page_size;              /* any */
  oscar_paged_rows codes, params; /* as oscar_int2_pack() writes them */
  oscar_bf16_rows out;            /* row i is that of slots[i] */
} oscar_int2_unpack_args;

/* Enqueues the work on `stream`; returns as oscar_int2_decode() does. */
int oscar_int2_unpack(const oscar_int2_unpack_args* args, void* stream);

/* What was wrong with the calling thread's last refused arguments. */
const char* oscar_last_error(void);

#ifdef __cplusplus
}
#endif

#endif /* OSCAR_INT2_ATTENTION_H_ */
