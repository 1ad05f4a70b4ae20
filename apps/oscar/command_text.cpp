// SPDX-License-Identifier: MIT
#include "command_text.hpp"

#include <algorithm>
#include <cctype>

#include "base/text.hpp"

namespace oscar {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

bool is_plain(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("_-./:,=+@%").find(c) != std::string_view::npos;
}

bool is_port(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// "host/path" of what follows "://".
std::string_view place_of(std::string_view address) {
  const std::string_view authority = address.substr(0, address.find_first_of("/?#"));
  std::size_t at = authority.rfind('@');
  // A password may hold what ends an authority; what stands behind the colon then is no port.
  const std::size_t colon = authority.find(':');
  if (at == std::string_view::npos && colon != std::string_view::npos && !is_port(authority.substr(colon + 1))) {
    at = address.rfind('@');
  }
  if (at != std::string_view::npos) address.remove_prefix(at + 1);
  return address.substr(0, address.find_first_of("?#"));
}

}  // namespace

std::string without_secrets(std::string_view argument) {
  constexpr std::string_view kScheme = "://";
  std::string text;
  for (auto found = argument.find(kScheme); found != std::string_view::npos; found = argument.find(kScheme)) {
    text += argument.substr(0, found + kScheme.size());
    argument.remove_prefix(found + kScheme.size());
    const std::string_view address = argument.substr(0, argument.find_first_of(kSpace));
    text += place_of(address);
    argument.remove_prefix(address.size());
  }
  return text + std::string(argument);
}

std::string command_text(const std::vector<std::string>& arguments) {
  std::string text = "oscar";
  for (const std::string& argument : arguments) {
    const std::string shown = without_secrets(argument);
    const bool plain = !shown.empty() && std::all_of(shown.begin(), shown.end(), is_plain);
    text += " " + (plain ? shown : shell_quoted(shown));
  }
  return text;
}

}  // namespace oscar
