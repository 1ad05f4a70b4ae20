/* SPDX-License-Identifier: MIT */
/* Decode attention over a paged coded KV cache on NVIDIA GPUs: a bfloat16 window (sink and recent tokens) and a history
 * whose channels have bits of their own, one launch from query to output. C ABI, for servers.
 *
 *   out[b, h] = softmax(scale * q[b, h] K_b^T) V_b      over the window tokens and the history tokens of sequence b
 *
 * With a soft cap c, from 2^-10 to 2^14, scores s = scale * q[b, h] k become c tanh(s / c) before their softmax, off by 2^-21 c at most.
 * Queries, keys and values are in the coordinates of the coded set: keys (k - mean) W_k, queries q R_k, values v W_v; the
 * caller multiplies outputs by R_v. Keys that are stored before RoPE (oscar_coded_turn) are read as that says: queries and keys of
 * the window then are the model's own. Windows hold all channels in bfloat16. A result depends to the bit on its own sequence and on
 * split_batch, whatever else is in the batch.
 *
 * A packed row. Blocks of 8 neighbouring channels share a number of bits w, 0 to 8. Channel i stands for
 *   y_i = s (c_i - (2^w - 1) / 2) step_i,   code c_i of w bits,
 * where s is the row's wide scale if w >= 4, else its narrow one. The channels j, j + 8, j + 16, ..., one of each block, share
 * string j of N bytes, N the least that holds the bits of all blocks. Blocks are placed in order: a block's low bits go to the
 * byte with the most free bits (to the first of several), at its lowest free bit; what finds no room there is placed in the same
 * way. Free bits have no meaning. If N is odd, the bytes 0 of the strings are a piece of 8 bytes, one for each string. Each two
 * bytes that follow are a piece of 16 bytes, whose little-endian 16-bit word j has those of string j. A scale is a byte b,
 * s = 2^((b - 128) / 16).
 *
 * Accuracy. A query times what a unit of a byte is worth is rounded to 16 bits of the largest such product of the head. So a
 * channel whose w bits lie from bit p of their bytes on adds less than 2^(p - 17) max_j |q_j step_j| (2^w - 1) s softmax_scale to
 * the error of a score. p counts from bit 4 if these bits, and those that the same product takes of the neighbouring byte, all
 * lie in upper halves of bytes, but from bit 0 for the last such operand of a class where it shares a pair with one of the lower
 * halves. A code that is cut in two counts as two channels, of which the upper has a larger step. Fits make
 * the steps of a head about equal. For keys before RoPE these products are rounded to float16 first, and so is what
 * means add: outputs are as far from fp64 as those of keys rounded to bfloat16, and 2e-3.
 *
 * A page. Heads follow each other. A head's data in a page of P tokens are planes: one of (P, 16) bytes for each
 * 16-byte piece of the keys' rows, the same for the values' rows, then (P, 8) for an 8-byte piece of the keys' rows and for
 * one of the values' rows, then the scales (P, 4): keys wide, keys narrow, values wide, values narrow. */
#ifndef OSCAR_CODED_ATTENTION_H_
#define OSCAR_CODED_ATTENTION_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { OSCAR_FLOAT32 = 0, OSCAR_BFLOAT16 = 1 } oscar_dtype;

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
  int32_t max_length; /* no length is larger; 2^30 at most */
} oscar_page_table;

/* Rows of bfloat16 that are written: head_dim values per (token, KV head), rows 16-byte aligned. Device memory. */
typedef struct {
  void* data;
  int64_t token_stride, head_stride; /* bytes */
} oscar_bf16_rows;

/* What was wrong with the calling thread's last refused arguments. */
const char* oscar_last_error(void);

/* How the rows of one layer are coded. Host memory. */
typedef struct {
  int32_t head_dim;                /* 64, 128 or 256 */
  int32_t num_kv_heads;
  const uint8_t *k_bits, *v_bits;  /* (num_kv_heads, head_dim / 8): 0 to 8, in each head not increasing */
  const float *k_steps, *v_steps;  /* (num_kv_heads, head_dim): positive where there are bits */
} oscar_coded_format;

/* What the kernel reads of a format, and the sizes that follow from it. */
typedef struct {
  int32_t head_dim, num_kv_heads;
  int32_t key_operands, value_operands, planes; /* the most of any head */
  int64_t token_bytes;                          /* of all KV heads: a page of P tokens has P * token_bytes */
  int64_t table_bytes;
  const void* table; /* device memory, 16-byte aligned: table_bytes that oscar_coded_layout_of() wrote */
} oscar_coded_layout;

/* Fills `layout`, all but its table. Writes layout->table_bytes to `table`, host memory, unless that is null. Returns 0, or
 * cudaErrorInvalidValue; oscar_last_error() then says why. */
int oscar_coded_layout_of(const oscar_coded_format* format, oscar_coded_layout* layout, void* table);

