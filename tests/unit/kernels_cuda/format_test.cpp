// SPDX-License-Identifier: MIT
// What queries read of the cache, and the plan of compare(), as the kernels use them: on the host, where no GPU is
// needed.
#include <doctest/doctest.h>

#include <map>

#include "kernels/cuda/cache_format.hpp"
#include "kernels/cuda/compare_plan.hpp"

namespace oscar::cuda {

TEST_CASE("a tile of keys is read in each way that some of its queries needs") {
  for (const Windows& windows : {Windows{4, 16}, Windows{0, 0}, Windows{0, 40}, Windows{10, 0}, Windows{64, 256}}) {
    for (const auto& [lowest, highest] : {std::pair{0, 0}, {0, 31}, {70, 78}, {70, 70}, {5, 90}}) {
      for (int first = 0; first <= highest; first += 8) {
        const int last = std::min(first + 7, highest);
        TileReadings expected{false, false};
        for (int position = lowest; position <= highest; ++position) {
          for (int key = first; key <= std::min(last, position); ++key) {
            (in_window(key, position, windows) ? expected.stored : expected.decoded) = true;
          }
        }
        const TileReadings got = tile_readings(first, last, lowest, highest, windows);
        CHECK((got.stored || !expected.stored));
        CHECK((got.decoded || !expected.decoded));
        if (lowest == highest) {
          CHECK(got.stored == expected.stored);
          CHECK(got.decoded == expected.decoded);
        }
      }
    }
  }
}

TEST_CASE("compare reads each codec once, and its passes hold every candidate and head once, within the budget") {
  const RowCodec a{.clip_ratio = 0.9}, b{.clip_ratio = 0.8};
  const std::vector<HistoryCodecs> candidates{{a, {}}, {b, a}, {a, b}, {{}, {}}, {a, {}}};
  const CodecChoice keys = choose_codecs(candidates, &HistoryCodecs::key);
  CHECK(keys.codecs == std::vector<std::optional<HistoryCodec>>{a, b, std::nullopt});
  CHECK(keys.of_candidate == std::vector<std::size_t>{0, 1, 0, 2, 0});
  CHECK(keys.decoding() == 2);

  std::vector<HistoryCodecs> many;
  for (int i = 0; i < 100; ++i) many.push_back({RowCodec{.clip_ratio = 0.01 * i}, {}});
  const CompareShape shape{.kv_heads = 5, .g = 3, .queries = 200, .keys = 1000, .key_dim = 128, .value_dim = 64};
  for (const std::size_t budget :
       {std::size_t{1} << 40, std::size_t{256} << 20, std::size_t{16} << 20, std::size_t{1}}) {
    std::map<std::pair<std::size_t, int>, int> covered;
    for (const ComparePass& pass : compare_passes(shape, many, budget)) {
      for (std::size_t c = 0; c < pass.candidates; ++c) {
        for (int head = 0; head < pass.heads; ++head) ++covered[{pass.first_candidate + c, pass.first_head + head}];
      }
      CHECK(pass.candidates <= 64);
      CHECK((pass.block >= 1 && pass.block <= shape.queries));
      const PassBytes bytes = bytes_of_pass(
          shape, std::span<const HistoryCodecs>(many).subspan(pass.first_candidate, pass.candidates), pass.heads);
      const bool smallest = pass.candidates == 1 && pass.heads == 1;
      CHECK((smallest || bytes.rows <= budget));
      CHECK((pass.block == 1 || bytes.per_query * static_cast<std::size_t>(pass.block) <= budget));
    }
    CHECK(covered.size() == 500);
    for (const auto& [place, times] : covered) CHECK(times == 1);
  }
  CHECK(compare_passes(shape, std::span(many).first(10), std::size_t{256} << 20).size() == 1);
  CHECK(compare_passes(shape, {}, 1).empty());
}

}  // namespace oscar::cuda
