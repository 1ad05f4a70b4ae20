// SPDX-License-Identifier: MIT
#include "method/coded_levels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <queue>
#include <tuple>

#include "base/check.hpp"
#include "base/errors.hpp"

namespace oscar {
namespace {

constexpr int kMostBits = 8;
constexpr std::array<const char*, 3> kScopeNames{"model", "layer", "head"};  // in the order of CodedScope

/// The step from `bits` that takes away most error a bit; 0 if there is none above.
int next_bits(int bits) {
  int best = 0;
  double gain = 0;
  for (int to = bits + 1; to <= kMostBits; ++to) {
    const auto at = [](int w) { return kCodedError[static_cast<std::size_t>(w)]; };
    const double each = (at(bits) - at(to)) / (to - bits);
    if (each > gain) gain = each, best = to;
  }
  return best;
}

/// Blocks of one head that is planned with others.
struct HeadBlocks {
  std::size_t spectrum = 0;
  int head = 0;
};

/// A budget and the heads that share it.
struct Shared {
  std::vector<HeadBlocks> heads;
  double bits = 0;  // a channel, summed over blocks
};

/// Those of one layer and head come together whatever stands between them.
std::vector<Shared> groups_of(std::span<const CodedSpectrum> spectra, double bits, CodedScope scope) {
  std::map<std::pair<int, int>, Shared> groups;  // by layer and head, or 0 where all share
  for (std::size_t s = 0; s < spectra.size(); ++s) {
    const CodedSpectrum& spectrum = spectra[s];
    for (int head = 0; head < spectrum.num_heads; ++head) {
      const int layer = scope == CodedScope::kModel ? 0 : spectrum.layer;
      Shared& group = groups[{layer, scope == CodedScope::kHead ? head : 0}];
      group.heads.push_back({s, head});
      group.bits += (bits - 16.0 / spectrum.dim) * spectrum.dim / kLevelBlock;
    }
  }
  std::vector<Shared> all;
  for (auto& [place, group] : groups) all.push_back(std::move(group));
  return all;
}

void check(const CodedSpectrum& spectrum, double bits) {
  OSCAR_CHECK(spectrum.dim > 0 && spectrum.dim % kLevelBlock == 0);
  OSCAR_CHECK(spectrum.lambda.size() ==
              static_cast<std::size_t>(spectrum.num_heads) * static_cast<std::size_t>(spectrum.dim));
  const double least = 16.0 / spectrum.dim;
  if (bits > least && bits <= kMostBits + least) return;
  throw UsageError(
      fmt::format("{} bits a value cannot be spent on heads of {} channels: the scales of a row take {}, and "
                  "codes at most {} more",
                  bits, spectrum.dim, least, kMostBits),
      "--bits", "give more than the scales take");
}

/// Sorts the blocks of a head by width, stable, and writes its levels and order.
void write_levels(std::span<const int> widths, int dim, CodedLevels& out) {
  std::vector<std::size_t> blocks(widths.size());
  std::iota(blocks.begin(), blocks.end(), std::size_t{0});
  std::stable_sort(blocks.begin(), blocks.end(), [&](std::size_t a, std::size_t b) { return widths[a] > widths[b]; });
  for (const std::size_t block : blocks) {
    for (int i = 0; i < kLevelBlock; ++i) {
      out.levels.push_back(1 << widths[block]);
      out.order.push_back(static_cast<int>(block) * kLevelBlock + i);
    }
  }
  OSCAR_CHECK(static_cast<int>(blocks.size()) * kLevelBlock == dim);
}

}  // namespace

std::string name_of(CodedScope scope) { return kScopeNames[static_cast<std::size_t>(scope)]; }

CodedScope coded_scope_from_name(const std::string& name) {
  const auto found = std::ranges::find(kScopeNames, name);
  if (found != kScopeNames.end()) return static_cast<CodedScope>(found - kScopeNames.begin());
  throw UsageError("there is no scope \"" + name + "\"", "--scope", "give model, layer or head");
}

std::vector<int> spend_bits(std::span<const double> energy, std::int64_t budget, std::span<const int> least) {
  std::vector<int> widths(least.begin(), least.end());
  widths.resize(energy.size());
  budget -= std::accumulate(widths.begin(), widths.end(), 0);
  OSCAR_CHECK(budget >= 0);
  using Step = std::tuple<double, std::size_t, int>;  // less error a bit, negative; block; to so many bits
  std::priority_queue<Step, std::vector<Step>, std::greater<>> steps;
  const auto offer = [&](std::size_t block) {
    const int from = widths[block], to = next_bits(from);
    if (to == 0 || !(energy[block] > 0)) return;
    const double less = kCodedError[static_cast<std::size_t>(from)] - kCodedError[static_cast<std::size_t>(to)];
    steps.emplace(-energy[block] * less / (to - from), block, to);
  };
  for (std::size_t block = 0; block < energy.size(); ++block) offer(block);
  for (std::int64_t left = budget; !steps.empty() && left > 0;) {
    const auto [gain, block, to] = steps.top();
    steps.pop();
    if (to - widths[block] > left) continue;
    left -= to - widths[block];
    widths[block] = to;
    offer(block);
  }
  return widths;
}

std::vector<CodedLevels> plan_levels(std::span<const CodedSpectrum> spectra, double bits, CodedScope scope) {
  for (const CodedSpectrum& spectrum : spectra) check(spectrum, bits);
  std::vector<CodedLevels> plans(spectra.size());
  for (const Shared& group : groups_of(spectra, bits, scope)) {
    std::vector<double> energy;
    std::vector<int> least;
    const auto budget = static_cast<std::int64_t>(std::floor(group.bits + 1e-9));
    for (const HeadBlocks& head : group.heads) {
      const CodedSpectrum& spectrum = spectra[head.spectrum];
      const double* const lambda = spectrum.lambda.data() + static_cast<std::ptrdiff_t>(head.head) * spectrum.dim;
      for (int block = 0; block < spectrum.dim; block += kLevelBlock) {
        energy.push_back(spectrum.weight * std::accumulate(lambda + block, lambda + block + kLevelBlock, 0.0));
      }
      least.resize(energy.size());
      const auto own = energy.end() - spectrum.dim / kLevelBlock;
      least[static_cast<std::size_t>(std::max_element(own, energy.end()) - energy.begin())] = 1;
      if (std::accumulate(least.begin(), least.end(), 0) > budget) {
        throw DataError(
            fmt::format("{} bits a value leave nothing for the {}s of KV head {}", bits, spectrum.side, head.head),
            fmt::format("layer {}", spectrum.layer), "give more --bits");
      }
    }
    const std::vector<int> widths = spend_bits(energy, budget, least);
    std::size_t first = 0;
    for (const HeadBlocks& head : group.heads) {
      const CodedSpectrum& spectrum = spectra[head.spectrum];
      const auto blocks = static_cast<std::size_t>(spectrum.dim / kLevelBlock);
      const auto own = std::span(widths).subspan(first, blocks);
      first += blocks;
      write_levels(own, spectrum.dim, plans[head.spectrum]);
    }
  }
  return plans;
}

double expected_error(std::span<const double> lambda, std::span<const int> levels) {
  OSCAR_CHECK(lambda.size() == levels.size());
  double error = 0;
  for (std::size_t i = 0; i < lambda.size(); ++i) {
    error += lambda[i] * kCodedError[static_cast<std::size_t>(std::countr_zero(static_cast<unsigned>(levels[i])))];
  }
  return error;
}

}  // namespace oscar
