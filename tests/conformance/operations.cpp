// SPDX-License-Identifier: MIT
#include "conformance/operations.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace oscar::test {
namespace {

constexpr int kHeads = 6;

double relative(double got, double expected) {
  return expected == 0 ? std::abs(got) : std::abs(got - expected) / std::abs(expected);
}

double distance(const Part& got, const Part& expected) {
  const std::vector<double>&a = got.values, &b = expected.values;
  if (a.size() != b.size() || got.by != expected.by) return INFINITY;
  double worst = 0, error = 0, norm = 0;
  const auto take = [&](double x) { worst = x <= worst ? worst : std::isnan(x) ? INFINITY : x; };
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    switch (got.by) {
      case Nearness::kBits:
        worst += std::memcmp(&a[i], &b[i], sizeof a[i]) == 0 ? 0 : 1;
        break;
      case Nearness::kNorm:
        error += difference * difference, norm += b[i] * b[i];
        break;
      case Nearness::kLargest:
        take(difference), norm = std::max(norm, std::abs(b[i]));
        break;
      case Nearness::kEach:
        take(relative(a[i], b[i]));
        break;
      case Nearness::kAbsolute:
        take(difference);
        break;
      case Nearness::kResidual:
        take(a[i]);
    }
  }
  if (got.by == Nearness::kNorm && error != 0) take(std::sqrt(error / norm));
  return got.by == Nearness::kLargest ? worst / std::max(norm, 1e-300) : worst;
}

template <class T>
Part part(Nearness by, const T& values) {
  return {by, {values.begin(), values.end()}};
}

/// What was added to sums that began at `start`, matrix by matrix.
void add_sums(const MatrixStack& sums, const MatrixStack& start, Parts& parts) {
  for (int m = 0; m < sums.count; ++m) {
    Part& own = parts.emplace_back(part(Nearness::kNorm, sums[m]));
    for (std::size_t i = 0; i < own.values.size(); ++i) own.values[i] -= start[m][i];
  }
}

/// All rows at once, or in several calls' worth of parts.
std::vector<HeadsView> parts_of(const Tensor& x, bool several) {
  const HeadsView whole = heads_view(x, "x");
  if (!several || whole.num_tokens < 3) return {whole};
  return {whole.tokens(0, 1), whole.tokens(1, whole.num_tokens * 2 / 3),
          whole.tokens(whole.num_tokens * 2 / 3, whole.num_tokens)};
}

}  // namespace

void Pair::check(const std::string& what, const Shape& shape, const std::function<Parts(Backend&)>& run) const {
  const Parts wanted = run(expected), found = run(got);
  REQUIRE(found.size() == wanted.size());
  double worst = 0;
  for (std::size_t i = 0; i < found.size(); ++i) worst = std::max(worst, distance(found[i], wanted[i]));
  check_error(what + (kind == "fp32" ? ", fp32" : ""), shape, worst, tolerance(what, kind));
}

void grams(const Pair& on) {
  for (const Shape& shape : shapes_of("shapes", on.tier)) {
    const Tensor x = activations(shape, kHeads, 1);
    for (const int count : {kHeads, 2, 1}) {
      on.check("grams", shape, [&](Backend& backend) {
        // Sums begin with something, so that one that is overwritten shows.
        const MatrixStack start = symmetric_matrices(count, shape.head_dim, 77);
        MatrixStack sums = start;
        Parts parts;
        backend.accumulate_grams(parts_of(x, count == 2), sums);
        add_sums(sums, start, parts);
        return parts;
      });
    }
  }
}

