// SPDX-License-Identifier: MIT
// What the C functions of servers refuse on the host, where neither a GPU nor CUDA is needed.
#include "kernels/server_arguments.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "oscar/coded_pack.h"

namespace oscar::cuda {

TEST_CASE("soft caps that float32 cannot compute with are refused") {
  oscar_coded_decode_args args{.layout = {.num_kv_heads = 2}, .batch = 3, .num_q_heads = 8, .query_tokens = 1};
  args.softmax_scale = 0.1F;
  const auto refuses = [&](float cap) {
    args.soft_cap = cap;
    return batch_problem(args) != nullptr;
  };
  for (const float cap : {0.0F, 0x1p-10F, 30.0F, 0x1p14F}) CHECK(!refuses(cap));
  for (const float cap : {-30.0F, 0x1p-11F, 1e-40F, 0x1p15F, 1.2e38F, INFINITY, NAN}) CHECK(refuses(cap));
}

TEST_CASE("sequences of more than 2^30 tokens are refused") {
  const std::int32_t zero = 0;
  oscar_page_table table{&zero, &zero, 1 << 26, 16, 1 << 30};
  CHECK(table_problem(table) == nullptr);
  table.pages_per_sequence *= 2, table.max_length += 1;
  CHECK(table_problem(table) != nullptr);
}

TEST_CASE("a coded format without bits or steps, or with wrong ones, is refused") {
  std::vector<std::uint8_t> bits(8, 2);
  std::vector<float> steps(64, 1);
  const oscar_coded_format good{64, 1, bits.data(), bits.data(), steps.data(), steps.data()};
  oscar_coded_layout layout;
  std::int64_t bytes = 0;
  const auto refused = [&](const oscar_coded_format& format, const char* why) {
    for (const bool pack : {false, true}) {
      CHECK((pack ? oscar_coded_pack_table_of(&format, steps.data(), steps.data(), &bytes, nullptr)
                  : oscar_coded_layout_of(&format, &layout, nullptr)) == kRefused);
      const std::string said = oscar_last_error();
      CHECK_MESSAGE(said.find(why) != std::string::npos, said);
    }
  };
  CHECK(oscar_coded_layout_of(&good, &layout, nullptr) == 0);
  CHECK(layout.planes == 2);
  for (const auto bits_of : {&oscar_coded_format::k_bits, &oscar_coded_format::v_bits}) {
    oscar_coded_format format = good;
    format.*bits_of = nullptr, refused(format, "must not be null");
  }
  for (const auto steps_of : {&oscar_coded_format::k_steps, &oscar_coded_format::v_steps}) {
    oscar_coded_format format = good;
    format.*steps_of = nullptr, refused(format, "must not be null");
  }
  bits[7] = 3, refused(good, "must not increase");
  bits[0] = bits[7] = 9, refused(good, "0 to 8 bits");
  bits.assign(8, 2), steps[5] = 0, refused(good, "steps must be positive");
}

}  // namespace oscar::cuda
