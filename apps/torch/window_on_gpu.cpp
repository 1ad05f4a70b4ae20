// SPDX-License-Identifier: MIT
// torch.ops.oscar.window_step (window_ops.cpp) of CUDA tensors, in torch's current stream. Errors: RuntimeError with
// the tensor's name.
#include "gpu.hpp"
#include "gpu_tensors.hpp"
#include "kernels/window_step.hpp"

namespace oscar::operators {
namespace {

using torch::stable::accelerator::DeviceGuard;

/// The dense numbers of x, of which there must be so many.
template <class T>
T* numbers_of(const Tensor& x, const char* name, const Tensor& like, int64_t count) {
  check_tensor(x, name, like, x.dim() == 2 ? 2 : 1, sizeof(T) == 8 ? ScalarType::Long : ScalarType::Int);
  if (!(x.is_contiguous() && x.numel() == count)) fail(name, " is ", shape_of(x), ", not ", count, " dense numbers");
  return static_cast<T*>(x.data_ptr());
}

void window_step(const Tensor& table, const Tensor& starts, const Tensor& lengths, const Tensor& written,
                 const Tensor& entry_of, const Tensor& block_of, const Tensor& read_in, const Tensor& room,
                 const Tensor& slots, const Tensor& kept, const Tensor& pages, const Tensor& history,
                 const Tensor& copies, const Tensor& copy_lengths, int64_t block_size, int64_t sink, int64_t recent,
                 int64_t step) {
  const DeviceGuard guard(table.get_device_index());
  check_tensor(table, "table", table, 2, ScalarType::Int);
  check_tensor(pages, "pages", table, 2, ScalarType::Int), check_tensor(copies, "copies", table, 2, ScalarType::Int);
  const int64_t requests = table.size(0), tokens = written.numel(), rows = pages.size(0);
  const int64_t blocks = entry_of.numel() - 1, entries = block_of.numel() - 1;
  WindowStepCall call{};
  call.block_size = static_cast<int>(block_size), call.sink = static_cast<int>(sink);
  call.recent = static_cast<int>(recent), call.step = step;
  call.new_tokens = static_cast<int>(copies.size(1) - (sink + recent - 1));
  if (!(block_size > 0 && sink >= 0 && recent > 0 && call.new_tokens > 0))
    fail("copies has ", copies.size(1), " tokens, with a window of ", sink, " + ", recent);
  if (!(requests > 0 && rows > 0 && rows % requests == 0 && rows < 65535))
    fail("pages has ", rows, " rows for ", requests, " requests");
  if (!(pages.size(1) > 0 && pages.size(1) <= table.size(1)))
    fail("pages is ", shape_of(pages), ", and the table ", shape_of(table));
  if (entries >= 1 << 24) fail(entries, " entries are too many");
  call.blocks = static_cast<int>(blocks), call.entries = static_cast<int>(entries);
  call.requests = static_cast<int>(requests), call.all_tokens = static_cast<int>(tokens);
  call.rows_of_request = static_cast<int>(rows / requests);
  call.table = table.const_data_ptr<int32_t>(), call.table_stride = table.stride(0);
  call.table_width = static_cast<int>(table.size(1)), call.page_width = static_cast<int>(pages.size(1));
  call.starts = numbers_of<int32_t>(starts, "starts", table, requests + 1);
  call.lengths = numbers_of<int32_t>(lengths, "lengths", table, requests);
  call.written = numbers_of<int64_t>(written, "written", table, tokens);
  call.entry_of = numbers_of<int64_t>(entry_of, "entry_of", table, blocks + 1);
  call.block_of = numbers_of<int64_t>(block_of, "block_of", table, entries + 1);
  call.read_in = numbers_of<int64_t>(read_in, "read_in", table, entries + 1);
  call.room = numbers_of<int64_t>(room, "room", table, blocks + 1);
  call.slots = numbers_of<int32_t>(slots, "slots", table, tokens);
  call.kept = numbers_of<int32_t>(kept, "kept", table, tokens);
  call.pages = numbers_of<int32_t>(pages, "pages", table, rows * pages.size(1));
  call.history = numbers_of<int32_t>(history, "history", table, rows);
  call.copies = numbers_of<int32_t>(copies, "copies", table, rows * copies.size(1));
  call.copy_lengths = numbers_of<int32_t>(copy_lengths, "copy_lengths", table, rows);
  check_status(step_windows(call, current_stream(table)), "window_step");
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(oscar, CUDA, library) { library.impl("window_step", TORCH_BOX(&window_step)); }

}  // namespace oscar::operators
