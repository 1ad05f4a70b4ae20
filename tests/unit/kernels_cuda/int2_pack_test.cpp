// SPDX-License-Identifier: MIT
// The write path of an INT2 cache: equal to the CPU's codec to the bit where both see the same rotated rows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/reference/packing.hpp"
#include "unit/kernels_cuda/gpu.hpp"
#include "unit/kernels_cuda/int2_pages.hpp"

namespace oscar {
namespace {

using namespace test;

struct PackShape {
  int tokens = 37, heads = 2, dim = 128, group = 128;
  oscar_dtype params = OSCAR_FLOAT32;
  double clip = 0.96;
  int page_size = 16;
};

/// Rows of every kind: Gaussian, zeros of both signs, constant, of few values, huge, tiny.
std::vector<float> rows_to_pack(const PackShape& s, unsigned seed, bool small_integers) {
  const std::size_t dim = static_cast<std::size_t>(s.dim), count = static_cast<std::size_t>(s.tokens * s.heads);
  const std::vector<double> random = gaussian(count * dim, seed);
  std::vector<float> rows(random.begin(), random.end());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    float& x = rows[i];
    const std::size_t kind = i / dim % 8;
    if (small_integers || kind == 1) x = std::round(x);
    if (kind == 2) x = i % 3 == 0 ? 0.0F : -0.0F;
    if (kind == 3) x = i % 5 == 0 ? -0.0F : std::abs(x);
    if (kind == 4 && !small_integers) x = -5.0F;
    if (kind == 5 && !small_integers) x *= 1e30F;
    if (kind == 6 && !small_integers) x *= 1e-36F;
    x = round_to_bf16(x);
  }
  return rows;
}

std::vector<std::byte> as_bf16(const std::vector<float>& values) {
  std::vector<std::byte> bytes(2 * values.size());
  for (std::size_t i = 0; i < values.size(); ++i) store(values[i], OSCAR_BFLOAT16, &bytes[2 * i]);
  return bytes;
}

/// Packs into pools that hold 0xEE; `rotations` has one matrix, one for each head, or is empty.
struct Packed {
  RowPool codes, params;
  std::vector<int> slots;
  int status = 0;
  bool intact = false;

  Packed(const PackShape& s, const std::vector<float>& rows, const MatrixStack& rotations)
      : codes(s.tokens / s.page_size + 3, s.heads, s.page_size, s.dim / 4),
        params(s.tokens / s.page_size + 3, s.heads, s.page_size, s.dim / s.group * 2 * bytes_of(s.params)),
        slots(static_cast<std::size_t>((s.tokens / s.page_size + 3) * s.page_size)) {
    std::iota(slots.begin(), slots.end(), 0);
    std::mt19937 engine(5);
    std::shuffle(slots.begin(), slots.end(), engine);
    slots.resize(static_cast<std::size_t>(s.tokens));
    slots[slots.size() / 2] = -1;
    const std::vector<float> matrices(rotations.data.begin(), rotations.data.end());
    const DeviceBytes x(as_bf16(rows)), rotation(as_bf16(matrices)), places(bytes_of(slots));
    DeviceBytes device_codes(codes.host.size(), 0xEE), device_params(params.host.size(), 0xEE);
    oscar_int2_pack_args args{};
    args.num_tokens = s.tokens, args.num_kv_heads = s.heads, args.head_dim = s.dim, args.group_size = s.group;
    args.param_dtype = s.params, args.clip_ratio = s.clip, args.page_size = s.page_size;
    args.x = x.get(), args.x_token_stride = 2 * s.heads * s.dim, args.x_head_stride = 2 * s.dim;
    args.rotation = rotations.count == 0 ? nullptr : rotation.get();
    args.rotation_head_stride = rotations.count > 1 ? 2 * s.dim * s.dim : 0;
    args.slots = reinterpret_cast<const std::int32_t*>(places.get());
    args.codes = codes.at(device_codes), args.params = params.at(device_params);
    status = plugin_function<decltype(oscar_int2_pack)>("oscar_int2_pack")(&args, nullptr);
    check_cuda(cudaDeviceSynchronize());
    codes.host = device_codes.download(), params.host = device_params.download();
    intact = device_codes.intact() && device_params.intact() && x.intact() && rotation.intact() && places.intact();
  }
};

/// The same by the CPU's codec, into pools that hold 0xEE.
std::pair<std::vector<std::byte>, std::vector<std::byte>> expected(const PackShape& s, const std::vector<float>& rows,
                                                                   const Packed& like) {
  QuantizedRows quantized;
  std::vector<float> decoded(rows.size());
  make_cpu_backend()->quantize(rows, s.dim, RowCodec{.levels = 4, .group_size = s.group, .clip_ratio = s.clip},
                               Precision::kServing, decoded, &quantized);
  RowPool codes = like.codes, params = like.params;
  std::fill(codes.host.begin(), codes.host.end(), std::byte{0xEE});
  std::fill(params.host.begin(), params.host.end(), std::byte{0xEE});
  const std::size_t dim = static_cast<std::size_t>(s.dim), groups = dim / static_cast<std::size_t>(s.group);
  for (int token = 0; token < s.tokens; ++token) {
    const int slot = like.slots[static_cast<std::size_t>(token)];
    for (int head = 0; slot >= 0 && head < s.heads; ++head) {
      const std::size_t row = static_cast<std::size_t>(token * s.heads + head);
      std::vector<std::uint8_t> bytes(dim / 4);
      reference::pack_int2(std::span(quantized.codes).subspan(row * dim, dim), bytes);
      std::memcpy(codes.row(slot / s.page_size, head, slot % s.page_size), bytes.data(), bytes.size());
      std::byte* to = params.row(slot / s.page_size, head, slot % s.page_size);
      for (std::size_t i = row * groups; i < (row + 1) * groups; ++i) {
        store(quantized.scale[i], s.params, to), to += bytes_of(s.params);
        store(quantized.zero[i], s.params, to), to += bytes_of(s.params);
      }
    }
  }
  return {codes.host, params.host};
}

template <class T>
double share_differing(const std::vector<T>& a, const std::vector<T>& b) {
  double count = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) count += a[i] != b[i] ? 1 : 0;
  return count;
}

