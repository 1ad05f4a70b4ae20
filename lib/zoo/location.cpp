// SPDX-License-Identifier: MIT
#include "zoo/location.hpp"

#include "base/errors.hpp"

namespace oscar {

namespace fs = std::filesystem;

StoreLocation parse_zoo_location(const std::string& text) {
  // Both ends that people paste: "…/zoo/" and "…/zoo/index.json".
  constexpr std::string_view kIndex = "/index.json";
  const bool index = text.ends_with(kIndex);
  return parse_location(index ? text.substr(0, text.size() - kIndex.size()) : text,
                        {"--zoo", "give a folder, file:///…, http://…, https://… or hf://…"});
}

fs::path installed_zoo() {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  for (const char* place : {"../share/oscar/zoo", "zoo"}) {
    fs::path candidate = (folder / place).lexically_normal();
    if (fs::exists(candidate / "index.json")) return candidate;
  }
  return {};
}

std::string default_zoo() {
  if (const std::string zoo = environment({"OSCAR_ZOO"}); !zoo.empty()) return zoo;
  const fs::path zoo = installed_zoo();
  if (zoo.empty()) throw UsageError("no zoo is installed with this oscar", "", "name one with --zoo, or set OSCAR_ZOO");
  return zoo.string();
}

}  // namespace oscar
