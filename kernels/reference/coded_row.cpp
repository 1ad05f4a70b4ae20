// SPDX-License-Identifier: MIT
#include "kernels/reference/coded_row.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/errors.hpp"
#include "kernels/reference/row_codec.hpp"

namespace oscar::reference {
namespace {

/// Returns 2^(n / 16), rounded once: the power of two is exact, the root is a constant.
double sixteenths(int n) {
  constexpr std::array<double, 16> kRoots{1.0,
                                          1.0442737824274138,
                                          1.0905077326652577,
                                          1.1387886347566916,
                                          1.189207115002721,
                                          1.241857812073484,
                                          1.2968395546510096,
                                          1.3542555469368927,
                                          1.4142135623730951,
                                          1.4768261459394993,
                                          1.5422108254079407,
                                          1.6104903319492543,
                                          1.681792830507429,
                                          1.7562521603732995,
                                          1.8340080864093424,
                                          1.9152065613971474};
  const int octave = n >= 0 ? n / 16 : -((15 - n) / 16);
  return std::ldexp(kRoots[static_cast<std::size_t>(n - 16 * octave)], octave);
}

/// Channels [0, wide) are wide, [wide, stored) narrow.
struct Classes {
  explicit Classes(const CodedFormat& format) {
    for (const int levels : format.levels) wide += levels >= kWideLevels ? 1U : 0U, stored += levels > 1 ? 1U : 0U;
  }
  std::size_t wide = 0, stored = 0;
};

/// The scale byte of the channels [begin, end); 0 if there are none.
std::uint8_t class_scale(const CodedFormat& format, std::span<const float> row, std::size_t begin, std::size_t end) {
  if (begin == end) return 0;
  const float sum = strand_sum<float>(row.size(), [&](std::size_t i) {
    if (i < begin || i >= end) return 0.0F;
    const float ratio = row[i] * (1.0F / format.sigma[i]);
    return ratio * ratio;
  });
  return coded_scale_byte(std::sqrt(sum / static_cast<float>(end - begin)));
}

int code_of(float value, int levels, float step, float scale) {
  const float place = value * (1.0F / step) * (1.0F / scale) + static_cast<float>(levels / 2);
  if (!(place >= 0)) return 0;
  return place >= static_cast<float>(levels) ? levels - 1 : static_cast<int>(place);
}

float value_of(int code, int levels, float step, float scale) {
  return (static_cast<float>(code) - 0.5F * static_cast<float>(levels - 1)) * step * scale;
}

/// Returns the gain that makes <y, gain y^> = <y, y>, held to 1/2 … 2; 1 for rows of zeros, and beyond float32.
float gain_of(std::span<const float> row, std::span<const float> decoded, std::size_t stored) {
  const float energy =
      strand_sum<float>(row.size(), [&](std::size_t i) { return i < stored ? row[i] * row[i] : 0.0F; });
  const float shared =
      strand_sum<float>(row.size(), [&](std::size_t i) { return i < stored ? row[i] * decoded[i] : 0.0F; });
  if (!(energy > 0)) return 1;
  const float gain = energy / shared;
  if (std::isnan(gain)) return 1;  // both sums are beyond float32
  return shared > 0 ? std::clamp(gain, 0.5F, 2.0F) : 2.0F;
}

}  // namespace

void require_valid(const CodedFormat& format) {
  const std::size_t dim = format.levels.size();
  OSCAR_CHECK(dim > 0 && dim % kCodedBlock == 0);
  OSCAR_CHECK(format.step.size() == dim && format.sigma.size() == dim);
  for (std::size_t i = 0; i < dim; ++i) {
    const int levels = format.levels[i];
    OSCAR_CHECK(levels >= 1 && levels <= 256 && std::has_single_bit(static_cast<unsigned>(levels)));
    OSCAR_CHECK(i % kCodedBlock == 0 ? i == 0 || levels <= format.levels[i - 1] : levels == format.levels[i - 1]);
    OSCAR_CHECK(levels == 1 || (std::isnormal(format.step[i]) && format.step[i] > 0));
    OSCAR_CHECK(levels == 1 || (std::isnormal(format.sigma[i]) && format.sigma[i] > 0));
  }
}

std::size_t coded_row_bytes(const CodedFormat& format) {
  std::size_t bytes = 2;
  for (std::size_t i = 0; i < format.levels.size(); i += kCodedBlock) {
    bytes += static_cast<std::size_t>(std::countr_zero(static_cast<unsigned>(format.levels[i])));
  }
  return bytes;
}

float coded_scale(int byte) { return static_cast<float>(sixteenths(byte - 128)); }

float least_coded_scale(int byte) {
  constexpr double kHalfStep = 0.9785720620877001;  // 2^(-1/32)
  return static_cast<float>(sixteenths(byte - 128) * kHalfStep);
}

std::uint8_t coded_scale_byte(float scale) {
  int low = 0, high = 255;  // the last byte whose least scale is not above
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (scale >= least_coded_scale(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return static_cast<std::uint8_t>(low);
}

CodedCodes coded_codes(const CodedFormat& format, std::span<const float> row) {
  OSCAR_CHECK(row.size() == format.levels.size());
  const Classes classes(format);
  CodedCodes out{std::vector<std::uint8_t>(row.size()),
                 {class_scale(format, row, 0, classes.wide), class_scale(format, row, classes.wide, classes.stored)}};
  std::vector<float> decoded(row.size());
  const std::array<float, 2> first{coded_scale(out.scales[0]), coded_scale(out.scales[1])};
  for (std::size_t i = 0; i < classes.stored; ++i) {
    const float scale = first[i < classes.wide ? 0 : 1];
    out.codes[i] = static_cast<std::uint8_t>(code_of(row[i], format.levels[i], format.step[i], scale));
    decoded[i] = value_of(out.codes[i], format.levels[i], format.step[i], scale);
  }
  const float gain = gain_of(row, decoded, classes.stored);
  if (classes.wide > 0) out.scales[0] = coded_scale_byte(first[0] * gain);
  if (classes.stored > classes.wide) out.scales[1] = coded_scale_byte(first[1] * gain);
  return out;
}

void coded_values(const CodedFormat& format, const CodedCodes& coded, std::span<float> row) {
  OSCAR_CHECK(row.size() == format.levels.size() && coded.codes.size() == row.size());
  const Classes classes(format);
  const std::array<float, 2> scales{coded_scale(coded.scales[0]), coded_scale(coded.scales[1])};
  std::fill(row.begin(), row.end(), 0.0F);
  for (std::size_t i = 0; i < classes.stored; ++i) {
    row[i] = value_of(coded.codes[i], format.levels[i], format.step[i], scales[i < classes.wide ? 0 : 1]);
  }
}

}  // namespace oscar::reference
