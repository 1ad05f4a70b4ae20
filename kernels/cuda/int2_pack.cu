// SPDX-License-Identifier: MIT
// oscar_int2_pack(): rotation, codec and packing in one pass. Rotated rows are rounded to bfloat16, as servers store
// them; from there grids and codes are those of kernels/cpu/row_codec.cpp, to the bit (compiled without contraction).
// A warp takes 16 rows of a head at a time; the next 16 are copied to shared memory while it encodes.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

#include "kernels/arguments.hpp"
#include "kernels/cuda/int2_arguments.hpp"
#include "kernels/cuda/int2_launch.cuh"
#include "kernels/cuda/int2_pack_rows.cuh"
#include "oscar/int2_attention.h"

namespace oscar::cuda {

// Clip thresholds of 16 rows for oscar_int2_pack().

/// Numbers from 0 to 255 of one row, eight words of which bit b of every number is in word b.
class BitPlanes {
 public:
  BitPlanes() = default;
  /// words: four numbers each.
  __device__ __forceinline__ explicit BitPlanes(const unsigned (&words)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) planes_[i] = words[i];
    exchange<4>(0x0f0f0f0fU), exchange<2>(0x33333333U), exchange<1>(0x55555555U);
  }
  [[nodiscard]] __device__ __forceinline__ unsigned operator[](int bit) const { return planes_[bit]; }

 private:
  /// Bits of bytes and words change places where their places differ in kStep.
  template <int kStep>
  __device__ __forceinline__ void exchange(unsigned mask) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if ((i & kStep) != 0) continue;
      const unsigned a = planes_[i], b = planes_[i + kStep];
      planes_[i] = (a & mask) | (b << kStep & ~mask);
      planes_[i + kStep] = (a >> kStep & mask) | (b & ~mask);
    }
  }

  unsigned planes_[8];
};

/// The rank-th smallest magnitude of each row, as bits, which are in the order of magnitudes.
template <int kDim>
class Thresholds {
 public:
  /// highest: the largest magnitudes of the rows, as bits.
  __device__ __forceinline__ Thresholds(const unsigned (&highest)[2], int rank)
      : rank_(rank), highest_{static_cast<int>(highest[0]), static_cast<int>(highest[1])} {}

  __device__ __forceinline__ void find(const RowPair<kDim>& rows, unsigned (&thresholds)[2]) const {
    find_near_highest(rows, thresholds);
    if (__any_sync(kQuadLanes, thresholds[0] == 0 || thresholds[1] == 0)) find_anywhere(rows, thresholds);
  }

 private:
  static constexpr int kPairs = Layout<kDim>::kPairs, kSets = (kPairs + 15) / 16;  // of 32 values

  /// 32 values of a row as numbers: 255 for the highest magnitude, 0 for those two octaves below and less.
  __device__ __forceinline__ BitPlanes numbers(const RowPair<kDim>& rows, int r, int set) const {
    const unsigned down = twice(static_cast<unsigned>(255 - highest_[r]) & 0xffffU);
    unsigned words[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      unsigned two[2] = {0, 0};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int pair = 16 * set + 2 * i + n;
        if (pair < kPairs) two[n] = __viaddmax_s16x2(rows.pairs[r][pair] & 0x7fff7fffU, down, 0);
      }
      words[i] = __byte_perm(two[0], two[1], 0x6420);
    }
    return BitPlanes(words);
  }

  /// Finds the threshold in the two octaves below the highest magnitude, where it mostly is; 0 if it is not there. Of
  /// the values that agree in the bits so far, those with the next bit are enough to hold the one looked for, or are
  /// left behind.
  __device__ __forceinline__ void find_near_highest(const RowPair<kDim>& rows, unsigned (&thresholds)[2]) const {
    BitPlanes planes[2][kSets];
    unsigned left[2][kSets], found[2] = {0, 0};
    int wanted[2] = {kDim - rank_, kDim - rank_};  // the how manieth from the top of those that are left
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int set = 0; set < kSets; ++set) planes[r][set] = numbers(rows, r, set), left[r][set] = ~0U;
    }
