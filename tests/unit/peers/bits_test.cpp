// SPDX-License-Identifier: MIT
// Bits per element against published figures, for 8 KV heads of 128.
#include "rows.hpp"

namespace oscar {
namespace {

double mean_bits(const SequenceMethod& method, double parameter_bits) {
  const KvShape shape{128, 8};
  const StoredBits key = method.key.bits(shape), value = method.value.bits(shape);
  return (key.codes + value.codes + (key.parameters + value.parameters) * parameter_bits) / 2;
}

struct BitsRow {
  std::string method;
  double fp16, fp32;
};

}  // namespace

TEST_CASE("bits per element") {
  const double kNorm = 32.0 / 1024;
  const std::vector<BitsRow> table{{"naive_sym", 2.125, 2.25},
                                   {"naive_midrise", 2.125, 2.25},
                                   {"quarot", 2 + 18.0 / 128, 2 + 34.0 / 128},
                                   {"quarot_clip", 2 + 18.0 / 128, 2 + 34.0 / 128},
                                   {"turboquant_mse2", 2.125, 2.25},
                                   {"turboquant_mse3", 3.125, 3.25},
                                   {"turboquant_mse4", 4.125, 4.25},
                                   {"turboquant_k3v3", 3.1875, 3.375},
                                   {"turboquant_k3v3_mp", 3.1875, 3.375},
                                   {"turboquant_k3v4", 3.6875, 3.875},
                                   {"turboquant_4bit", 4.1875, 4.375},
                                   {"turboquant_k8v4", 6.125, 6.25},
                                   {"kivi_g32", 3, 4},
                                   {"kivi_g128", 2.25, 2.5},
                                   {"kitty", 2.375 + 0.03125, 2.625 + 0.03125},
                                   {"kitty_pro", 2.5 + 0.03125, 2.75 + 0.03125},
                                   {"rotatekv", 2.25, 2.5},
                                   {"occam", 3 + kNorm / 2, 4 + kNorm / 2},
                                   {"quarot_kivi", 3, 4},
                                   {"optr_centred", 2.25, 2.5},
                                   {"kvquant_nuq2", 2.32 + 16.0 / 1024, 2.32 + 32.0 / 1024},
                                   {"skvq", 2.125, 2.125},
                                   {"q8_0", 8.5, 8.5},
                                   {"q8_0_rot", 8.5, 8.5},
                                   {"q5_1", 6, 6},
                                   {"q5_1_rot", 6, 6},
                                   {"q5_0", 5.5, 5.5},
                                   {"q5_0_rot", 5.5, 5.5},
                                   {"q4_1", 5, 5},
                                   {"q4_1_rot", 5, 5},
                                   {"q4_0", 4.5, 4.5},
                                   {"q4_0_rot", 4.5, 4.5},
                                   {"fp8", 8, 8},
                                   {"fp8_token", 8.125, 8.25},
                                   {"nvfp4", 4.5, 4.5},
                                   {"mxfp4", 4.5, 4.5},
                                   {"lloyd_max", 2.25, 2.5},
                                   {"lloyd_max_q2_0", 3, 3}};
  for (const BitsRow& row : table) {
    CAPTURE(row.method);
    CHECK(mean_bits(test::method_named(row.method), 16) == doctest::Approx(row.fp16).epsilon(1e-9));
    CHECK(mean_bits(test::method_named(row.method), 32) == doctest::Approx(row.fp32).epsilon(1e-9));
  }
  CHECK(table.size() == sequence_methods().size());
}

TEST_CASE("a group that does not divide a head costs what it starts") {
  const StoredBits bits = test::method_named("kivi_g128").value.bits({96, 4});
  CHECK(bits.parameters == 2.0 / 96);
  CHECK(test::method_named("kivi_g32").value.bits({80, 4}).parameters == doctest::Approx(2 * 3.0 / 80));
}

TEST_CASE("names are unique and say what stands in") {
  for (const SequenceMethod& method : sequence_methods()) CHECK(find_sequence_method(method.name) == &method);
  CHECK(find_sequence_method("best") == nullptr);
  // These want calibration text, which a dump lacks.
  for (const char* name : {"nvfp4", "kvquant_nuq2", "optr_centred", "rotatekv", "skvq"}) {
    CHECK_MESSAGE(test::method_named(name).summary.find("the history itself") != std::string::npos, name);
  }
}

}  // namespace oscar
