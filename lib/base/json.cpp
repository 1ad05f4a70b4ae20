// SPDX-License-Identifier: MIT
#include "base/json.hpp"

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/places.hpp"

namespace oscar {
namespace {

constexpr int kMaxDepth = 100;

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  // Documents from outside may nest until a recursive function (dump, a validator) runs out of stack.
  const auto shallow = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) throw DataError("not valid JSON: nested too deeply", where, "write or fetch the file again");
    return true;
  };
  try {
    return Json::parse(text, shallow);
  } catch (const Json::exception& error) {  // syntax, UTF-8, or a number out of range
    throw DataError(std::string("not valid JSON: ") + error.what(), where, "write or fetch the file again");
  }
}

Json read_json(const std::filesystem::path& path) { return parse_json(place_text(path), path.string()); }

void write_json(const std::filesystem::path& path, const Json& document) { write_file(path, document.dump(1) + "\n"); }

}  // namespace oscar