/* Keys before RoPE. R(j) turns pair p of channels, (x, y), by j frequency[p]: to (x cos - y sin, x sin + y cos). A key k at position j
 * is packed as the row y = bfloat16(x W). In pairs that are fast x is k - mean R(j), and in the others k R(-a) - mean, where a is
 * 256 floor(j / 256) + 128, the middle of the block of 256 positions that j is in. So it is read as x + mean R(j) and as (x + mean) R(a),
 * with x = y W^-1. A pair is fast if it turns by more than 2^-9 radian a position in texts of either length. There a few positions turn
 * what a key has besides its mean in every direction, so turning it back would gain little; other pairs turn by at most 1/4 radian from
 * the middle of a block. So a reader of many tokens turns its queries once a block, and no row of a key. Keys that
 * oscar_coded_unpack() moves are read as of where they were packed, and turned from there to where they are read.
 * W mixes only the two channels of a pair, so each pair has two coordinates of a row. Where rows are packed and unpacked sums are float32;
 * so are the products j frequency[p], whose cosines and sines are exact to 1e-6; keys that are unpacked are rounded to bfloat16.
 * oscar_coded_decode() rounds no key, and frequencies to 2^-31 of a turn. Host memory. */
typedef struct {
  int32_t head_dim, num_kv_heads;
  const int32_t* pairs;       /* (head_dim / 2, 2): every channel once, also those that do not turn */
  const float* frequency;     /* (head_dim / 2), radians a position */
  const float* far_frequency; /* LongRoPE's, of texts beyond its near context; null: the same */
  const float *basis, *inverse; /* W and W^-1: (num_kv_heads, head_dim, head_dim) for row vectors */
  const float* mean;          /* (num_kv_heads, head_dim); null: 0 */
} oscar_coded_turn;

/* Writes what kernels read of it, *table_bytes, to `table`, host memory, unless that is null. Returns as oscar_coded_layout_of()
 * does; refuses a W that mixes pairs. */
int oscar_coded_turn_table_of(const oscar_coded_turn* turn, int64_t* table_bytes, void* table);

/* How the keys of a call turn. All zeros: they are no keys before RoPE. Device memory. */
typedef struct {
  const void* table;        /* 16-byte aligned: what oscar_coded_turn_table_of() wrote */
  const int32_t* positions; /* (num_tokens); oscar_coded_decode(): (batch), of each history's first token */
  int32_t is_far;           /* 1: all texts of the call turn with far_frequency */
  int32_t was_far, moved;   /* oscar_coded_unpack(): is_far when these rows were packed, and how many positions later than then they
                               are read. Other calls refuse anything but was_far = is_far and moved = 0 */
} oscar_coded_turned;

/* The query tokens of a sequence, several where speculative decoding verifies drafts, are its newest tokens: the last
 * query_tokens of its window, in their order. Query token i does not see the query_tokens - 1 - i tokens after it; it sees the
 * rest of the window and the whole history. Where a sequence has fewer new tokens, they are its last query tokens, and what the
 * ones before give has no use. */
typedef struct {
  oscar_coded_layout layout;
  int32_t batch, num_q_heads;            /* num_q_heads / layout.num_kv_heads: 1 to 16 */
  int32_t query_tokens;                  /* 1 to 8 */
  float softmax_scale;                   /* positive */
  int32_t split_batch;                   /* the batch size that sequences are cut for; 0: batch */
  float soft_cap;                        /* 2^-10 to 2^14; 0: none */
  const void* q;                         /* bfloat16 (batch, query_tokens, num_q_heads, head_dim), 16-byte aligned */
  const void* pages;                     /* 16-byte aligned; page_size: 4 to 256; may be null if history.max_length is 0 */
  int64_t page_stride;                   /* bytes */
  oscar_page_table history;
  oscar_paged_rows k_window, v_window;   /* bfloat16, rows 16-byte aligned; data may be null if window.max_length is 0 */
  oscar_page_table window;
  oscar_coded_turned turned; /* unless all zeros, history token t of sequence b is a key at position positions[b] + t */
  float* out; /* (batch, query_tokens, num_q_heads, head_dim), 8-byte aligned */
  float* lse; /* (batch, query_tokens, num_q_heads): log of the sum of exp(scores); may be null */
  void* workspace; /* 16-byte aligned */
  size_t workspace_bytes;
} oscar_coded_decode_args;

/* Bytes of workspace that these arguments need; out, lse and workspace are not looked at. The workspace must be zeroed
 * once; every call leaves it ready for the next. Calls of different arguments may take turns on one workspace that has the
 * bytes of each, if none has more than 16384 units: batch * num_kv_heads * ceil(query rows of a KV head / 8). 0 if the
 * arguments are refused. */
size_t oscar_coded_decode_workspace(const oscar_coded_decode_args* args);

/* Enqueues the work on `stream` (a cudaStream_t). Returns 0, or a cudaError_t: cudaErrorInvalidValue if the arguments
 * are refused; oscar_last_error() then says why. Allocates nothing and does not synchronise: can be captured in a graph.
 * layout.table and turned.table are read while launches before may still be running: they must not write them. */
int oscar_coded_decode(const oscar_coded_decode_args* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* OSCAR_CODED_ATTENTION_H_ */