/// No rotation, or one whose products are exact in fp32 (rows of small integers, entries that are powers of two).
void check_pack(const PackShape& s, const MatrixStack& rotations, unsigned seed) {
  const std::vector<float> rows = rows_to_pack(s, seed, rotations.count > 0);
  std::vector<float> rotated = rows;
  if (rotations.count > 0) {
    make_cpu_backend()->rotate(heads_view(rows, s.tokens, s.heads, s.dim), rotations, Precision::kServing, rotated);
  }
  const Packed got(s, rows, rotations);
  CHECK(got.status == 0);
  CHECK(got.intact);
  const auto [codes, params] = expected(s, rotated, got);
  check_error("int2_pack, bytes that differ", {DType::kBF16, s.dim, s.tokens},
              share_differing(got.codes.host, codes) + share_differing(got.params.host, params), 0);
}

/// Sylvester's matrix with entries +-2^-4, one for each head with other signs of columns.
MatrixStack sign_matrices(int count, int dim) {
  MatrixStack all(count, dim);
  for (int h = 0; h < count; ++h) {
    for (int i = 0; i < dim; ++i) {
      for (int j = 0; j < dim; ++j) {
        const bool minus = (__builtin_popcount(static_cast<unsigned>(i & j)) + (j >> h & 1)) % 2 == 1;
        all[h][static_cast<std::size_t>(i * dim + j)] = minus ? -0.0625 : 0.0625;
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("int2_pack_matches_cpu, rows that are rotated already") {
  if (gpu_or_skip() == nullptr) return;
  unsigned seed = 600;
  for (const int dim : {64, 128, 256}) {
    for (const int group : {dim, 64, 32}) {
      for (const oscar_dtype params : {OSCAR_FLOAT32, OSCAR_FLOAT16, OSCAR_BFLOAT16}) {
        for (const double clip : {0.0, 0.5, 0.92, 0.96, 1.0}) {
          check_pack({.tokens = 131,
                      .heads = 3,
                      .dim = dim,
                      .group = group,
                      .params = params,
                      .clip = clip,
                      .page_size = seed % 2 == 0 ? 16 : 7},
                     {}, seed++);
        }
      }
    }
  }
}

TEST_CASE("int2_pack_matches_cpu, rotation of exact products") {
  if (gpu_or_skip() == nullptr) return;
  for (const int dim : {64, 128, 256}) {
    for (const int count : {1, 3}) {
      check_pack({.tokens = 200, .heads = 3, .dim = dim, .group = dim}, sign_matrices(count, dim), 700);
      check_pack({.tokens = 1, .heads = 3, .dim = dim, .group = 32, .clip = 0.0}, sign_matrices(count, dim), 701);
    }
  }
}

TEST_CASE("small: int2_pack") {
  if (gpu_or_skip() == nullptr) return;
  check_pack({.tokens = 19}, {}, 800);
  check_pack({.tokens = 18, .dim = 64, .group = 32, .params = OSCAR_FLOAT16}, sign_matrices(2, 64), 801);
  check_pack({.tokens = 140, .heads = 264, .dim = 64, .group = 64}, {}, 803);  // some warps take two tiles
}

TEST_CASE("int2_pack refuses what it cannot do, and says why") {
  if (gpu_or_skip() == nullptr) return;
  const auto refused = [](const oscar_int2_pack_args& args, const std::string& reason) {
    CHECK(plugin_function<decltype(oscar_int2_pack)>("oscar_int2_pack")(&args, nullptr) == cudaErrorInvalidValue);
    const std::string said = plugin_function<decltype(oscar_last_error)>("oscar_last_error")();
    CHECK_MESSAGE(said.find(reason) != std::string::npos, said);
  };
  oscar_int2_pack_args args{};
  refused(args, "num_kv_heads");
  args.num_tokens = 1, args.num_kv_heads = 1, args.head_dim = 80;
  refused(args, "head_dim");
  args.head_dim = 64, args.group_size = 16;
  refused(args, "group_size");
  args.group_size = 64;
  refused(args, "page_size");
  args.page_size = 5, args.clip_ratio = 1.5;
  refused(args, "clip_ratio");
  args.clip_ratio = 0.5;
  refused(args, "must not be null");
}

}  // namespace oscar
