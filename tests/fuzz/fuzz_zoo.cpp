// SPDX-License-Identifier: MIT
// What a server may send: an index, a manifest, a signature.
#include "base/files.hpp"
#include "fuzz.hpp"
#include "zoo/index.hpp"
#include "zoo/set_manifest.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using oscar::fuzz::with_text;
  with_text(data, size, [](const std::string& text) {
    const oscar::ZooIndex index(text, "fuzz");
    for (const oscar::ZooEntry& entry : index.entries()) {
      if (!oscar::is_safe_relative_path(entry.path)) std::abort();
    }
  });
  with_text(data, size, [](const std::string& text) {
    for (const oscar::FileDigest& file : oscar::parse_set_manifest(text, "fuzz").files) {
      if (!oscar::is_safe_relative_path(file.path)) std::abort();
    }
  });
  return with_text(data, size, [](const std::string& text) { (void)oscar::check_signatures("x", text, "fuzz"); });
}
