// SPDX-License-Identifier: MIT
// What the CUDA backend promises beside agreement (tests/conformance): which device a name gives; the same bits in
// every run, from several threads and with little memory; what it says where memory is short; and what it refuses.
#include <array>
#include <cstring>
#include <limits>
#include <thread>

#include "unit/kernels_cuda/gpu.hpp"

namespace oscar {

namespace {

std::unique_ptr<Backend> backend_named(const std::string& device) {
  static Status silent;
  return make_backend(device, silent);
}

}  // namespace

TEST_CASE("without a GPU, cuda says why and auto takes the CPU") {
  if (cuda_device_count() > 0) {
    CHECK(backend_named("auto")->description().starts_with("cuda:0, "));
    CHECK_ERROR(backend_named("cuda:99"), BackendUnavailable, "no such GPU");
    return;
  }
  CHECK(backend_named("auto")->description().starts_with("cpu, "));
  CHECK_ERROR(backend_named("cuda"), BackendUnavailable, "use --device cpu");
  CHECK_ERROR(backend_named("cuda:1"), BackendUnavailable, "use --device cpu");
}

TEST_CASE("names that are no device are refused") {
  for (const char* name : {"gpu", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", ""}) {
    CHECK_ERROR(backend_named(name), UsageError, "use auto, cpu, cuda or cuda:N");
  }
}

namespace {

using namespace test;

/// Everything that a sequence answers, as bytes.
std::vector<double> answers(Backend& backend, const Sequence& s) {
  const auto held = backend.hold(s.input(Precision::kServing));
  const std::vector<HistoryCodecs> codecs = codecs_for(s);
  std::vector<float> out(s.out_size());
  held->attend(codecs[0], {4, 16}, out);
  std::vector<double> all(out.begin(), out.end());
  for (const auto& heads : held->compare(codecs, {4, 16})) {
    for (const AttentionErrors& e : heads) {
      all.insert(all.end(), {e.softmax_kl, e.output_error, e.output_norm, e.output_cosine, e.logit_error, e.logit_norm,
                             e.needle_mass, e.needle_kept});
    }
  }
  for (const RowErrors& rows : held->row_errors(codecs[0], {4, 16})) {
    all.insert(all.end(), {rows.key_signal, rows.key_noise, rows.value_signal, rows.value_noise});
  }
  return all;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

/// All sums of one layer.
struct LayerSums {
  MatrixStack grams{2, 128}, weighted{2, 128};
  std::vector<double> weights = std::vector<double>(2);
  bool operator==(const LayerSums& other) const {
    return grams.data == other.grams.data && weighted.data == other.weighted.data && weights == other.weights;
  }
};

/// Three chunks of queries.
class Layer {
 public:
  explicit Layer(unsigned seed)
      : q_(activations(kShape, 12, seed)), k_(activations(kShape, 2, seed + 1)), v_(activations(kShape, 2, seed + 2)) {}

  [[nodiscard]] LayerSums sums(Backend& backend) const {
    LayerSums result;
    const QkvView qkv{heads_view(q_, "q"), heads_view(k_, "k"), heads_view(v_, "v")};
    backend.accumulate_grams(std::array{qkv.q}, result.grams);
    backend.accumulate_weighted_grams(std::array{qkv.k}, forms_, std::array{qkv.v}, result.weighted, result.weights);
    return result;
  }

 private:
  static constexpr Shape kShape{DType::kBF16, 128, 11'000};
  Tensor q_, k_, v_;
  MatrixStack forms_ = symmetric_matrices(2, 128, 90);
};

}  // namespace

TEST_CASE("errors of attention match the CPU where GPU memory is short") {
  if (gpu_or_skip() == nullptr) return;
  Notices notices;
  const auto gpu = gpu_with("OSCAR_CUDA_MEMORY_LIMIT", "70", notices);
  std::vector<std::int64_t> positions;
  for (std::int64_t p = 400; p < 4096; p += 200) positions.push_back(p);
  const Sequence s({DType::kBF16, 128, 4096}, 6, 2, positions);
  std::vector<HistoryCodecs> candidates;
  for (int i = 0; i < 12; ++i) candidates.push_back({RowCodec{.clip_ratio = 1 - 0.03 * i}, RowCodec{}});
  compare({*make_cpu_backend(), *gpu, Tier::kLarge}, s, Precision::kServing, candidates, {64, 256});
  CHECK(notices.mention("GPU memory is short"));
}

TEST_CASE("held sequences give the same bits in every run, and from several threads at once") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  std::vector<Sequence> all;
  for (const int dim : {64, 96, 128}) {
    all.emplace_back(Shape{DType::kBF16, dim, 201}, 6, 2, std::vector<std::int64_t>{});
    all.emplace_back(Shape{DType::kBF16, dim, 201}, 5, 1, std::vector<std::int64_t>{0, 66, 66, 100, 200});
    all.emplace_back(Shape{DType::kBF16, dim, 201}, 3, 3, std::vector<std::int64_t>{200});
  }
  std::vector<std::vector<double>> expected(all.size()), got(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) expected[i] = answers(*gpu, all[i]);
  for (int run = 0; run < 3; ++run) {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < all.size(); ++i) {
      threads.emplace_back([&, i] { got[i] = answers(*gpu, all[i]); });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < all.size(); ++i) CHECK(same_bits(got[i], expected[i]));
  }
}

TEST_CASE("threads that share the GPU get the bits that each would get alone") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  std::vector<Layer> layers;
  for (unsigned seed = 100; seed < 130; seed += 10) layers.emplace_back(seed);
  std::vector<LayerSums> alone;
  for (const Layer& layer : layers) alone.push_back(layer.sums(*gpu));
  CHECK(largest_magnitude(alone[0].grams.data) > 0);
  CHECK_FALSE(alone[0] == alone[1]);
  std::vector<LayerSums> together(2 * layers.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < together.size(); ++i) {
      threads.emplace_back([&, i] { together[i] = layers[i % layers.size()].sums(*gpu); });
    }
  }
  for (std::size_t i = 0; i < together.size(); ++i) CHECK(together[i] == alone[i % layers.size()]);
}

