// SPDX-License-Identifier: MIT
#include "method/coded_levels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "base/errors.hpp"
#include "base/exp.hpp"
#include "base/threads.hpp"
#include "kernels/reference/coded_operands.hpp"
#include "kernels/reference/coded_row.hpp"
#include "method/compose.hpp"

namespace oscar {
namespace {

constexpr int kMostBits = 8;
constexpr std::array<const char*, 3> kScopeNames{"model", "layer", "head"};  // in the order of CodedScope

/// Heads of so many channels or more take whole bytes; kernels serve some of these.
constexpr int kServedDim = 64;

/// One way to spend bits on the blocks of a head.
struct Choice {
  int bits = 0;
  double cost = 0;                   // bits, and what its operands weigh
  double error = 0;                  // with the spectrum's weight
  std::vector<std::uint8_t> widths;  // of the blocks, those of most energy first
};

/// Keys, or values, of one head that is planned with others.
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

double energy_of(const CodedSpectrum& spectrum, int head, std::size_t block) {
  const auto first = spectrum.lambda.begin() + static_cast<std::ptrdiff_t>(head) * spectrum.dim +
                     static_cast<std::ptrdiff_t>(block) * kLevelBlock;
  return spectrum.weight * std::accumulate(first, first + kLevelBlock, 0.0);
}

/// The blocks of a head, those of most energy first.
std::vector<std::size_t> strongest_first(const CodedSpectrum& spectrum, int head) {
  std::vector<std::size_t> blocks(static_cast<std::size_t>(spectrum.dim / kLevelBlock));
  std::iota(blocks.begin(), blocks.end(), std::size_t{0});
  std::ranges::stable_sort(blocks, std::greater<>(), [&](std::size_t b) { return energy_of(spectrum, head, b); });
  return blocks;
}

/// Ways to spend at most `most` bits: of each number of wide and of narrow blocks those in which no bit would take away
/// more error elsewhere; of equal bits and cost the one of least error. Ordered by bits.
std::vector<Choice> choices_of(const CodedSpectrum& spectrum, int head, std::int64_t most) {
  std::vector<double> energy;
  for (const std::size_t block : strongest_first(spectrum, head)) energy.push_back(energy_of(spectrum, head, block));
  const auto blocks = static_cast<int>(energy.size());
  const int strong = std::max(1, static_cast<int>(std::ranges::count_if(energy, [](double each) { return each > 0; })));
  const int quantum = spectrum.dim >= kServedDim ? 8 : 1;
  const bool keys = spectrum.kind != CodedKind::kValue;
  const std::array<double, 9>& error = kCodedError[static_cast<std::size_t>(spectrum.kind)];
  std::map<std::pair<int, double>, Choice> best;
  std::vector<std::uint8_t> widths(energy.size());
  for (int coded = 1; coded <= strong; ++coded) {
    for (int wide = 0; wide <= coded; ++wide) {
      for (int i = 0; i < blocks; ++i) {
        widths[static_cast<std::size_t>(i)] = i >= coded ? 0 : i < wide ? reference::kWideBits : 1;
      }
      for (int bits = coded + (reference::kWideBits - 1) * wide; bits <= most; ++bits) {
        if (bits % quantum == 0) {
          Choice choice{bits, bits + kOperandBits[keys ? 0 : 1] * reference::count_operands(widths, keys), 0, widths};
          for (std::size_t i = 0; i < energy.size(); ++i) choice.error += energy[i] * error[widths[i]];
          Choice& known = best[{bits, choice.cost}];
          if (known.widths.empty() || choice.error < known.error) known = std::move(choice);
        }
        const auto gain = [&](std::size_t i) {
          const bool last = widths[i] == kMostBits || widths[i] == reference::kWideBits - 1;
          return last ? -1 : energy[i] * (error[widths[i]] - error[widths[i] + 1U]);
        };
        std::size_t next = 0;
        for (std::size_t i = 1; i < static_cast<std::size_t>(coded); ++i) next = gain(i) > gain(next) ? i : next;
        if (gain(next) < 0) break;
        ++widths[next];
      }
    }
  }
  std::vector<Choice> choices;
  for (auto& [place, choice] : best) choices.push_back(std::move(choice));
  return choices;
}

/// A head's choices, and which of them it gets.
struct Chosen {
  std::vector<Choice> choices;
  std::size_t now = 0;

