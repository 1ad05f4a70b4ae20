// SPDX-License-Identifier: MIT
// Held sequences.
#include <algorithm>
#include <cmath>

#include "unit/kernels/agreement.hpp"

namespace oscar::test {
namespace {

double relative(double got, double expected) {
  return expected == 0 ? std::abs(got) : std::abs(got - expected) / std::abs(expected);
}

/// The largest relative difference of a sum.
double largest_error(const AttentionErrors& got, const AttentionErrors& expected) {
  double worst = 0;
  for (const auto member :
       {&AttentionErrors::softmax_kl, &AttentionErrors::output_error, &AttentionErrors::output_norm,
        &AttentionErrors::output_cosine, &AttentionErrors::logit_error, &AttentionErrors::logit_norm,
        &AttentionErrors::needle_mass, &AttentionErrors::needle_kept}) {
    worst = std::max(worst, relative(got.*member, expected.*member));
  }
  return worst;
}

}  // namespace

void check_attend(const Pair& on, const Sequence& s, Precision precision, bool rotated,
                  const std::vector<Windows>& all_windows) {
  const bool serving = precision == Precision::kServing;
  const auto reference = on.expected.hold(s.input(precision, rotated)), held = on.got.hold(s.input(precision, rotated));
  for (const Windows& windows : all_windows) {
    for (const HistoryCodecs& codecs : codecs_for(s)) {
      std::vector<float> expected(s.out_size());
      Guarded<float> got(expected.size());
      reference->attend(codecs, windows, expected);
      held->attend(codecs, windows, got.get());
      CHECK(got.intact());
      CHECK((!serving || rotated || all_bf16(got.get())));
      // An output may fall to the other side of a tie: one bfloat16 unit of the largest is 2^-7 of it at most.
      check_error((serving ? "attend, serving" : "attend") + on.name, s.shape,
                  largest_difference(got.get(), expected) / largest_magnitude(expected),
                  serving ? std::ldexp(1.0, -7) : on.allowed.attend);
    }
  }
}

void check_compare(const Agreement& allowed, const Sequence& s, const std::vector<std::vector<AttentionErrors>>& got,
                   const std::vector<std::vector<AttentionErrors>>& expected) {
  REQUIRE(got.size() == expected.size());
  double worst = 0, worst_query = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    REQUIRE(got[i].size() == expected[i].size());
    for (std::size_t head = 0; head < got[i].size(); ++head) {
      CHECK(got[i][head].queries == expected[i][head].queries);
      REQUIRE(got[i][head].query_kl.size() == expected[i][head].query_kl.size());
      worst = std::max(worst, largest_error(got[i][head], expected[i][head]));
      worst_query = std::max(worst_query, largest_difference(got[i][head].query_kl, expected[i][head].query_kl));
    }
  }
  check_error("compare", s.shape, worst, allowed.compare);
  check_error("compare, KL of a query", s.shape, worst_query, allowed.compare);
}

void check_compare(const Pair& on, const Sequence& s, Precision precision, const std::vector<Windows>& all_windows) {
  const bool rotated = s.decoded_k.shape.empty();
  const auto reference = on.expected.hold(s.input(precision, rotated)), held = on.got.hold(s.input(precision, rotated));
  for (const Windows& windows : all_windows) {
    const std::vector<HistoryCodecs> codecs = codecs_for(s);
    check_compare(on.allowed, s, held->compare(codecs, windows), reference->compare(codecs, windows));
  }
}

void check_row_errors(const Pair& on, const Sequence& s, bool rotated, Windows windows) {
  const SequenceInput input = s.input(Precision::kServing, rotated);
  const auto reference = on.expected.hold(input), held = on.got.hold(input);
  for (const HistoryCodecs& codecs : codecs_for(s)) {
    const std::vector<RowErrors> expected = reference->row_errors(codecs, windows);
    const std::vector<RowErrors> got = held->row_errors(codecs, windows);
    REQUIRE(got.size() == expected.size());
    double worst = 0;
    for (const auto member :
         {&RowErrors::key_signal, &RowErrors::key_noise, &RowErrors::value_signal, &RowErrors::value_noise}) {
      for (std::size_t h = 0; h < got.size(); ++h) {
        worst = std::max(worst, relative(got[h].*member, expected[h].*member));
      }
    }
    check_error("row_errors" + on.name, s.shape, worst, on.allowed.row_errors);
  }
}

}  // namespace oscar::test
