// SPDX-License-Identifier: MIT
#include "moments/shared_sums.hpp"

#include <cstring>
#include <string>

#include "base/check.hpp"

namespace oscar {
namespace {

std::string bytes_of(const std::vector<double>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(double)};
}

std::vector<double> doubles_of(const std::string& bytes) {
  std::vector<double> numbers(bytes.size() / sizeof(double));
  if (!bytes.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

}  // namespace

std::vector<double> sum_of_blocks(const std::vector<double>& own, std::size_t count, SharedLayer& shared) {
  std::vector<double> all = doubles_of(shared.gather(bytes_of(own)));
  OSCAR_CHECK(all.size() % count == 0);
  for (std::size_t i = count; i < all.size(); ++i) all[i % count] += all[i];
  if (all.size() > count) all.resize(count);
  return doubles_of(shared.spread(bytes_of(all)));
}

}  // namespace oscar
