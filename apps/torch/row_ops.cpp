// SPDX-License-Identifier: MIT
// torch.ops.oscar.rotate_rows and window_step: what a server's step needs beside packed rows. Both can be captured in a
// CUDA graph.
// rotate_rows: oscar/rotate_rows.h for tensors, products of rows of one layer by one launch.
//   x         1 to 4 of (tokens, heads, head_dim), bfloat16 or float32; rows are dense, the rest may be strided
//   matrices  for each x: bfloat16 (heads or a divisor of them, head_dim, head_dim), dense
//   means     for each x: float32 (heads or a divisor of them, head_dim), dense, or None
//   out       for each x: bfloat16 of its shape, to be written: bfloat16(bfloat16(x - mean) matrix), float32 sums
//   kept      for as many of the first x: bfloat16 (any number, heads, head_dim), written at the tokens' slots, too
//   slots     int32 (tokens), of all kept rows; negative: the token is not kept. None where nothing is kept
//   adds_mean out is bfloat16(bfloat16(x) matrix + mean)
// window_step: which blocks of a server's paged cache have exact copies in a step, and what attention is told of it
// (oscar_kv/window_blocks.py, kernels/window_step.hpp). int32 are
//   table (requests, any), starts (requests + 1), lengths (requests): what the server says of the step
//   slots, kept (tokens); pages (requests, any), history (requests), copies (requests, any), copy_lengths (requests):
//   to be written
// and int64, of the blocks of the cache and of the entries that copies have:
//   written (tokens), entry_of (blocks + 1), block_of and read_in (entries + 1), room (blocks + 1)
#include <array>
#include <limits>
#include <vector>

#include "apps/torch/stable_torch.hpp"
#include "on_cpu.hpp"

