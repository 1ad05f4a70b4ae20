// SPDX-License-Identifier: MIT
#include "verify/inspect/inspect.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "verify/inspect/kinds.hpp"

namespace oscar {
namespace {

constexpr const char* kKnown =
    "give a dump, a rotation set, a model folder, a zoo, or a .pt, .h5, .safetensors, .npy, .gguf or .json file";

Inspection inspect_file(const fs::path& path) {
  const std::uint64_t size = file_size(path);
  std::array<char, 9> head{};
  read_at(path, 0, std::as_writable_bytes(std::span(head).first(std::min<std::uint64_t>(size, head.size()))));
  const std::string_view magic(head.data(), std::min<std::uint64_t>(size, head.size()));
  if (size == 0) throw DataError("the file is empty", path.string(), "write or fetch it again");
  if (magic.starts_with("PK\x03\x04")) return inspect_pt(path);
  if (magic.starts_with("\x93NUMPY")) return inspect_npy(path);
  if (magic.starts_with("\x89HDF\r\n\x1a\n")) return inspect_hdf5(path);
  if (magic.starts_with("GGUF")) return inspect_gguf(path);
  if (magic.size() == 9 && magic[8] == '{') return inspect_safetensors(path);  // after a 64-bit length
  if (magic[0] == '{') return inspect_json(path);
  throw DataError("the first bytes of the file are those of no format that oscar knows", path.string(), kKnown);
}

/// Ascending numbers as "0-3,7".
std::string ranges(const Json& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() &&
           numbers[last + 1].get<std::int64_t>() == numbers[last].get<std::int64_t>() + 1) {
      ++last;
    }
    text += (text.empty() ? "" : ",") + numbers[i].dump() + (last > i ? "-" + numbers[last].dump() : "");
    i = last + 1;
  }
  return text;
}

std::string value_text(const std::string& name, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.4g", value.get<double>());
    return text.data();
  }
  if (name == "layers" && std::ranges::all_of(value, [](const Json& v) { return v.is_number_integer(); })) {
    return ranges(value);
  }
  if (!value.is_structured()) return value.dump();
  std::string text;
  for (const auto& [key, part] : value.items()) {
    text += (text.empty() ? "" : ", ") + (value.is_object() ? key + " " : "") + value_text("", part);
  }
  return text.empty() ? "none" : text;
}

/// One fact a line, values under each other; an object that holds more than plain values becomes an indented block.
void append_facts(const Json& facts, const std::string& indent, std::string& text) {
  const auto is_block = [](const Json& value) {
    return value.is_object() && std::ranges::any_of(value, [](const Json& v) { return v.is_structured(); });
  };
  std::size_t width = 0;
  for (const auto& [name, value] : facts.items()) {
    if (!is_block(value)) width = std::max(width, name.size());
  }
  for (const auto& [name, value] : facts.items()) {
    if (is_block(value)) {
      text += indent + name + "\n";
      append_facts(value, indent + "  ", text);
      continue;
    }
    std::string label = name;
    std::ranges::replace(label, '_', ' ');
    text += indent + label + std::string(width - name.size() + 2, ' ') + value_text(name, value) + "\n";
  }
}

}  // namespace

Inspection inspect(const fs::path& path) {
  const fs::file_status status = fs::status(path);
  if (!fs::exists(status)) throw DataError("there is no such file or folder", path.string(), "check the path");
  return fs::is_directory(status) ? inspect_folder(path) : inspect_file(path);
}

Json to_json(const Inspection& inspection, const fs::path& path) {
  return {{"path", path.string()},
          {"kind", inspection.kind},
          {"sound", inspection.problems.empty()},
          {"problems", inspection.problems},
          {"facts", inspection.facts}};
}

std::string to_text(const Inspection& inspection, const fs::path& path) {
  std::string text = path.string() + ": " + inspection.kind + "\n";
  append_facts(inspection.facts, "  ", text);
  for (const std::string& problem : inspection.problems) text += "  problem: " + problem + "\n";
  return text + (inspection.problems.empty() ? "  sound\n" : "  not sound\n");
}

}  // namespace oscar
