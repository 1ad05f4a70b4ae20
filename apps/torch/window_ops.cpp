// SPDX-License-Identifier: MIT
// torch.ops.oscar.window_step: which blocks of a server's paged cache have exact copies in a step, and what attention
// is told of it (oscar_kv/window_blocks.py, kernels/window_step.hpp). Here its schema, in every build;
// window_on_gpu.cpp computes. int32 are
//   table (requests, any), starts (requests + 1), lengths (requests): what the server says of the step
//   slots, kept (tokens); pages (rows, any), history (rows), copies (rows, any), copy_lengths (rows): to be written
// and int64, of the blocks of the cache and of the entries that copies have:
//   written (tokens), entry_of (blocks + 1), block_of and read_in (entries + 1), room (blocks + 1)
#include "stable_torch.hpp"

namespace oscar::operators {
namespace {

void window_step_shapes(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                        const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                        const Tensor&, const Tensor&, int64_t, int64_t, int64_t, int64_t) {}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(oscar, library) {
  library.def(
      "window_step(Tensor table, Tensor starts, Tensor lengths, Tensor written, Tensor(a!) entry_of, "
      "Tensor(b!) block_of, Tensor(c!) read_in, Tensor(d!) room, Tensor(e!) slots, Tensor(f!) kept, Tensor(g!) pages, "
      "Tensor(h!) history, Tensor(i!) copies, Tensor(j!) copy_lengths, int block_size, int sink, int recent, int step) "
      "-> ()");
}

STABLE_TORCH_LIBRARY_IMPL(oscar, Meta, library) { library.impl("window_step", TORCH_BOX(&window_step_shapes)); }

}  // namespace oscar::operators