#pragma unroll
    for (int bit = 7; bit >= 0; --bit) {
      int counts = 0;  // of both rows
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
        counts += __popc(left[0][set] & planes[0][set][bit]) + (__popc(left[1][set] & planes[1][set][bit]) << 16);
      }
      counts = over_row(counts, [](int a, int b) { return a + b; });
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int count = r == 0 ? counts & 0xffff : counts >> 16;
        const bool enough = count >= wanted[r];
        const unsigned flip = enough ? 0U : ~0U;
        if (enough) found[r] |= 1U << bit;
        if (!enough) wanted[r] -= count;
#pragma unroll
        for (int set = 0; set < kSets; ++set) left[r][set] &= planes[r][set][bit] ^ flip;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) thresholds[r] = found[r] == 0 ? 0 : static_cast<unsigned>(highest_[r] - 255) + found[r];
  }

  /// The largest number below which at most `rank` magnitudes lie, bit by bit.
  __device__ void find_anywhere(const RowPair<kDim>& rows, unsigned (&thresholds)[2]) const {
    unsigned found[2] = {0, 0};
#pragma unroll 1
    for (unsigned bit = 1U << 14; bit > 0; bit /= 2) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const unsigned limit = found[r] | bit;
        int below = 0;
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
          below += (rows.pairs[r][i] & 0x7fffU) < limit ? 1 : 0;
          below += (rows.pairs[r][i] >> 16 & 0x7fffU) < limit ? 1 : 0;
        }
        if (over_row(below, [](int a, int b) { return a + b; }) <= rank_) found[r] = limit;
      }
    }
    thresholds[0] = found[0], thresholds[1] = found[1];
  }

  int rank_, highest_[2];
};

// The rotation in oscar_int2_pack(), by tensor cores: fp32 sums, rounded once to bfloat16. On compute capability 9.0
// the four warps of a group multiply their 64 rows at once (wgmma), which reads the matrix a quarter as often;
// elsewhere each warp multiplies its 16.

/// Begins to copy one head's rotation to shared memory; to(row, j): where the piece of 16 bytes goes that has the
/// columns of the lanes' pair j.
template <int kDim, class To>
__device__ __forceinline__ void copy_rotation(const PackParams& p, int head, const To& to) {
  const unsigned char* const from = moved(p.args.rotation, p.args.rotation_head_stride, head);
  constexpr unsigned kWords = kDim / 2;
  for (unsigned i = threadIdx.x; i < kDim * kWords; i += kPackWarps * kLanes) {
    const unsigned row = i / kWords, pair = i % kWords / 4, t = i % 4;
    const int channel = Layout<kDim>::channel(static_cast<int>(pair), static_cast<int>(t));
    copy_async<4>(to(row, pair) + t * 4, from + 2 * (row * kDim + static_cast<unsigned>(channel)));
  }
  commit_copies();
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/// d (64, 64) += a (64, 16) b (16, 64), asynchronously: warp w of four has rows 16 w to 16 w + 15 of a and d, as mma()
/// has them, d[j] columns 8 j to 8 j + 7. b: descriptor of a matrix in shared memory. Without kAdd, d is overwritten.
template <bool kAdd>
__device__ __forceinline__ void wide_mma(float (*d)[4], const unsigned (&a)[4], std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "{%32,%33,%34,%35}, %36, add, 1, 1, 1;\n}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
        "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
        "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),
        "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
        "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdd));
}

/// One head's rotation in shared memory, in panels of 64 columns, swizzled as wgmma reads a matrix whose rows are
/// dense: the 16-byte pieces of a row of 128 bytes change places by the row. Column 8 j + 2 t is the first channel of
/// the lanes' pair j.
template <int kDim>
class SharedRotation {
 public:
  static constexpr unsigned kBytes = 2 * kDim * kDim;

  /// shared: 1024-byte aligned.
  __device__ SharedRotation(const PackParams& p, int head, unsigned shared) {
    copy_rotation<kDim>(p, head, [&](unsigned row, unsigned piece) {
      return shared + piece / 8 * kPanel + row * 128 + (piece ^ row) % 8 * 16;
    });
    constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62, kNextRows = std::uint64_t{1024 / 16} << 32;
    descriptor_ = kSwizzle128 | kNextRows | shared / 16;
  }
  /// Publishes a thread's copies: every thread calls it when its copies are there, before the barrier after which all
  /// use them.
  __device__ static void publish() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

  /// rows = rows R, rounded; by the four warps of a group together.
  __device__ __forceinline__ void apply(const Tile<kDim>& tile, RowPair<kDim>& rows) const {
    unsigned a[kDim / 16][4];
#pragma unroll
    for (unsigned k = 0; k < kDim / 16; ++k) tile.operand(k, a[k]);
#pragma unroll
    for (int panel = 0; panel < kDim / 64; panel += kAtOnce) {
      float out[kAtOnce * 8][4] = {};
      asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const std::uint64_t b = descriptor_ + (panel + n) * (kPanel / 16);
        wide_mma<false>(out + n * 8, a[0], b);
#pragma unroll
        for (unsigned k = 1; k < kDim / 16; ++k) wide_mma<true>(out + n * 8, a[k], b + k * (16 * 128 / 16));
      }
      asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n" ::: "memory");
#pragma unroll
      for (int j = 0; j < kAtOnce * 8; ++j) {
#pragma unroll
        for (float& x : out[j]) asm volatile("" : "+f"(x)::"memory");  // not read before
        rows.pairs[0][panel * 8 + j] = pack_bf16(out[j][0], out[j][1]);
        rows.pairs[1][panel * 8 + j] = pack_bf16(out[j][2], out[j][3]);
      }
    }
  }

 private:
  static constexpr int kAtOnce = 1;
  static constexpr unsigned kPanel = kDim * 128;  // bytes

  std::uint64_t descriptor_;  // of the first 16 rows of the first panel
};

