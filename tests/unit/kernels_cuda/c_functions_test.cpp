// SPDX-License-Identifier: MIT
// What the plug-in's C functions refuse, and how they say why. No arguments get as far as a GPU, so pointers lead
// nowhere. What the functions compute is tested through torch's operators, which call them: tests/conformance.
#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/plugin.hpp"
#include "oscar/coded_pack.h"
#include "support/support.hpp"

namespace oscar {
namespace {

template <class Function>
Function* function_named(const char* name) {
  return reinterpret_cast<Function*>(plugin_symbol("cuda", name));
}
#define C_FUNCTION(name) function_named<decltype(name)>(#name)

/// Somewhere on a device, aligned to 16 bytes.
template <class T = std::int32_t>
T* somewhere() {
  return reinterpret_cast<T*>(4096);
}

/// Checks that arguments are refused, and says why.
template <class Args>
void check_refused(int (*function)(const Args*, void*), const Args& args, const char* reason) {
  CHECK(function(&args, nullptr) == cudaErrorInvalidValue);
  const std::string said = C_FUNCTION(oscar_last_error)();
  CHECK_MESSAGE(said.find(reason) != std::string::npos, said);
}

}  // namespace

TEST_CASE("coded_decode refuses what it cannot do, and says why") {
  const std::vector<std::uint8_t> bits(16, 2);
  const std::vector<float> steps(128, 1);
  oscar_coded_decode_args good{};  // three sequences of eight query heads
  good.batch = 3, good.num_q_heads = 8, good.query_tokens = 1, good.softmax_scale = 0.1F, good.q = somewhere();
  good.history = good.window = {somewhere(), somewhere(), 4, 16, 40};
  good.k_window = good.v_window = {somewhere(), 4096, 256, 1024};
  good.out = good.lse = somewhere<float>(), good.workspace = somewhere();
  const oscar_coded_format format{64, 2, bits.data(), bits.data(), steps.data(), steps.data()};
  CHECK(C_FUNCTION(oscar_coded_layout_of)(&format, &good.layout, nullptr) == 0);
  CHECK(good.layout.token_bytes == 2 * (8 * (2 + 2) + 4));
  good.layout.table = good.pages = somewhere(), good.page_stride = 16 * good.layout.token_bytes;
  good.workspace_bytes = C_FUNCTION(oscar_coded_decode_workspace)(&good);
  CHECK(good.workspace_bytes > 0);
  const auto refused = [&](const auto& spoil, const char* reason) {
    oscar_coded_decode_args args = good;
    spoil(args);
    check_refused(C_FUNCTION(oscar_coded_decode), args, reason);
  };
  refused([](auto& a) { a.batch = 0; }, "batch and heads");
  refused([](auto& a) { a.num_q_heads = 7; }, "a multiple of num_kv_heads");
  refused([](auto& a) { a.num_q_heads = 34; }, "1 to 16 query heads");
  refused([](auto& a) { a.split_batch = -1; }, "split_batch must not");
  refused([](auto& a) { a.layout.head_dim = 96; }, "head_dim must be");
  refused([](auto& a) { a.softmax_scale = 0; }, "softmax_scale");
  refused([](auto& a) { a.soft_cap = -1; }, "soft_cap");
  refused([](auto& a) { a.layout.key_operands = -1; }, "layout must be what");
  refused([](auto& a) { a.layout.value_operands = -1; }, "layout must be what");
  refused([](auto& a) { a.layout.planes = -1; }, "layout must be what");
  refused([](auto& a) { a.layout.planes = 9; }, "layout must be what");
  refused([](auto& a) { a.k_window.data = nullptr; }, "k_window and v_window must not be null");
  refused([](auto& a) { a.v_window.data = nullptr; }, "k_window and v_window must not be null");
  refused([](auto& a) { a.pages = nullptr; }, "pages and q must not be null");
  refused([](auto& a) { a.k_window.page_stride = std::int64_t{1} << 31; }, "strides");
  refused([](auto& a) { a.v_window.token_stride += 8; }, "must be aligned");
  refused([](auto& a) { a.history.page_size = 48; }, "page_size");
  refused([](auto& a) { a.history.max_length = 10000; }, "pages_per_sequence");
  refused([](auto& a) { a.window.page_size = 512; }, "page_size");
  refused([](auto& a) { a.window.lengths = nullptr; }, "lengths and pages");
  refused([](auto& a) { a.out = nullptr; }, "out must not be null");
  refused([](auto& a) { a.history.page_size = 2, a.history.pages_per_sequence = 1000; }, "must be 4 or more");
  refused([](auto& a) { a.page_stride = 8; }, "page_stride must be a multiple of 16");
  refused([](auto& a) { a.layout.table = nullptr; }, "layout.table must be device memory");
  refused([](auto& a) { a.workspace_bytes -= 1; }, "the workspace must have");
  refused([](auto& a) { a.workspace = static_cast<char*>(a.workspace) + 8; }, "16-byte aligned");
  refused([](auto& a) { a.query_tokens = 0; }, "query_tokens must be 1 to 8");
  refused([](auto& a) { a.query_tokens = 9; }, "query_tokens must be 1 to 8");
  for (auto oscar_coded_turned::*const member : {&oscar_coded_turned::moved, &oscar_coded_turned::was_far}) {
    refused([&](auto& a) { a.turned = {somewhere(), somewhere()}, a.turned.*member = 1; }, "only oscar_coded_unpack()");
  }
  good.history.max_length = good.window.max_length = 0;  // what is not read need not be there
  good.pages = good.k_window.data = good.v_window.data = nullptr;
  CHECK(C_FUNCTION(oscar_coded_decode_workspace)(&good) > 0);
}

TEST_CASE("coded_unpack refuses keys that turn without positions, without room for keys, or beyond near and far") {
  oscar_coded_unpack_args good{.head_dim = 64, .num_kv_heads = 2, .token_bytes = 72, .table = somewhere()};
  good.num_tokens = 1, good.slots = somewhere(), good.page_size = 16, good.pages = somewhere(), good.page_stride = 1152;
  good.k = good.v = {somewhere(), 256, 128};
  good.turned = {somewhere(), somewhere(), 1, 1, 0};
  const auto refused = [&](const auto& spoil, const char* reason) {
    oscar_coded_unpack_args args = good;
    spoil(args);
    check_refused(C_FUNCTION(oscar_coded_unpack), args, reason);
  };
  refused([](auto& a) { a.turned.positions = nullptr; }, "need positions");
  refused([](auto& a) { a.k.data = nullptr; }, "keys turn, and there are none");
  refused([](auto& a) { a.turned.is_far = 2; }, "is_far and was_far must be 0 or 1");
  refused([](auto& a) { a.turned.was_far = 2; }, "is_far and was_far must be 0 or 1");
  refused([](auto& a) { a.turned.table = nullptr; }, "need turned.table");
}

}  // namespace oscar
