// SPDX-License-Identifier: MIT
#include "base/json.hpp"

#include <unordered_set>
#include <vector>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/places.hpp"

namespace oscar {
namespace {

constexpr int kMaxDepth = 100;
constexpr char kRemedy[] = "write or fetch the file again";

/// Refuses what readers of JSON disagree about, in a pass of its own: the parser takes quadratic time where it asks.
class Strict : public nlohmann::detail::json_sax_acceptor<Json> {
 public:
  Strict(const std::string& where, std::size_t bytes) : where_(where), containers_left_(100'000 + bytes / 8) {}

  bool start_object(std::size_t /*size*/) {
    keys_.emplace_back();
    return start_array(0);
  }
  bool start_array(std::size_t /*size*/) {
    // Documents from outside may nest until a recursive function (dump, a validator) runs out of stack.
    if (++depth_ > kMaxDepth) throw DataError("not valid JSON: nested too deeply", where_, kRemedy);
    // An empty array takes fifty times the memory of its text.
    if (containers_left_-- > 0) return true;
    throw DataError("more arrays and objects than a JSON document of this size holds", where_, kRemedy);
  }
  bool key(std::string& name) {
    if (keys_.back().insert(name).second) return true;
    throw DataError("not valid JSON: the key " + Json(name).dump() + " stands twice in one object", where_, kRemedy);
  }
  bool end_object() {
    keys_.pop_back();
    return end_array();
  }
  bool end_array() { return --depth_ >= 0; }

 private:
  const std::string& where_;
  std::size_t containers_left_;
  int depth_ = 0;
  std::vector<std::unordered_set<std::string>> keys_;  // of the objects that are open
};

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  // The parser takes a zero byte for the end of the text.
  if (text.find('\0') != std::string_view::npos) throw DataError("not valid JSON: a zero byte", where, kRemedy);
  Strict strict(where, text.size());
  try {
    (void)Json::sax_parse(text, &strict);
    return Json::parse(text);
  } catch (const Json::exception& error) {  // syntax, UTF-8, or a number out of range
    // "[json.exception.parse_error.101] parse error at line 1, column 2: …": what stands behind the brackets is for
    // people.
    const std::string_view said = error.what();
    const std::size_t bracket = said.find("] ");
    throw DataError("not valid JSON: " + std::string(said.substr(bracket == said.npos ? 0 : bracket + 2)), where,
                    kRemedy);
  }
}

Json read_json(const std::filesystem::path& path) { return parse_json(place_text(path), path.string()); }

std::string json_text(const Json& document) {
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void write_json(const std::filesystem::path& path, const Json& document) { write_file(path, json_text(document)); }

const Json& member(const Json& json, const std::string& name) {
  static const Json kNull;
  const auto found = json.is_object() ? json.find(name) : json.end();
  return found == json.end() ? kNull : *found;
}

std::string differences(const Json& one, const Json& other) {
  std::string names;
  const auto add = [&](const std::string& name) { names += (names.empty() ? "" : ", ") + name; };
  for (const auto& [name, value] : one.items()) {
    if (!other.contains(name) || other[name] != value) add(name);
  }
  for (const auto& [name, value] : other.items()) {
    if (!one.contains(name)) add(name);
  }
  return names;
}

}  // namespace oscar
