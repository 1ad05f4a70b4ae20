// SPDX-License-Identifier: MIT
// What a build without CUDA has in place of the kernels. No operator is registered for CUDA tensors there, so that of
// these coded_layout alone is asked, for tables of kernels.
#include "kernels/server_arguments.hpp"
#include "kernels/window_step.hpp"
#include "oscar/coded_pack.h"
#include "oscar/rotate_rows.h"
#include "stable_torch.hpp"

namespace {
int without_cuda() { return oscar::cuda::refuse("liboscar_torch.so was built without CUDA"); }
}  // namespace

extern "C" {
int oscar_coded_layout_of(const oscar_coded_format*, oscar_coded_layout*, void*) { return without_cuda(); }
int oscar_coded_pack_table_of(const oscar_coded_format*, const float*, const float*, int64_t*, void*) {
  return without_cuda();
}
std::size_t oscar_coded_decode_workspace(const oscar_coded_decode_args*) { return 0; }
int oscar_coded_decode(const oscar_coded_decode_args*, void*) { return without_cuda(); }
int oscar_coded_pack(const oscar_coded_pack_args*, void*) { return without_cuda(); }
int oscar_coded_unpack(const oscar_coded_unpack_args*, void*) { return without_cuda(); }
int oscar_rotate_rows(const oscar_row_product*, int32_t, int32_t, void*) { return without_cuda(); }
}

namespace oscar {

int step_windows(const WindowStepCall&, void*) { return without_cuda(); }

namespace operators {

void* current_stream(const Tensor&) { return nullptr; }

void check_status(int status, const char* name, const char* (*)()) {
  if (status != 0) fail(name, ": ", oscar_last_error());
}

}  // namespace operators
}  // namespace oscar
