// SPDX-License-Identifier: MIT
#include "numbers.hpp"

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace oscar {
namespace {

/// CLI11's own name the largest number there is where one is too small.
CLI::Validator number_that(bool (*holds)(double), const std::string& description) {
  return {[holds, description](const std::string& text) {
            double value = 0;
            const bool good = CLI::detail::lexical_cast(text, value) && std::isfinite(value) && holds(value);
            return good ? std::string() : "\"" + text + "\" is not " + description;
          },
          ""};
}

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

/// Power of the unit ("k": 1, "m": 2 …), in whichever case; nothing for other letters.
std::optional<int> power_of(std::string_view letters, std::string_view units, bool bytes) {
  std::string unit;
  for (const char c : letters) unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (bytes && unit == "b") return 0;
  if (bytes && (unit.ends_with("ib") || unit.ends_with("b")) && unit.size() > 1) {
    unit.resize(unit.size() - (unit.ends_with("ib") ? 2 : 1));
  }
  if (!bytes && unit == "b") return 3;  // as in 7B
  const std::size_t at = unit.size() == 1 ? units.find(unit) : std::string_view::npos;
  return at == std::string_view::npos ? std::nullopt : std::optional(static_cast<int>(at) + 1);
}

/// digits x base^power, if it has 63 bits at most.
std::optional<std::int64_t> scaled(std::string_view digits, std::int64_t base, int power) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 0) return std::nullopt;
  for (; power > 0; --power) {
    if (value > std::numeric_limits<std::int64_t>::max() / base) return std::nullopt;
    value *= base;
  }
  return value;
}

/// What is wrong with a number without a unit, which the option's type would take as the next that it can hold.
std::string too_large_or_negative(const std::string& text, bool bytes) {
  std::int64_t value = 0;
  const char* begin = text.data() + (text.front() == '+' ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) return "\"" + text + "\" is too large";
  if (bytes && error == std::errc() && value < 0) return "\"" + text + "\" is below 0";
  return "";
}

/// Text without a unit is left to the option's type, if it can hold it.
CLI::Validator with_units(std::int64_t base, std::string_view units, const std::string& example) {
  const bool bytes = base == 1024;
  return {[=](std::string& text) {
            if (text.empty() || is_letter(text.front())) return std::string();
            if (!is_letter(text.back())) return too_large_or_negative(text, bytes);
            std::size_t digits = text.size();
            while (digits > 0 && is_letter(text[digits - 1])) --digits;
            const auto power = power_of(std::string_view(text).substr(digits), units, bytes);
            const auto value = power ? scaled(std::string_view(text).substr(0, digits), base, *power) : std::nullopt;
            if (!value) return "\"" + text + "\" is no whole number like " + example + ", or too large";
            text = std::to_string(*value);
            return std::string();
          },
          ""};
}

}  // namespace

const CLI::Validator kNonNegative = number_that([](double x) { return x >= 0; }, "a number from 0 on");
const CLI::Validator kPositive = number_that([](double x) { return x > 0; }, "a number above 0");
const CLI::Validator kFinite = number_that([](double) { return true; }, "a finite number");
const CLI::Validator kCount = with_units(1000, "kmg", "30000 or 30k");
const CLI::Validator kSize = with_units(1024, "kmgt", "500000, 500M or 10G");

void take_counts(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    const std::string type = option->get_type_name();
    const bool whole = type.starts_with("INT") || type.starts_with("UINT");
    if (whole && option->get_type_size() > 0) option->transform(kCount);
  }
}

}  // namespace oscar
