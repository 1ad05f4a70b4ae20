// SPDX-License-Identifier: MIT
// torch.ops.oscar.coded_layout, coded_turn, coded_pack, coded_unpack, coded_decode and coded_decode_workspace (bytes
// that it needs on CUDA): oscar/coded_pack.h and coded_attention.h for tensors. All but the first two can be captured
// in a CUDA graph.
//   k_turn   uint8, of keys before RoPE: what coded_turn made on the CPU, of pairs int32 (head_dim / 2, 2); of float32
//            frequencies (head_dim / 2), basis and inverse (num_kv_heads, head_dim, head_dim) and mean (num_kv_heads,
//            head_dim)
//   k_positions  int32 (tokens); of coded_decode (sequences), of their first packed tokens, whom the others follow
//   k_far    whether texts are beyond the near context of LongRoPE
//   k_was_far, k_moved  of coded_unpack: what k_far was when rows were packed (None: the same), and how many positions
//            they stand behind where they were packed
//   format   on the CPU: bits uint8 (num_kv_heads, head_dim / 8), steps and sigmas float32 (num_kv_heads, head_dim)
//   layout   int64 (7) on the CPU, for coded_pack and coded_decode a list: head_dim, num_kv_heads, key operands, value
//            operands, planes, bytes of a token, bytes of the reader's tables
//   tables   uint8: the reader's and the writer's, if for_gpu, then the format; made on the CPU, used beside the pages
//   pages    uint8 (pages, page_size, bytes of a token): each page is dense, and its bytes are planes, not rows
//   slots    int32 (tokens): page * page_size + token, negative: not written
//   page_table, window_pages (sequences, pages of each), lengths and window_lengths (sequences): int32
//   k_window, v_window  bfloat16 (pages, page_size, num_kv_heads, head_dim), rows dense
//   q        bfloat16 (batch, num_q_heads, head_dim), or (batch, 2 to 8 query tokens, num_q_heads, head_dim): the
//            newest tokens of a sequence, the last of its window, each of which sees those before it
#include <cmath>
#include <cstring>
#include <optional>
#include <tuple>
#include <vector>

#include "apps/torch/stable_torch.hpp"
#include "kernels/coded_turn.hpp"
#include "on_cpu.hpp"