namespace oscar::operators {
namespace {

using Tensors = std::vector<Tensor>;

/// x (tokens, heads, head_dim) times its matrices, to `out`.
oscar_row_product product_of(const Tensor& x, const Tensor& matrices, const std::optional<Tensor>& means,
                             const Tensor& out, bool adds_mean, const Tensor& like) {
  const bool is_float = x.scalar_type() == ScalarType::Float;
  check_tensor(x, "x", like, 3, is_float ? ScalarType::Float : ScalarType::BFloat16);
  const int64_t heads = x.size(1), dim = x.size(2), size = is_float ? 4 : 2;
  check_tensor(matrices, "matrices", like, 3, ScalarType::BFloat16);
  if (!(matrices.is_contiguous() && matrices.size(1) == dim && matrices.size(2) == dim))
    fail("matrices are ", shape_of(matrices), ", not dense [any, ", dim, ", ", dim, "]");
  oscar_row_product product{};
  product.num_tokens = static_cast<int32_t>(x.size(0)), product.num_heads = static_cast<int32_t>(heads);
  product.num_matrices = static_cast<int32_t>(matrices.size(0)), product.matrices = matrices.data_ptr();
  product.x = x.data_ptr(), product.x_dtype = is_float ? OSCAR_FLOAT32 : OSCAR_BFLOAT16;
  product.x_token_stride = size * x.stride(0), product.x_head_stride = size * x.stride(1);
  if (means) {
    check_tensor(*means, "means", like, 2, ScalarType::Float);
    if (!(means->is_contiguous() && means->size(1) == dim))
      fail("means are ", shape_of(*means), ", not dense [any, ", dim, "]");
    product.num_means = static_cast<int32_t>(means->size(0)), product.means = means->const_data_ptr<float>();
    product.adds_mean = adds_mean ? 1 : 0;
  }
  product.out = target_of(out, "out", x, heads, dim);
  return product;
}

void rotate_rows(const Tensors& x, const Tensors& matrices, const std::vector<std::optional<Tensor>>& means,
                 const Tensors& out, const std::optional<Tensor>& slots, const Tensors& kept, bool adds_mean) {
  const std::size_t count = x.size();
  if (count < 1 || count > OSCAR_MOST_PRODUCTS) fail("there are ", count, " x, not 1 to ", OSCAR_MOST_PRODUCTS);
  if (!(matrices.size() == count && means.size() == count && out.size() == count))
    fail(count, " x have ", matrices.size(), " matrices, ", means.size(), " means and ", out.size(), " out");
  if (kept.size() > count || slots.has_value() == kept.empty())
    fail("kept rows need slots, and no more of them than x");
  std::array<oscar_row_product, OSCAR_MOST_PRODUCTS> products{};
  for (std::size_t i = 0; i < count; ++i) {
    products[i] = product_of(x[i], matrices[i], means[i], out[i], adds_mean, x[0]);
    if (x[i].size(2) != x[0].size(2)) fail("x have ", x[i].size(2), " and ", x[0].size(2), " channels");
    if (i >= kept.size()) continue;
    check_tensor(*slots, "slots", x[0], 1, ScalarType::Int);
    if (slots->size(0) != x[i].size(0)) fail("slots has ", slots->size(0), " entries, not ", x[i].size(0));
    check_tensor(kept[i], "kept", x[0], 3, ScalarType::BFloat16);
    if (!(kept[i].size(1) == x[i].size(1) && kept[i].size(2) == x[i].size(2)))
      fail("kept is ", shape_of(kept[i]), ", and x ", shape_of(x[i]));
    check_slots(*slots, kept[i].size(0));
    products[i].kept = {kept[i].data_ptr(), 2 * kept[i].stride(0), 2 * kept[i].stride(1)};
    products[i].slots = slots->const_data_ptr<int32_t>();
  }
  const auto dim = static_cast<int32_t>(x[0].size(2));
  compute(
      x[0], "rotate_rows",
      [&](void* stream) { return oscar_rotate_rows(products.data(), static_cast<int32_t>(count), dim, stream); },
      [&] { on_cpu::rotate_rows(std::span(products).first(count), dim); });
}

/// The dense numbers of x, of which there must be so many. On the CPU throws unless all are below `end`.
template <class T>
T* numbers_of(const Tensor& x, const char* name, const Tensor& like, int64_t count,
              int64_t end = std::numeric_limits<int64_t>::max()) {
  check_tensor(x, name, like, x.dim() == 2 ? 2 : 1, sizeof(T) == 8 ? ScalarType::Long : ScalarType::Int);
  if (!(x.is_contiguous() && x.numel() == count)) fail(name, " is ", shape_of(x), ", not ", count, " dense numbers");
  T* const numbers = static_cast<T*>(x.data_ptr());
  for (int64_t i = 0; x.is_cpu() && i < count; ++i)
    if (numbers[i] >= end) fail(name, " has ", numbers[i], ", and all must be below ", end);
  return numbers;
}

void window_step(const Tensor& table, const Tensor& starts, const Tensor& lengths, const Tensor& written,
                 const Tensor& entry_of, const Tensor& block_of, const Tensor& read_in, const Tensor& room,
                 const Tensor& slots, const Tensor& kept, const Tensor& pages, const Tensor& history,
                 const Tensor& copies, const Tensor& copy_lengths, int64_t block_size, int64_t sink, int64_t recent,
                 int64_t step) {
  check_tensor(table, "table", table, 2, ScalarType::Int);
  check_tensor(pages, "pages", table, 2, ScalarType::Int), check_tensor(copies, "copies", table, 2, ScalarType::Int);
  const int64_t requests = table.size(0), tokens = written.numel();
  const int64_t blocks = entry_of.numel() - 1, entries = block_of.numel() - 1;
  WindowStepCall call{};
  call.block_size = static_cast<int>(block_size), call.sink = static_cast<int>(sink);
  call.recent = static_cast<int>(recent), call.step = step;
  call.new_tokens = static_cast<int>(copies.size(1) - (sink + recent - 1));
  if (!(call.block_size > 0 && sink >= 0 && recent > 0 && call.new_tokens > 0))
    fail("copies has ", copies.size(1), " tokens, with a window of ", sink, " + ", recent);
  if (!(requests > 0 && requests < 65535)) fail("table has ", requests, " requests");
  if (!(pages.size(1) > 0 && pages.size(1) <= table.size(1)))
    fail("pages is ", shape_of(pages), ", and the table ", shape_of(table));
  if (!(blocks > 0 && entries > 0 && entries < 1 << 24))
    fail("there are ", blocks, " blocks and ", entries, " entries");
  call.blocks = static_cast<int>(blocks), call.entries = static_cast<int>(entries);
  call.requests = static_cast<int>(requests), call.all_tokens = static_cast<int>(tokens);
  call.table = table.const_data_ptr<int32_t>(), call.table_stride = table.stride(0);
  call.table_width = static_cast<int>(table.size(1)), call.page_width = static_cast<int>(pages.size(1));
  call.starts = numbers_of<int32_t>(starts, "starts", table, requests + 1);
  call.lengths = numbers_of<int32_t>(lengths, "lengths", table, requests);
  call.written = numbers_of<int64_t>(written, "written", table, tokens, blocks * call.block_size);
  call.entry_of = numbers_of<int64_t>(entry_of, "entry_of", table, blocks + 1, entries);
  call.block_of = numbers_of<int64_t>(block_of, "block_of", table, entries + 1, blocks + 1);
  const int64_t most = table.size(1) * call.block_size;
  for (int64_t r = 0; table.is_cpu() && r < requests; ++r) {
    const int64_t length = call.lengths[r], begin = call.starts[r], end = call.starts[r + 1];
    if (begin < 0 || end < begin) fail("starts must rise from 0, and has ", begin, ", ", end);
    if (length < 0 || length > most) fail("table has ", most, " tokens of a request at most, and a length is ", length);
    for (int64_t i = 0; i < table.size(1); ++i) {
      const int64_t block = call.table[r * table.stride(0) + i];
      if (block < 0 || block >= blocks) fail("table has block ", block, " of ", blocks);
    }
  }
  call.read_in = numbers_of<int64_t>(read_in, "read_in", table, entries + 1);
  call.room = numbers_of<int64_t>(room, "room", table, blocks + 1);
  call.slots = numbers_of<int32_t>(slots, "slots", table, tokens);
  call.kept = numbers_of<int32_t>(kept, "kept", table, tokens);
  call.pages = numbers_of<int32_t>(pages, "pages", table, requests * pages.size(1));
  call.history = numbers_of<int32_t>(history, "history", table, requests);
  call.copies = numbers_of<int32_t>(copies, "copies", table, requests * copies.size(1));
  call.copy_lengths = numbers_of<int32_t>(copy_lengths, "copy_lengths", table, requests);
  compute(
      table, "window_step", [&](void* stream) { return step_windows(call, stream); },
      [&] { on_cpu::step_windows(call); });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(oscar, library) {
  library.def(
      "rotate_rows(Tensor[] x, Tensor[] matrices, Tensor?[] means, Tensor(a!)[] out, "
      "Tensor? slots, Tensor(b!)[] kept, *, bool adds_mean=False) -> ()");
  library.def(
      "window_step(Tensor table, Tensor starts, Tensor lengths, Tensor written, Tensor(a!) entry_of, "
      "Tensor(b!) block_of, Tensor(c!) read_in, Tensor(d!) room, Tensor(e!) slots, Tensor(f!) kept, Tensor(g!) pages, "
      "Tensor(h!) history, Tensor(i!) copies, Tensor(j!) copy_lengths, int block_size, int sink, int recent, int step) "
      "-> ()");
}

STABLE_TORCH_LIBRARY_IMPL(oscar, Meta, library) {
  library.impl("rotate_rows", TORCH_BOX(&Nothing<&rotate_rows>::run));
  library.impl("window_step", TORCH_BOX(&Nothing<&window_step>::run));
}

STABLE_TORCH_LIBRARY_IMPL(oscar, CPU, library) {
  library.impl("rotate_rows", TORCH_BOX(&rotate_rows));
  library.impl("window_step", TORCH_BOX(&window_step));
}

#ifdef OSCAR_HAS_CUDA
STABLE_TORCH_LIBRARY_IMPL(oscar, CUDA, library) {
  library.impl("rotate_rows", TORCH_BOX(&rotate_rows));
  library.impl("window_step", TORCH_BOX(&window_step));
}
#endif

}  // namespace oscar::operators