#else

/// One head's rotation in shared memory, as the right operand of rows R: rows of 16-byte pieces, of which piece j has
/// the columns that are the lanes' pair j.
template <int kDim>
class SharedRotation {
 public:
  static constexpr unsigned kBytes = 2 * kDim * kDim;

  __device__ SharedRotation(const PackParams& p, int head, unsigned shared) {
    copy_rotation<kDim>(p, head, [&](unsigned row, unsigned piece) { return shared + place<kDim>(row, piece); });
#pragma unroll
    for (unsigned j = 0; j < 8; ++j) pieces_[j] = shared + place<kDim>(threadIdx.x % kLanes, j);
  }

  __device__ static void publish() {}

  /// rows = rows R, rounded.
  __device__ __forceinline__ void apply(const Tile<kDim>& tile, RowPair<kDim>& rows) const {
    float out[kDim / 8][4] = {};
#pragma unroll
    for (unsigned c = 0; c < kDim / 32; ++c) {
      unsigned a[2][4];
      tile.operand(2 * c, a[0]), tile.operand(2 * c + 1, a[1]);
#pragma unroll
      for (unsigned j = 0; j < kDim / 8; ++j) {
        unsigned r[4];
        load_matrices<true>(pieces_[j % 8] + c * 64 * kDim + j / 8 * 128, r);
        mma<Half::kBfloat16>(out[j], a[0][0], a[0][1], a[0][2], a[0][3], r[0], r[1]);
        mma<Half::kBfloat16>(out[j], a[1][0], a[1][1], a[1][2], a[1][3], r[2], r[3]);
      }
    }
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      rows.pairs[0][j] = pack_bf16(out[j][0], out[j][1]);
      rows.pairs[1][j] = pack_bf16(out[j][2], out[j][3]);
    }
  }

 private:
  unsigned pieces_[8];  // this lane's: of row `lane` of the first 32
};

#endif