  [[nodiscard]] int bits() const { return choices[now].bits; }
  /// Takes the choice of the least sum of error and `price` times cost.
  void choose(double price) {
    now = 0;
    const auto total = [&](std::size_t i) { return choices[i].error + price * choices[i].cost; };
    for (std::size_t i = 1; i < choices.size(); ++i) now = total(i) < total(now) ? i : now;
  }
  /// The most error a bit that a choice of at most `left` more bits takes away, and that choice; 0 and the present one
  /// if there is none.
  [[nodiscard]] std::pair<double, std::size_t> step(std::int64_t left) const {
    std::pair<double, std::size_t> best{0, now};
    for (std::size_t to = 0; to < choices.size(); ++to) {
      const int more = choices[to].bits - bits();
      if (more <= 0 || more > left) continue;
      best = std::max(best, {(choices[now].error - choices[to].error) / more, to});
    }
    return best;
  }
};

/// Chooses for all heads, which together take at most `budget` bits: by the least price that they can pay, then by
/// single steps for what is left.
void spend(std::vector<Chosen>& heads, std::int64_t budget) {
  const auto take = [&](double price) {
    std::int64_t taken = 0;
    for (Chosen& head : heads) head.choose(price), taken += head.bits();
    return taken;
  };
  double highest = 0;
  for (const Chosen& head : heads) highest = std::max(highest, head.choices.front().error);
  double low = 1e-30 * highest, high = 1e3 * highest;
  for (int i = 0; i < 100; ++i) {
    const double price = std::sqrt(low * high);
    (take(price) > budget ? low : high) = price;
  }
  for (std::int64_t left = budget - take(high); left > 0;) {
    Chosen* best = nullptr;
    std::pair<double, std::size_t> step{0, 0};
    for (Chosen& head : heads) {
      if (const auto own = head.step(left); own.first > step.first) best = &head, step = own;
    }
    if (best == nullptr) return;
    left -= best->choices[step.second].bits - best->bits();
    best->now = step.second;
  }
}

}  // namespace

std::string name_of(CodedScope scope) { return kScopeNames[static_cast<std::size_t>(scope)]; }

CodedScope coded_scope_from_name(const std::string& name) {
  const auto found = std::ranges::find(kScopeNames, name);
  if (found != kScopeNames.end()) return static_cast<CodedScope>(found - kScopeNames.begin());
  throw UsageError("there is no scope \"" + name + "\"", "--scope", "give model, layer or head");
}

std::vector<CodedLevels> plan_levels(std::span<const CodedSpectrum> spectra, double bits, CodedScope scope) {
  for (const CodedSpectrum& spectrum : spectra) check(spectrum, bits);
  std::vector<CodedLevels> plans(spectra.size());
  for (const Shared& group : groups_of(spectra, bits, scope)) {
    const auto budget = static_cast<std::int64_t>(std::floor(group.bits + 1e-9));
    std::vector<Chosen> heads(group.heads.size());
    parallel_for(heads.size(), [&](std::size_t i) {
      const CodedSpectrum& spectrum = spectra[group.heads[i].spectrum];
      const std::int64_t most = std::min<std::int64_t>(budget, kMostBits * spectrum.dim / kLevelBlock);
      heads[i].choices = choices_of(spectrum, group.heads[i].head, most);
    });
    std::int64_t left = budget;
    for (std::size_t i = 0; i < heads.size(); ++i) {
      if (!heads[i].choices.empty()) left -= heads[i].choices.front().bits;
      if (left >= 0 && !heads[i].choices.empty()) continue;
      const CodedSpectrum& spectrum = spectra[group.heads[i].spectrum];
      throw DataError(fmt::format("{} bits a value leave nothing for the {} of KV head {}", bits,
                                  spectrum.kind == CodedKind::kValue ? "values" : "keys", group.heads[i].head),
                      fmt::format("layer {}", spectrum.layer), "give more --bits");
    }
    spend(heads, budget);
    for (std::size_t i = 0; i < heads.size(); ++i) {
      const auto [s, head] = group.heads[i];
      const std::vector<std::size_t> blocks = strongest_first(spectra[s], head);  // so the widest come first
      const std::vector<std::uint8_t>& widths = heads[i].choices[heads[i].now].widths;
      for (std::size_t c = 0; c < blocks.size() * kLevelBlock; ++c) {
        plans[s].levels.push_back(1 << widths[c / kLevelBlock]);
        plans[s].order.push_back(static_cast<int>(blocks[c / kLevelBlock] * kLevelBlock + c % kLevelBlock));
      }
    }
  }
  return plans;
}

double expected_error(std::span<const double> lambda, std::span<const int> levels, CodedKind kind) {
  OSCAR_CHECK(lambda.size() == levels.size());
  double error = 0;
  for (std::size_t i = 0; i < lambda.size(); ++i) {
    const auto bits = static_cast<std::size_t>(std::countr_zero(static_cast<unsigned>(levels[i])));
    error += lambda[i] * kCodedError[static_cast<std::size_t>(kind)][bits];
  }
  return error;
}

/// Adds to errors[f] the square of what a grid of steps[f] makes of a value too much, times the weight, and to along[f]
/// its product with the value. Many grids side by side, since a sum waits for its last addition.
OSCAR_VECTOR_CLONES void add_grid_errors(double value, double weight, int levels, const double* __restrict steps,
                                         int count, double* __restrict errors, double* __restrict along) {
  const double half = levels / 2.0, highest = levels - 1.0, middle = (levels - 1) / 2.0;
  for (int f = 0; f < count; ++f) {
    double code = std::floor(value / steps[f] + half);
    code = code < 0.0 ? 0.0 : code;
    code = highest < code ? highest : code;
    const double error = (code - middle) * steps[f] - value;
    errors[f] += weight * (error * error);
    along[f] += weight * (error * value);
  }
}

namespace {

constexpr int kWide = 16;
constexpr int kFactors = 51;
constexpr double kLeastFactor = 0.35, kMostFactor = 1.6;

/// The step that a unit Gaussian with so many levels is tried around.
double gaussian_step(int levels) {
  if (levels == 2) return 1.6;
  if (levels == 4) return 0.9957;
  return 2 * 3.2 / levels;
}

/// The scale of each row's wide and narrow channels, (n, 2): the root mean square of y / sigma over the class.
std::vector<double> class_scales(std::span<const float> rows, std::span<const int> levels,
                                 std::span<const float> sigma) {
  const std::size_t dim = levels.size(), n = rows.size() / dim;
  std::vector<double> scales(2 * n);
  double counts[2] = {0, 0};
  for (const int each : levels) {
    if (each > 1) ++counts[each >= kWide ? 0 : 1];
  }
  for (std::size_t r = 0; r < n; ++r) {
    for (std::size_t i = 0; i < dim; ++i) {
      if (levels[i] == 1) continue;
      const double ratio = double{rows[r * dim + i]} / double{sigma[i]};
      scales[2 * r + (levels[i] >= kWide ? 0 : 1)] += ratio * ratio;
    }
    for (std::size_t c = 0; c < 2; ++c)
      scales[2 * r + c] = counts[c] > 0 ? std::sqrt(scales[2 * r + c] / counts[c]) : 0;
  }
  return scales;
}

using Steps = std::array<double, kFactors>;

double best_step(std::span<const double> values, std::span<const double> weights, int levels, double alike) {
  double energy = 0, weight = 0;
  for (std::size_t r = 0; r < values.size(); ++r) energy += weights[r] * values[r] * values[r], weight += weights[r];
  const double deviation = std::sqrt(energy / weight);
  Steps steps, errors{}, along{};
  for (int f = 0; f < kFactors; ++f) {
    const double factor = kLeastFactor + (kMostFactor - kLeastFactor) * f / (kFactors - 1);
    steps[static_cast<std::size_t>(f)] = gaussian_step(levels) * factor * deviation;
  }
  for (std::size_t r = 0; r < values.size(); ++r) {
    add_grid_errors(values[r], weights[r], levels, steps.data(), kFactors, errors.data(), along.data());
  }
  double best = 0, least = std::numeric_limits<double>::infinity();
  for (std::size_t f = 0; f < kFactors; ++f) {
    const double cost = errors[f] + alike * (along[f] * along[f]) / energy;
    if (cost < least) least = cost, best = steps[f];
  }
  return best;
}

/// y = (x - mean) W of one head, in fp64. rows: (n, d).
std::vector<float> coded_rows(const Transform& transform, std::span<const double> mean, int head,
                              std::span<const float> rows) {
  const auto dim = static_cast<std::size_t>(transform.rotation.dim);
  const std::span<const double> write = transform.rotation[head];
  std::vector<float> out(rows.size());
  std::vector<double> x(dim), y(dim);
  for (std::size_t first = 0; first < rows.size(); first += dim) {
    for (std::size_t i = 0; i < dim; ++i) {
      x[i] = rows[first + i] - (mean.empty() ? 0 : mean[i]);
    }
    std::fill(y.begin(), y.end(), 0.0);
    for (std::size_t i = 0; i < dim; ++i) {
      for (std::size_t j = 0; j < dim; ++j) y[j] += x[i] * write[i * dim + j];
    }
    for (std::size_t j = 0; j < dim; ++j) out[first + j] = static_cast<float>(y[j]);
  }
  return out;
}

}  // namespace

CodedGrid fit_grid(std::span<const float> rows, std::span<const int> levels, double alike) {
  const std::size_t dim = levels.size();
  OSCAR_CHECK(dim > 0 && !rows.empty() && rows.size() % dim == 0);
  const std::size_t n = rows.size() / dim;
  CodedGrid grid{std::vector<float>(dim), std::vector<float>(dim)};
  for (std::size_t i = 0; i < dim; ++i) {
    if (levels[i] == 1) continue;
    double energy = 0;
    for (std::size_t r = 0; r < n; ++r) energy += double{rows[r * dim + i]} * double{rows[r * dim + i]};
    grid.sigma[i] = static_cast<float>(std::sqrt(energy / static_cast<double>(n)));
    if (std::isnormal(grid.sigma[i])) continue;
    throw NumericalError("a channel that has levels is zero in all rows, or not finite", "channel " + std::to_string(i),
                         "give more text");
  }
  const std::vector<double> scales = class_scales(rows, levels, grid.sigma);
  std::vector<double> values, weights;
  for (std::size_t i = 0; i < dim; ++i) {
    if (levels[i] == 1) continue;
    values.clear(), weights.clear();
    for (std::size_t r = 0; r < n; ++r) {
      const double scale = scales[2 * r + (levels[i] >= kWide ? 0 : 1)];
      if (!(scale > 0)) continue;
      values.push_back(double{rows[r * dim + i]} / scale), weights.push_back(scale * scale);
    }
    grid.step[i] = static_cast<float>(best_step(values, weights, levels[i], alike));
  }
  return grid;
}

CodedSide coded_side(CodedBasis basis, const std::vector<std::vector<float>>& rows, const CodedLevels& levels,
                     double alike) {
  reorder(basis, levels.order);
  if (!basis.rotary) mix_equal_levels(basis, levels.levels);
  for (std::vector<double>* values :
       {&basis.transform.rotation.data, &basis.transform.read_rotation.data, &basis.transform.mean}) {
    *values = rounded_to_f32(std::move(*values));
  }
  CodedSide side{std::move(basis.transform), {}, std::move(basis.rotary)};
  const auto dim = static_cast<std::size_t>(side.transform.rotation.dim);
  side.formats.resize(rows.size());
  parallel_for(rows.size(), [&](std::size_t head) {
    const auto own = std::span(levels.levels).subspan(head * dim, dim);
    std::vector<float> own_rows = rows[head];
    std::span<const double> mean;
    if (!side.transform.mean.empty()) mean = std::span(side.transform.mean).subspan(head * dim, dim);
    if (side.rotary) {  // the rows of a sample as one text: 256 and more are at all distances from a block's middle
      turn(*side.rotary, Turn::kForth, own_rows, 1, 0);
      turn_stored(*side.rotary, Turn::kBack, std::exchange(mean, {}), own_rows, 1, 0);
    }
    const CodedGrid grid = fit_grid(coded_rows(side.transform, mean, static_cast<int>(head), own_rows), own, alike);
    side.formats[head] = {{own.begin(), own.end()}, grid.step, grid.sigma};
  });
  return side;
}

}  // namespace oscar