void weighted_grams(const Pair& on) {
  for (const Shape& shape : shapes_of("shapes", on.tier)) {
    const Tensor k = activations(shape, kHeads, 2), v = activations(shape, kHeads, 3);
    // Of any sign, so that some weights are negative and count as zero in the sums.
    const MatrixStack forms = symmetric_matrices(kHeads, shape.head_dim, 4);
    for (const bool several : {false, true}) {
      Parts weights;
      on.check("weighted grams", shape, [&](Backend& backend) {
        const MatrixStack start = symmetric_matrices(kHeads, shape.head_dim, 77);
        MatrixStack sums = start;
        std::vector<double> own(kHeads, 3.5);
        Parts parts;
        backend.accumulate_weighted_grams(parts_of(k, several), forms, parts_of(v, several), sums, own);
        add_sums(sums, start, parts);
        weights.push_back(part(Nearness::kLargest, own));  // they cancel, so that one is compared with the largest
        return parts;
      });
      check_error("weights", shape, distance(weights[1], weights[0]), tolerance("weights", on.kind));
    }
  }
}

void grams_of_a_whole_layer(const Pair& on) {
  const Shape shape{DType::kBF16, 64, 30'001};
  const Tensor x = activations(shape, 4, 11);
  on.check("grams of a whole layer", shape, [&](Backend& backend) {
    MatrixStack sums(1, 64);
    Parts parts;
    backend.accumulate_grams(parts_of(x, false), sums);
    add_sums(sums, MatrixStack(1, 64), parts);
    return parts;
  });
}

void fisher_sums(const Pair& on) {
  for (const Shape& shape : shapes_of("shapes", on.tier)) {
    if (shape.tokens > (on.tier == Tier::kLarge ? 3000 : 1000)) continue;  // every query sees every key
    const Shape values{shape.dtype, shape.head_dim + 6, shape.tokens};
    const Tensor q = activations(shape, kHeads, 5), k = activations(shape, 2, 6), v = activations(values, 2, 7);
    const Tensor base_q = activations(shape, kHeads, 8), base_k = activations(shape, 2, 9);
    const QkvView qkv{heads_view(q, "q"), heads_view(k, "k"), heads_view(v, "v"), heads_view(base_q, "base_q"),
                      heads_view(base_k, "base_k")};
    const std::int64_t cut = shape.tokens / 7;
    const std::vector<SequenceRange> sequences{{0, cut}, {cut, cut}, {cut, shape.tokens}};
    for (const Windows windows : {Windows{2, 5}, Windows{0, 1}}) {
      on.check("fisher", shape, [&](Backend& backend) {
        FisherSums sums(2, shape.head_dim);
        // Values are taken where windows hold recent keys alone, and queries before RoPE elsewhere.
        if (windows.sink == 0) sums.value = MatrixStack(2, values.head_dim);
        sums.take_base(windows.sink > 0);
        for (int twice = 0; twice < 2; ++twice) backend.accumulate_fisher_sums(qkv, sequences, windows, sums);
        return Parts{part(Nearness::kLargest, sums.query.data),      part(Nearness::kLargest, sums.key.data),
                     part(Nearness::kLargest, sums.value.data),      part(Nearness::kLargest, sums.key_sum),
                     part(Nearness::kLargest, sums.base_query.data), part(Nearness::kLargest, sums.base_key.data),
                     part(Nearness::kLargest, sums.base_key_sum),    part(Nearness::kLargest, sums.weight)};
      });
    }
  }
}

namespace {

/// Decoded rows to the bit.
void quantize_by(const Pair& on, const Shape& shape, const HistoryCodec& codec, Precision precision) {
  const std::vector<float> rows =
      codec_rows(static_cast<std::size_t>(shape.tokens), static_cast<std::size_t>(shape.head_dim));
  on.check("quantize", shape, [&](Backend& backend) {
    Guarded<float> decoded(rows.size());
    backend.quantize(rows, shape.head_dim, codec, precision, decoded.get());
    CHECK(decoded.intact());
    return Parts{part(Nearness::kBits, decoded.get())};
  });
}

}  // namespace

void quantize(const Pair& on) {
  const std::vector<RowCodec> codecs = row_codecs(on.tier);
  for (const Shape& shape : shapes_of("rows", on.tier)) {
    for (std::size_t i = 0; i<codecs.size(); i += shape.tokens> 10'000 ? 40 : 1) {
      if (codecs[i].group_size != 0 && shape.head_dim % codecs[i].group_size != 0) continue;
      quantize_by(on, shape, codecs[i], i % 2 == 0 ? Precision::kServing : Precision::kExact);
    }
  }
}

void quantize_coded_rows(const Pair& on) {
  for (const Shape& shape : shapes_of("rows", on.tier)) {
    if (shape.head_dim % 8 != 0) continue;
    std::vector<CodedFormat> formats = *coded_formats(kHeads, shape.head_dim);
    formats.push_back(formats.front());
    for (int& levels : formats.back().levels) levels = std::min(levels, 8);  // no wide class
    formats.push_back(formats.front());
    std::ranges::fill(formats.back().levels, 1);  // nothing is stored
    for (const CodedFormat& format : formats) {
      HistoryCodec codec;
      codec.coded = std::make_shared<const std::vector<CodedFormat>>(1, format);
      for (const Precision precision : {Precision::kExact, Precision::kServing})
        quantize_by(on, shape, codec, precision);
    }
  }
}

namespace {

void attend_to(const Pair& on, const Sequence& s, Precision precision, bool rotated,
               const std::vector<Windows>& all_windows) {
  const bool serving = precision == Precision::kServing;
  const auto expected = on.expected.hold(s.input(precision, rotated)), got = on.got.hold(s.input(precision, rotated));
  for (const Windows& windows : all_windows) {
    for (const HistoryCodecs& codecs : codecs_for(s)) {
      // An output may fall to the other side of a tie: one bfloat16 unit of the largest is 2^-7 of it at most.
      on.check(serving ? "attend, serving" : "attend", s.shape, [&](Backend& backend) {
        Guarded<float> out(s.out_size());
        (&backend == &on.got ? got : expected)->attend(codecs, windows, out.get());
        CHECK((out.intact() && (!serving || rotated || all_bf16(out.get()))));
        return Parts{part(Nearness::kLargest, out.get())};
      });
    }
  }
}

}  // namespace

void attend(const Pair& on) {
  bool serving = false;
  for (const Sequence& s : sequences_of(on.tier)) {
    const bool may_rotate = s.decoded_k.shape.empty();
    serving = !serving;
    if (on.tier == Tier::kSmall) {  // in turn
      attend_to(on, s, serving ? Precision::kServing : Precision::kExact, serving && may_rotate,
                {kSmallWindows[serving ? 0 : 1]});
      continue;
    }
    for (const Precision precision : {Precision::kExact, Precision::kServing}) {
      attend_to(on, s, precision, may_rotate, kWindows);
      if (may_rotate) attend_to(on, s, precision, false, kSmallWindows);
    }
  }
}

void attend_by_score_rules(const Pair& on) {
  for (Sequence& s : sequences_of(std::min(on.tier, Tier::kMedium))) {
    for (const ScoreRule& rule : score_rules(s.heads)) {
      s.rule = rule;
      attend_to(on, s, Precision::kExact, false, kSmallWindows);
    }
  }
}

void compare(const Pair& on, const Sequence& s, Precision precision, const std::vector<HistoryCodecs>& candidates,
             Windows windows) {
  const SequenceInput input = s.input(precision, s.decoded_k.shape.empty());
  // Rows that nothing changed are without error, but for squares of rounding in fp64: far below those of fp32.
  const auto output_error = [](const AttentionErrors& e) {
    return e.output_error < 1e-20 * e.output_norm ? 0 : e.output_error;
  };
  on.check("compare", s.shape, [&](Backend& backend) {
    Parts parts{{Nearness::kEach, {}}, {Nearness::kAbsolute, {}}};
    for (const auto& heads : backend.hold(input)->compare(candidates, windows)) {
      for (const AttentionErrors& e : heads) {
        parts[0].values.insert(parts[0].values.end(),
                               {e.softmax_kl, output_error(e), e.output_norm, e.output_cosine, e.logit_error,
                                e.logit_norm, e.needle_mass, e.needle_kept, static_cast<double>(e.queries)});
        parts[1].values.insert(parts[1].values.end(), e.query_kl.begin(), e.query_kl.end());
      }
    }
    return parts;
  });
}

void compare(const Pair& on) {
  double needles = 0;
  for (const Sequence& s : sequences_of(on.tier)) {
    const std::vector<HistoryCodecs> candidates = codecs_for(s);
    if (on.tier != Tier::kSmall) {
      for (const Windows windows : kWindows) compare(on, s, Precision::kExact, candidates, windows);
    }
    for (const Windows windows : kSmallWindows) compare(on, s, Precision::kServing, candidates, windows);
    const auto held = on.got.hold(s.input(Precision::kExact, s.decoded_k.shape.empty()));
    const auto found = held->compare({candidates.data(), 1}, kSmallWindows[0]);
    for (const AttentionErrors& errors : found[0]) needles += errors.needle_mass;
  }
  CHECK((on.tier == Tier::kSmall || needles > 5));  // there are needles to be lost
}

void row_errors(const Pair& on) {
  for (const Sequence& s : sequences_of(on.tier)) {
    const bool may_rotate = s.decoded_k.shape.empty(), all = on.tier != Tier::kSmall;
    for (const bool rotated : {true, false}) {
      if (rotated ? !may_rotate : may_rotate && !all) continue;
      for (const Windows windows : std::span(kWindows).first(all ? 2 : 1)) {
        const SequenceInput input = s.input(Precision::kServing, rotated);
        on.check("row_errors", s.shape, [&](Backend& backend) {
          const auto held = backend.hold(input);
          Parts parts{{Nearness::kEach, {}}};
          for (const HistoryCodecs& codecs : codecs_for(s)) {
            for (const RowErrors& e : held->row_errors(codecs, windows))
              parts[0].values.insert(parts[0].values.end(), {e.key_signal, e.key_noise, e.value_signal, e.value_noise});
          }
          return parts;
        });
      }
    }
  }
}

namespace {

/// max |A V - V diag(values)| and max |V^T V - I|.
std::array<double, 2> residuals(std::span<const double> a, const Eigenpairs& pairs, std::size_t dim) {
  std::array<double, 2> worst{};
  const auto v = [&](std::size_t i, std::size_t j) { return pairs.vectors[i * dim + j]; };
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) {
      double product = 0, dot = 0;
      for (std::size_t k = 0; k < dim; ++k) product += a[i * dim + k] * v(k, j), dot += v(k, i) * v(k, j);
      worst[0] = std::max(worst[0], std::abs(product - v(i, j) * pairs.values[j]));
      worst[1] = std::max(worst[1], std::abs(dot - (i == j ? 1.0 : 0.0)));
    }
  }
  return worst;
}

}  // namespace

void eigenpairs(const Pair& on, const MatrixStack& matrices) {
  const auto dim = static_cast<std::size_t>(matrices.dim);
  on.check("eigh", {DType::kF64, matrices.dim, matrices.count}, [&](Backend& backend) {
    Parts parts;
    for (const Eigenpairs& pairs : backend.eigh(matrices)) {
      const double scale = std::max(largest_magnitude(pairs.values), 1e-300);
      const auto [equation, orthogonality] = residuals(matrices[static_cast<int>(parts.size() / 2)], pairs, dim);
      CHECK(std::is_sorted(pairs.values.begin(), pairs.values.end()));
      parts.push_back(part(Nearness::kLargest, pairs.values));
      parts.push_back({Nearness::kResidual, {equation / scale, orthogonality}});
    }
    return parts;
  });
}

void eigenpairs(const Pair& on) {
  for (const Shape& shape : shapes_of("eigenproblems", on.tier)) eigenpairs(on, eigenproblems(shape.head_dim));
}

}  // namespace oscar::test