namespace {

__device__ __forceinline__ void store_param(unsigned char* to, oscar_dtype type, const GroupGrid& grid) {
  if (type == OSCAR_FLOAT32) {
    *reinterpret_cast<float2*>(to) = {grid.scale, grid.zero};
  } else {
    const auto finite = [](float x) { return fminf(fmaxf(x, -kLargestF16), kLargestF16); };
    *reinterpret_cast<unsigned*>(to) =
        type == OSCAR_FLOAT16 ? pack_f16(finite(grid.scale), finite(grid.zero)) : pack_bf16(grid.scale, grid.zero);
  }
}

/// The grids of 16 rows, group by group.
template <int kDim, int kGroups>
class MinMax {
 public:
  __device__ __forceinline__ MinMax(const PackParams& p, const RowPair<kDim>& rows, int head)
      : rows_(rows), ends_(rows) {
    const int rank = p.args.clip_ranks == nullptr ? p.clip_rank : __ldg(p.args.clip_ranks + head);
    if (rank < 0) return;
    unsigned highest[2];
    ends_.highest(highest);
    Thresholds<kDim>(highest, rank).find(rows, thresholds_);
  }
  __device__ __forceinline__ void encode(int group, GroupGrid& grid, PackedCodes<kDim> (&codes)[2]) const {
    encode_min_max<kDim, kGroups>(rows_, ends_, group, thresholds_, grid, codes);
  }

 private:
  const RowPair<kDim>& rows_;
  Ends<kDim, kGroups> ends_;
  unsigned thresholds_[2] = {0x7f80U, 0x7f80U};  // infinity
};

/// Encodes 16 rows and writes them to their slots, which are those of rows g and g + 8.
template <int kDim, int kGroups>
__device__ __forceinline__ void write_rows(const PackParams& p, const RowPair<kDim>& rows, int head,
                                           const int (&numbers)[2]) {
  const MinMax<kDim, kGroups> encoder(p, rows, head);
  PackedCodes<kDim> codes[2];
  const int param_bytes = p.args.param_dtype == OSCAR_FLOAT32 ? 8 : 4, t = static_cast<int>(threadIdx.x) % 4;
  const Slot slots[2] = {Slot(p, numbers[0]), Slot(p, numbers[1])};
  const Slot own = t < 2 ? slots[0] : slots[1];  // of the row whose grids this lane has
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    GroupGrid grid;
    encoder.encode(group, grid, codes);
    if (own.page < 0 || t % 2 != group % 2) continue;
    store_param(own.in(p.args.params, head) + group * param_bytes, p.args.param_dtype, grid);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (slots[r].page >= 0) codes[r].store(slots[r].in(p.args.codes, head));
  }
}

/// A block's shared memory: the warps' rows, the rotation, the rows' slots.
template <int kDim, bool kRotate>
struct SharedPlaces {
  static constexpr int kRotation = kPackWarps * Tile<kDim>::kBytes;
  static constexpr int kSlots = kRotation + (kRotate ? static_cast<int>(SharedRotation<kDim>::kBytes) : 0);
  static constexpr int kBytes = kSlots + kPackWarps * kPackRows * static_cast<int>(sizeof(int));
};