namespace oscar::operators {
namespace {

constexpr int64_t kLayoutNumbers = 7;
using Numbers = std::vector<int64_t>;

void check_format(const Tensor& x, const char* name, const Tensor& bits, int64_t width, ScalarType type) {
  check_tensor(x, name, bits, 2, type);
  if (!x.is_contiguous()) fail(name, " is not contiguous");
  if (!(x.size(0) == bits.size(0) && x.size(1) == width))
    fail(name, " is ", shape_of(x), ", not [", bits.size(0), ", ", width, "]");
}

/// Bytes of a format in tables: bits, steps and sigmas of the keys, then of the values.
int64_t format_bytes(int64_t heads, int64_t dim) { return 2 * heads * (dim / 8 + 8 * dim); }

/// The layer that a format describes; format: format_bytes() as they stand at the end of tables.
on_cpu::CodedLayer layer_of(int64_t heads, int64_t dim, const uint8_t* format) {
  const int64_t numbers = heads * dim;
  std::vector<float> values(static_cast<std::size_t>(4 * numbers));
  const uint8_t* const second = format + format_bytes(heads, dim) / 2;
  for (const auto& [from, to] : {std::pair{format, values.data()}, std::pair{second, values.data() + 2 * numbers}}) {
    std::memcpy(to, from + numbers / 8, static_cast<std::size_t>(8 * numbers));
  }
  const float* const at = values.data();
  return {static_cast<int>(heads),
          static_cast<int>(dim),
          {format, second},
          {at, at + 2 * numbers},
          {at + numbers, at + 3 * numbers}};
}

std::tuple<Tensor, Tensor> coded_layout(const Tensor& k_bits, const Tensor& v_bits, const Tensor& k_steps,
                                        const Tensor& v_steps, const Tensor& k_sigmas, const Tensor& v_sigmas,
                                        bool for_gpu) {
  check_tensor(k_bits, "k_bits", k_bits, 2, ScalarType::Byte);
  const int64_t heads = k_bits.size(0), blocks = k_bits.size(1);
  for (const auto& [x, name] : {std::pair{&k_bits, "k_bits"}, std::pair{&v_bits, "v_bits"}})
    check_format(*x, name, k_bits, blocks, ScalarType::Byte);
  for (const auto& [x, name] : {std::pair{&k_steps, "k_steps"}, std::pair{&v_steps, "v_steps"},
                                std::pair{&k_sigmas, "k_sigmas"}, std::pair{&v_sigmas, "v_sigmas"}})
    check_format(*x, name, k_bits, 8 * blocks, ScalarType::Float);
  const oscar_coded_format format{static_cast<int32_t>(8 * blocks), static_cast<int32_t>(heads),
                                  k_bits.const_data_ptr<uint8_t>(), v_bits.const_data_ptr<uint8_t>(),
                                  k_steps.const_data_ptr<float>(),  v_steps.const_data_ptr<float>()};
  const auto *const ks = k_sigmas.const_data_ptr<float>(), *const vs = v_sigmas.const_data_ptr<float>();
  oscar_coded_layout layout{.head_dim = format.head_dim, .num_kv_heads = format.num_kv_heads};
  int64_t write_bytes = 0;
  const auto check = [](int status) { check_status(status, "coded_layout", oscar_last_error); };
  if (for_gpu) {
    check(oscar_coded_layout_of(&format, &layout, nullptr));
    check(oscar_coded_pack_table_of(&format, ks, vs, &write_bytes, nullptr));
  }
  const int64_t size = layout.table_bytes + write_bytes + format_bytes(heads, 8 * blocks);
  const Tensor tables = torch::stable::new_empty(k_bits, {size}, ScalarType::Byte);
  auto* to = tables.mutable_data_ptr<uint8_t>();
  if (for_gpu) {
    check(oscar_coded_layout_of(&format, &layout, to));
    check(oscar_coded_pack_table_of(&format, ks, vs, &write_bytes, to + layout.table_bytes));
  }
  to += layout.table_bytes + write_bytes;
  const uint8_t* const of_format = to;
  for (const Tensor* x : {&k_bits, &k_steps, &k_sigmas, &v_bits, &v_steps, &v_sigmas}) {
    const auto bytes = static_cast<std::size_t>(x->numel()) * x->element_size();
    std::memcpy(to, x->const_data_ptr(), bytes), to += bytes;
  }
  layout.token_bytes = layer_of(heads, 8 * blocks, of_format).token_bytes;
  const Tensor numbers = torch::stable::new_empty(k_bits, {kLayoutNumbers}, ScalarType::Long);
  const int64_t values[kLayoutNumbers] = {layout.head_dim,       layout.num_kv_heads, layout.key_operands,
                                          layout.value_operands, layout.planes,       layout.token_bytes,
                                          layout.table_bytes};
  std::memcpy(numbers.mutable_data_ptr<int64_t>(), values, sizeof values);
  return {numbers, tables};
}

oscar_coded_layout layout_of(const Numbers& numbers, const Tensor& tables, const Tensor& like) {
  if (numbers.size() != kLayoutNumbers) fail("layout has ", numbers.size(), " numbers; give what coded_layout made");
  check_tensor(tables, "tables", like, 1, ScalarType::Byte);
  oscar_coded_layout layout{static_cast<int32_t>(numbers[0]),
                            static_cast<int32_t>(numbers[1]),
                            static_cast<int32_t>(numbers[2]),
                            static_cast<int32_t>(numbers[3]),
                            static_cast<int32_t>(numbers[4]),
                            numbers[5],
                            numbers[6],
                            tables.data_ptr()};
  const int64_t behind = tables.numel() - format_bytes(layout.num_kv_heads, layout.head_dim);
  if (!(layout.num_kv_heads > 0 && layout.head_dim > 0 && layout.head_dim % 8 == 0 && layout.table_bytes >= 0 &&
        behind >= layout.table_bytes && (like.is_cpu() || layout.table_bytes > 0)))
    fail("tables has ", tables.numel(), " bytes, and the layout is not theirs; give what coded_layout made");
  return layout;
}

/// Of tables on the CPU.
on_cpu::CodedLayer layer_of(const oscar_coded_layout& layout, const Tensor& tables) {
  const int64_t heads = layout.num_kv_heads, dim = layout.head_dim;
  on_cpu::CodedLayer layer =
      layer_of(heads, dim, tables.const_data_ptr<uint8_t>() + tables.numel() - format_bytes(heads, dim));
  if (layer.token_bytes != layout.token_bytes) fail("layout is not that of these tables; give what coded_layout made");
  return layer;
}

void check_pages(const Tensor& pages, const Tensor& like, const oscar_coded_layout& layout) {
  check_tensor(pages, "pages", like, 3, ScalarType::Byte);
  if (!(pages.size(2) == layout.token_bytes && pages.stride(1) == layout.token_bytes))
    fail("pages must be (pages, page_size, ", layout.token_bytes, ") with dense pages");
}

/// x (tokens, num_kv_heads, head_dim)
oscar_coded_rows side_of(const std::optional<Tensor>& x, const char* name, const Tensor& slots,
                         const oscar_coded_layout& layout) {
  if (!x) return {};
  const oscar_bf16_rows own = target_of(*x, name, slots, layout.num_kv_heads, layout.head_dim);
  return {own.data, own.token_stride, own.head_stride};
}

/// Fills what the arguments of coded_pack and coded_unpack have in common.
template <class Args>
void fill_slots(Args& args, const Tensor& slots, const Tensor& pages, const oscar_coded_layout& layout) {
  check_pages(pages, slots, layout);
  check_slots(slots, pages.size(0) * pages.size(1));
  args.head_dim = layout.head_dim, args.num_kv_heads = layout.num_kv_heads, args.token_bytes = layout.token_bytes;
  args.table = static_cast<const unsigned char*>(layout.table) + layout.table_bytes;
  args.num_tokens = static_cast<int32_t>(slots.size(0)), args.slots = slots.const_data_ptr<int32_t>();
  args.page_size = static_cast<int32_t>(pages.size(1)), args.pages = pages.data_ptr();
  args.page_stride = pages.stride(0);
}

Tensor coded_turn(const Tensor& pairs, const Tensor& frequency, const Tensor& basis, const Tensor& inverse,
                  const std::optional<Tensor>& mean, const std::optional<Tensor>& far_frequency) {
  check_tensor(pairs, "pairs", pairs, 2, ScalarType::Int);
  check_tensor(basis, "basis", pairs, 3, ScalarType::Float);
  const int64_t heads = basis.size(0), dim = basis.size(1);
  if (!(pairs.is_cpu() && pairs.is_contiguous() && 2 * pairs.size(0) == dim && pairs.size(1) == 2))
    fail("pairs is ", shape_of(pairs), ", not a dense [", dim / 2, ", 2] on the CPU");
  const auto data = [&](const Tensor& x, const char* name, int64_t rank, int64_t count) {
    check_tensor(x, name, pairs, rank, ScalarType::Float);
    if (!(x.is_contiguous() && x.numel() == count))
      fail(name, " is ", shape_of(x), ", which does not fit, or not dense");
    return x.const_data_ptr<float>();
  };
  const oscar_coded_turn turn{static_cast<int32_t>(dim),
                              static_cast<int32_t>(heads),
                              pairs.const_data_ptr<int32_t>(),
                              data(frequency, "frequency", 1, dim / 2),
                              far_frequency ? data(*far_frequency, "far_frequency", 1, dim / 2) : nullptr,
                              data(basis, "basis", 3, heads * dim * dim),
                              data(inverse, "inverse", 3, heads * dim * dim),
                              mean ? data(*mean, "mean", 2, heads * dim) : nullptr};
  const std::vector<CodedTurnPair> made = coded_turn_pairs(turn);
  const std::size_t bytes = made.size() * sizeof(CodedTurnPair);
  const Tensor table = torch::stable::new_empty(pairs, {static_cast<int64_t>(bytes)}, ScalarType::Byte);
  std::memcpy(table.mutable_data_ptr<uint8_t>(), made.data(), bytes);
  return table;
}

/// count: of positions.
oscar_coded_turned turned_of(const std::optional<Tensor>& turn, const std::optional<Tensor>& positions, bool is_far,
                             const Tensor& like, int64_t count, const oscar_coded_layout& layout) {
  oscar_coded_turned out{};
  if (turn.has_value() != positions.has_value()) fail("k_turn and k_positions must be given together");
  if (is_far && !turn) fail("k_far is of keys that turn, which need k_turn");
  if (!turn) return out;
  check_tensor(*turn, "k_turn", like, 1, ScalarType::Byte);
  check_tensor(*positions, "k_positions", like, 1, ScalarType::Int);
  const int64_t bytes = layout.num_kv_heads * (layout.head_dim / 2) * int64_t{sizeof(CodedTurnPair)};
  if (!(turn->is_contiguous() && turn->numel() == bytes)) fail("k_turn has ", turn->numel(), " bytes, not ", bytes);
  if (!(positions->is_contiguous() && positions->size(0) == count))
    fail("k_positions has ", positions->size(0), " positions, not ", count, ", or is not dense");
  return {turn->const_data_ptr(), positions->const_data_ptr<int32_t>(), is_far ? 1 : 0, is_far ? 1 : 0, 0};
}

void coded_pack(const Tensor& slots, const Tensor& pages, const Numbers& numbers, const Tensor& tables,
                const std::optional<Tensor>& k, const std::optional<Tensor>& v, const std::optional<Tensor>& k_turn,
                const std::optional<Tensor>& k_positions, bool k_far) {
  check_tensor(slots, "slots", slots, 1, ScalarType::Int);
  const oscar_coded_layout layout = layout_of(numbers, tables, slots);
  oscar_coded_pack_args args{};
  fill_slots(args, slots, pages, layout);
  args.k = side_of(k, "k", slots, layout), args.v = side_of(v, "v", slots, layout);
  args.turned = turned_of(k_turn, k_positions, k_far, slots, slots.size(0), layout);
  if (args.num_tokens == 0) return;
  compute(
      slots, "coded_pack", [&](void* stream) { return oscar_coded_pack(&args, stream); },
      [&] { on_cpu::coded_pack(args, layer_of(layout, tables)); });
}

void coded_unpack(const Tensor& slots, const Tensor& pages, const Numbers& numbers, const Tensor& tables,
                  const std::optional<Tensor>& k, const std::optional<Tensor>& v, const std::optional<Tensor>& k_turn,
                  const std::optional<Tensor>& k_positions, bool k_far, std::optional<bool> k_was_far,
                  int64_t k_moved) {
  check_tensor(slots, "slots", slots, 1, ScalarType::Int);
  const oscar_coded_layout layout = layout_of(numbers, tables, slots);
  oscar_coded_unpack_args args{};
  fill_slots(args, slots, pages, layout);
  if (k) args.k = target_of(*k, "k", slots, layout.num_kv_heads, layout.head_dim);
  if (v) args.v = target_of(*v, "v", slots, layout.num_kv_heads, layout.head_dim);
  args.turned = turned_of(k_turn, k_positions, k_far, slots, slots.size(0), layout);
  if (!k_turn && (k_was_far.value_or(false) || k_moved != 0))
    fail("k_was_far and k_moved are of keys that turn, which need k_turn");
  if (k_moved != static_cast<int32_t>(k_moved)) fail("k_moved is ", k_moved, ", more than a position can be");
  args.turned.was_far = k_was_far.value_or(k_far) ? 1 : 0, args.turned.moved = static_cast<int32_t>(k_moved);
  if (args.num_tokens == 0) return;
  compute(
      slots, "coded_unpack", [&](void* stream) { return oscar_coded_unpack(&args, stream); },
      [&] { on_cpu::coded_unpack(args, layer_of(layout, tables)); });
}

int64_t workspace_bytes(const oscar_coded_decode_args& args) {
  const auto bytes = static_cast<int64_t>(oscar_coded_decode_workspace(&args));
  if (bytes <= 0) fail("coded_decode: ", oscar_last_error());
  return bytes;
}

/// All but outputs and workspace.
oscar_coded_decode_args decode_of(const Tensor& q, const Tensor& pages, const Numbers& numbers, const Tensor& tables,
                                  const Tensor& page_table, const Tensor& lengths, const Tensor& k_window,
                                  const Tensor& v_window, const Tensor& window_pages, const Tensor& window_lengths,
                                  std::optional<double> softmax_scale, double soft_cap, int64_t split_batch,
                                  const std::optional<Tensor>& k_turn, const std::optional<Tensor>& k_positions,
                                  bool k_far) {
  check_tensor(q, "q", q, q.dim() == 4 ? 4 : 3, ScalarType::BFloat16);
  if (!q.is_contiguous()) fail("q is not contiguous");
  oscar_coded_decode_args args{};
  args.layout = layout_of(numbers, tables, q);
  const int64_t heads = args.layout.num_kv_heads, dim = args.layout.head_dim;
  if (q.size(-1) != dim) fail("q has ", q.size(-1), " channels a head, not ", dim);
  check_pages(pages, q, args.layout);
  check_tensor(k_window, "k_window", q, 4, ScalarType::BFloat16);
  check_tensor(v_window, "v_window", q, 4, ScalarType::BFloat16);
  if (!(k_window.size(3) == dim && v_window.size(3) == dim)) fail("rows of the window are not ", dim, " wide");
  if (!(k_window.size(0) == v_window.size(0) && k_window.size(1) == v_window.size(1)))
    fail("k_window is ", shape_of(k_window), ", and v_window ", shape_of(v_window));
  args.query_tokens = q.dim() == 4 ? static_cast<int32_t>(q.size(1)) : 1;
  args.batch = static_cast<int32_t>(q.size(0)), args.num_q_heads = static_cast<int32_t>(q.size(-2));
  args.softmax_scale = static_cast<float>(softmax_scale.value_or(1 / std::sqrt(static_cast<double>(dim))));
  args.soft_cap = static_cast<float>(soft_cap);
  args.split_batch = static_cast<int32_t>(split_batch), args.q = q.data_ptr();
  args.pages = pages.data_ptr(), args.page_stride = pages.stride(0);
  args.history = table_of(page_table, "page_table", lengths, q, pages);
  args.k_window = rows_of(k_window, "k_window", heads), args.v_window = rows_of(v_window, "v_window", heads);
  args.window = table_of(window_pages, "window_pages", window_lengths, q, k_window);
  args.turned = turned_of(k_turn, k_positions, k_far, q, q.size(0), args.layout);
  return args;
}

[[maybe_unused]] int64_t coded_decode_workspace(const Tensor& q, const Tensor& pages, const Numbers& numbers,
                                                const Tensor& tables, const Tensor& page_table, const Tensor& lengths,
                                                const Tensor& k_window, const Tensor& v_window,
                                                const Tensor& window_pages, const Tensor& window_lengths,
                                                std::optional<double> softmax_scale, double soft_cap,
                                                int64_t split_batch, const std::optional<Tensor>& k_turn,
                                                const std::optional<Tensor>& k_positions, bool k_far) {
  const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
  return workspace_bytes(decode_of(q, pages, numbers, tables, page_table, lengths, k_window, v_window, window_pages,
                                   window_lengths, softmax_scale, soft_cap, split_batch, k_turn, k_positions, k_far));
}

/// out float32 of q's shape, lse float32 without the last dimension. workspace: bytes that were zeroed once, reused by
/// every call of one stream; without it each call allocates its own, and on the CPU there is none.
std::tuple<Tensor, Tensor> coded_decode(const Tensor& q, const Tensor& pages, const Numbers& numbers,
                                        const Tensor& tables, const Tensor& page_table, const Tensor& lengths,
                                        const Tensor& k_window, const Tensor& v_window, const Tensor& window_pages,
                                        const Tensor& window_lengths, std::optional<double> softmax_scale,
                                        double soft_cap, int64_t split_batch, const std::optional<Tensor>& workspace,
                                        const std::optional<Tensor>& k_turn, const std::optional<Tensor>& k_positions,
                                        bool k_far) {
  oscar_coded_decode_args args =
      decode_of(q, pages, numbers, tables, page_table, lengths, k_window, v_window, window_pages, window_lengths,
                softmax_scale, soft_cap, split_batch, k_turn, k_positions, k_far);
  const auto sizes = q.sizes();
  const Tensor out = torch::stable::new_empty(q, sizes, ScalarType::Float);
  const Tensor lse = torch::stable::new_empty(q, {sizes.data(), sizes.size() - 1}, ScalarType::Float);
  if (args.batch == 0) return {out, lse};
  args.out = out.mutable_data_ptr<float>(), args.lse = lse.mutable_data_ptr<float>();
  std::optional<Tensor> space = workspace;
  const auto on_gpu = [&](void* stream) {
    if (!space) space = torch::stable::new_zeros(q, {workspace_bytes(args)}, ScalarType::Byte);
    check_tensor(*space, "workspace", q, 1, ScalarType::Byte);
    args.workspace = space->data_ptr(), args.workspace_bytes = static_cast<std::size_t>(space->numel());
    return oscar_coded_decode(&args, stream);
  };
  compute(q, "coded_decode", on_gpu, [&] { on_cpu::coded_decode(args, layer_of(args.layout, tables)); });
  return {out, lse};
}

/// Float32 of the shape of x; sizes that torch.compile has no numbers for stay symbols, since torch alone reads them.
Tensor empty_float_like(const Tensor& x) {
  using torch::stable::detail::from;
  StableIValue stack[] = {from(x),
                          from(std::optional(ScalarType::Float)),
                          from(std::nullopt),
                          from(std::nullopt),
                          from(std::nullopt),
                          from(std::optional(torch::headeronly::MemoryFormat::Contiguous))};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::empty_like", "", stack, TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

std::tuple<Tensor, Tensor> coded_decode_shapes(const Tensor& q, const Tensor&, const Numbers&, const Tensor&,
                                               const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                               const Tensor&, const Tensor&, std::optional<double>, double, int64_t,
                                               const std::optional<Tensor>&, const std::optional<Tensor>&,
                                               const std::optional<Tensor>&, bool) {
  return {empty_float_like(q), empty_float_like(torch::stable::select(q, -1, 0))};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(oscar, library) {
  library.def(
      "coded_layout(Tensor k_bits, Tensor v_bits, Tensor k_steps, Tensor v_steps, Tensor k_sigmas, Tensor v_sigmas, *, "
      "bool for_gpu=True) -> (Tensor layout, Tensor tables)");
  library.def(
      "coded_turn(Tensor pairs, Tensor frequency, Tensor basis, Tensor inverse, *, Tensor? mean=None, "
      "Tensor? far_frequency=None) -> Tensor");
  library.def(
      "coded_pack(Tensor slots, Tensor(a!) pages, int[] layout, Tensor tables, *, Tensor? k=None, Tensor? v=None, "
      "Tensor? k_turn=None, Tensor? k_positions=None, bool k_far=False) -> ()");
  library.def(
      "coded_unpack(Tensor slots, Tensor pages, int[] layout, Tensor tables, *, Tensor(a!)? k=None, "
      "Tensor(b!)? v=None, Tensor? k_turn=None, Tensor? k_positions=None, bool k_far=False, bool? k_was_far=None, "
      "int k_moved=0) -> ()");
  library.def(
      "coded_decode(Tensor q, Tensor pages, int[] layout, Tensor tables, Tensor page_table, Tensor lengths, "
      "Tensor k_window, Tensor v_window, Tensor window_pages, Tensor window_lengths, *, "
      "float? softmax_scale=None, float soft_cap=0.0, int split_batch=0, Tensor(a!)? workspace=None, Tensor? "
      "k_turn=None, "
      "Tensor? k_positions=None, bool k_far=False) -> (Tensor out, Tensor lse)");
  library.def(
      "coded_decode_workspace(Tensor q, Tensor pages, int[] layout, Tensor tables, Tensor page_table, Tensor lengths, "
      "Tensor k_window, Tensor v_window, Tensor window_pages, Tensor window_lengths, *, "
      "float? softmax_scale=None, float soft_cap=0.0, int split_batch=0, Tensor? k_turn=None, Tensor? "
      "k_positions=None, "
      "bool k_far=False) -> int");
}

STABLE_TORCH_LIBRARY_IMPL(oscar, Meta, library) {
  library.impl("coded_decode", TORCH_BOX(&coded_decode_shapes));
  library.impl("coded_pack", TORCH_BOX(&Nothing<&coded_pack>::run));
  library.impl("coded_unpack", TORCH_BOX(&Nothing<&coded_unpack>::run));
}

STABLE_TORCH_LIBRARY_IMPL(oscar, CPU, library) {
  library.impl("coded_layout", TORCH_BOX(&coded_layout));
  library.impl("coded_turn", TORCH_BOX(&coded_turn));
  library.impl("coded_decode", TORCH_BOX(&coded_decode));
  library.impl("coded_pack", TORCH_BOX(&coded_pack));
  library.impl("coded_unpack", TORCH_BOX(&coded_unpack));
}

#ifdef OSCAR_HAS_CUDA
STABLE_TORCH_LIBRARY_IMPL(oscar, CUDA, library) {
  library.impl("coded_decode", TORCH_BOX(&coded_decode));
  library.impl("coded_decode_workspace", TORCH_BOX(&coded_decode_workspace));
  library.impl("coded_pack", TORCH_BOX(&coded_pack));
  library.impl("coded_unpack", TORCH_BOX(&coded_unpack));
}
#endif

}  // namespace oscar::operators