TEST_CASE("with little memory, chunks are smaller and sums are the same to the bit") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const Shape shape{DType::kBF16, 128, 11'000};
  const Tensor q = activations(shape, 12, 200), k = activations(shape, 8, 201), v = activations(shape, 8, 202);
  const MatrixStack forms = symmetric_matrices(8, 128, 92);
  const auto grams = [&](Backend& backend) {
    MatrixStack sums(2, 128);
    backend.accumulate_grams(std::array{heads_view(q, "q")}, sums);
    return sums.data;
  };
  const auto weighted_grams = [&](Backend& backend) {
    MatrixStack sums(8, 128);
    std::vector<double> weights(8);
    backend.accumulate_weighted_grams(std::array{heads_view(k, "k")}, forms, std::array{heads_view(v, "v")}, sums,
                                      weights);
    sums.data.insert(sums.data.end(), weights.begin(), weights.end());
    return sums.data;
  };
  // Between what chunks of 16 MiB and chunks of 8 MiB need.
  Notices notices, weighted_notices;
  CHECK(grams(*gpu_with("OSCAR_CUDA_MEMORY_LIMIT", "52", notices)) == grams(*gpu));
  CHECK(notices.mention("GPU memory is short: working in chunks of 8 MiB"));
  CHECK(weighted_grams(*gpu_with("OSCAR_CUDA_MEMORY_LIMIT", "70", weighted_notices)) == weighted_grams(*gpu));
  CHECK(weighted_notices.mention("GPU memory is short: working in chunks of 8 MiB"));
}

TEST_CASE("a GPU without enough memory is one clear line") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  Notices notices;
  const auto small = gpu_with("OSCAR_CUDA_MEMORY_LIMIT", "4", notices);
  CHECK_ERROR((void)Layer(300).sums(*small), BackendUnavailable, "the GPU is out of memory");
  CHECK(notices.mention("working in chunks of 1 MiB"));
}

TEST_CASE("eigenproblems of all layers come in one batch, the same to the bit each time") {
  if (gpu_or_skip() == nullptr) return;
  Notices notices;
  const std::unique_ptr<Backend> gpu = gpu_with("OSCAR_CUDA_MEMORY_LIMIT", "8192", notices);
  const MatrixStack matrices = symmetric_matrices(72, 128, 35);
  eigenpairs({*make_cpu_backend(), *gpu, Tier::kLarge}, matrices);
  const std::vector<Eigenpairs> first = gpu->eigh(matrices), second = gpu->eigh(matrices);
  for (std::size_t i = 0; i < first.size(); ++i) {
    CHECK(first[i].values == second[i].values);
    CHECK(first[i].vectors == second[i].vectors);
  }
  CHECK_FALSE(notices.mention("eigenproblems"));  // none had to be solved again
}

TEST_CASE("eigenproblems whose batch does not fit the GPU are solved one by one, and it says so") {
  if (gpu_or_skip() == nullptr) return;
  const MatrixStack matrices = symmetric_matrices(72, 128, 36);
  // How much the batched solver needs is its secret: somewhere between too little for anything and enough for all.
  bool one_by_one = false;
  for (int mebibytes = 40; mebibytes >= 24 && !one_by_one; mebibytes -= 2) {
    Notices notices;
    const auto small = gpu_with("OSCAR_CUDA_MEMORY_LIMIT", std::to_string(mebibytes), notices);
    eigenpairs({*make_cpu_backend(), *small, Tier::kLarge}, matrices);
    one_by_one = notices.mention("eigenproblems are solved one by one");
  }
  CHECK(one_by_one);
}

TEST_CASE("eigh on the GPU takes more matrices than it solves at a time, in order") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  MatrixStack diagonal(600, 2);
  for (int i = 0; i < 600; ++i) diagonal[i][0] = i, diagonal[i][3] = -i;
  const std::vector<Eigenpairs> pairs = gpu->eigh(diagonal);
  REQUIRE(pairs.size() == 600);
  for (std::size_t i = 0; i < 600; ++i) CHECK(pairs[i].values[1] == doctest::Approx(double(i)));
}

TEST_CASE("eigh on the GPU refuses entries that are not finite") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  MatrixStack broken = symmetric_matrices(2, 64, 34);
  broken[1][7] = std::numeric_limits<double>::quiet_NaN();
  CHECK_ERROR(gpu->eigh(broken), NumericalError, "not finite");
}

TEST_CASE("the codec on the GPU refuses what the CPU refuses, and rows that are too long for it") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  std::vector<float> rows(128), decoded(128);
  CHECK_ERROR(gpu->quantize(rows, 128, RowCodec{.group_size = 48}, Precision::kExact, decoded), UsageError,
              "does not divide head_dim 128");
  rows.resize(1025), decoded.resize(1025);
  CHECK_ERROR(gpu->quantize(rows, 1025, {}, Precision::kExact, decoded), UsageError, "longer than");
}

}  // namespace oscar