/// Grid: (any number, num_kv_heads); blocks of a head share its tiles of kPackRows tokens.
template <int kDim, int kGroups, bool kRotate>
__global__ void __launch_bounds__(kPackWarps* kLanes, kDim <= 128 ? 2 : 1)
    int2_pack(const __grid_constant__ PackParams p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int head = static_cast<int>(blockIdx.y);
  const int warp = static_cast<int>(threadIdx.x) / kLanes, step = static_cast<int>(gridDim.x) * kPackWarps * kPackRows;
  const int in_group = warp % kGroupWarps * kPackRows;  // groups go by their first rows: their warps stay together
  using Shared = SharedPlaces<kDim, kRotate>;
  const Tile<kDim> tile(p, head, shared + warp * Tile<kDim>::kBytes,
                        reinterpret_cast<int*>(shared + Shared::kSlots) + warp * kPackRows);
  // Where rows do not come out even, half of every block is left with fewer, not half of the blocks.
  const int group = warp / kGroupWarps * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  int first = group * kGroupWarps * kPackRows + in_group;
  follow_previous_launch();
  if (first - in_group < p.args.num_tokens) tile.copy(first);
  const auto work = [&](const auto& take) {
    for (; first - in_group < p.args.num_tokens; first += step) {
      wait_for_copies<0>();
      __syncwarp();
      RowPair<kDim> rows;
      take(rows);
      const int slots[2] = {tile.slot(0, first), tile.slot(1, first)};
      __syncwarp();  // every lane has read its rows
      if (first - in_group + step < p.args.num_tokens) tile.copy(first + step);
      write_rows<kDim, kGroups>(p, rows, head, slots);
    }
  };
  if constexpr (kRotate) {
    const SharedRotation<kDim> rotation(p, head,
                                        static_cast<unsigned>(__cvta_generic_to_shared(shared + Shared::kRotation)));
    wait_for_copies<0>();
    rotation.publish();
    __syncthreads();
    work([&](RowPair<kDim>& rows) { rotation.apply(tile, rows); });
  } else {
    work([&](RowPair<kDim>& rows) { tile.load(rows); });
  }
}

template <int kDim, int kGroups, bool kRotate>
int launch(const PackParams& p, cudaStream_t stream) {
  constexpr int kShared = SharedPlaces<kDim, kRotate>::kBytes;
  constexpr int kBlocks = kDim <= 128 ? 2 * 132 : 132;  // what an H100 holds at once
  const int heads = p.args.num_kv_heads, rows = kPackRows * kPackWarps, blocks = (p.args.num_tokens + rows - 1) / rows;
  const dim3 grid(static_cast<unsigned>(std::min(blocks, std::max(1, kBlocks / heads))), static_cast<unsigned>(heads));
  return launch_overlapping<int2_pack<kDim, kGroups, kRotate>>(p, grid, kPackWarps * kLanes, kShared, kShared, stream);
}

int launch_shape(const PackParams& p, cudaStream_t stream) {
  return with_groups(p.args.head_dim, p.args.group_size, [&]<int kDim, int kGroups>() {
    return p.args.rotation != nullptr ? launch<kDim, kGroups, true>(p, stream)
                                      : launch<kDim, kGroups, false>(p, stream);
  });
}

const char* problem(const oscar_int2_pack_args& a) {
  if (a.num_tokens < 0 || a.num_kv_heads < 1 || a.num_kv_heads > 65535)
    return "num_tokens or num_kv_heads is out of range";
  if (const char* wrong = shape_problem(a.head_dim, a.group_size, a.param_dtype)) return wrong;
  if (a.page_size < 1) return "page_size must be positive";
  if (a.clip_ratio > 1 || std::isnan(a.clip_ratio)) return "clip_ratio must not exceed 1";
  if (a.x == nullptr || a.slots == nullptr || a.codes.data == nullptr || a.params.data == nullptr) {
    return "x, slots, codes and params must not be null";
  }
  if (const char* wrong = rows_problem(a.codes, 8)) return wrong;
  if (const char* wrong = rows_problem(a.params, a.param_dtype == OSCAR_FLOAT32 ? 8 : 4)) return wrong;
  if (const char* wrong = rows_problem({a.x, 0, a.x_token_stride, a.x_head_stride}, 16)) return wrong;
  return rows_problem({a.rotation, 0, 0, a.rotation_head_stride}, 4);
}

PackParams params_of(const oscar_int2_pack_args& a) {
  return {a, a.clip_ratio > 0 ? clip_rank(a.clip_ratio, a.head_dim) : -1, FastDivide(a.page_size)};
}

}  // namespace

}  // namespace oscar::cuda

using namespace oscar::cuda;
extern "C" __attribute__((visibility("default"))) int oscar_int2_pack(const oscar_int2_pack_args* args, void* stream) {
  if (const char* wrong = args == nullptr ? "no arguments" : problem(*args); wrong != nullptr) return refuse(wrong);
  if (args->num_tokens == 0) return cudaSuccess;
  return launch_shape(params_of(*args), static_cast<cudaStream_t>(stream));
}
