// SPDX-License-Identifier: MIT
#include "zoo/index.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar {
namespace {

constexpr char kTellHost[] = "check that the address is a zoo; tell who hosts it";

/// True for "ORG/MODEL", as the header has it.
bool is_model_name(std::string_view text) {
  const auto slash = text.find('/');
  // A folder called index.json would sit where the zoo keeps its index.
  return slash != std::string_view::npos && is_plain_name(text.substr(0, slash)) &&
         is_plain_name(text.substr(slash + 1)) && text.substr(0, slash) != "index.json";
}

bool is_tag(std::string_view text) { return is_plain_name(text); }

ZooEntry entry_from_json(const Json& json) {
  ZooEntry entry;
  entry.model = json.at("name");
  entry.tag = json.at("tag");
  entry.path = json.at("path");
  entry.manifest_sha256 = json.at("manifest").at("sha256");
  entry.manifest_size = json.at("manifest").at("size");
  entry.total_size = json.at("total_size");
  entry.summary = json.at("summary");
  entry.created = json.at("created");
  entry.forced = json.at("forced");
  entry.signed_by = json.value("signed_by", std::vector<std::string>());
  return entry;
}

Json to_json(const ZooEntry& entry) {
  Json json{{"name", entry.model},
            {"tag", entry.tag},
            {"path", entry.path},
            {"manifest", {{"sha256", entry.manifest_sha256}, {"size", entry.manifest_size}}},
            {"total_size", entry.total_size},
            {"summary", entry.summary},
            {"created", entry.created},
            {"oscar_version", kVersion},
            {"forced", entry.forced}};
  if (!entry.signed_by.empty()) json["signed_by"] = entry.signed_by;
  return json;
}

std::pair<std::string, std::string> key_of(const Json& entry) { return {entry.at("name"), entry.at("tag")}; }

void refuse_unsafe(const Json& entries, const std::string& where) {
  std::set<std::pair<std::string, std::string>> seen;
  for (const Json& json : entries) {
    const bool counted =
        json.at("manifest").at("size").is_number_unsigned() && json.at("total_size").is_number_unsigned();
    if (!counted) throw DataError("the index has a size that is not a whole number", where, kTellHost);
    const ZooEntry entry = entry_from_json(json);
    const std::string name = Json(entry.model + ":" + entry.tag).dump(-1, ' ', true).substr(0, 300);
    if (!is_model_name(entry.model) || !is_tag(entry.tag)) {
      throw DataError("the index has the unusable name " + name, where, kTellHost);
    }
    if (!is_safe_relative_path(entry.path)) {
      throw DataError("the index has an unsafe path for " + name, where, kTellHost);
    }
    if (!seen.emplace(entry.model, entry.tag).second)
      throw DataError("the index has " + name + " twice", where, kTellHost);
  }
}

void refuse_other_version(const Json& document, const std::string& where) {
  const Json schema = member(document, "schema");
  if (!schema.is_string() || schema == kIndexSchema) return;  // validate_json says the rest
  const auto text = schema.get<std::string>();
  if (text.starts_with("oscar.zoo_index.")) {
    throw DataError("the index is written in " + text.substr(0, 64) + ", which this oscar does not know", where,
                    "update oscar");
  }
}

/// Those of `names` that hold the model's name without its organisation: the same model from somebody else, or more
/// than the user wrote.
std::vector<std::string> with_a_part_of(const SetName& name, std::vector<std::string> names) {
  const std::string model = name.model.substr(name.model.find('/') + 1);
  std::erase_if(names, [&](const std::string& known) { return known.find(model) == std::string::npos; });
  return names;
}

/// Whether `zoo` has an index with a set at this path below it.
bool has_set_at(const fs::path& zoo, const std::string& path) {
  std::error_code error;
  const fs::path file = zoo / kIndexName;
  if (!fs::is_regular_file(file, error)) return false;
  try {
    const ZooIndex index(read_text(file), file.string());
    const auto entries = index.entries();
    return std::any_of(entries.begin(), entries.end(), [&](const ZooEntry& entry) { return entry.path == path; });
  } catch (const Error&) {
    return false;  // no index of ours
  }
}

constexpr std::string_view kDigestMark = "@sha256:";

/// Throws DataError as parse_json() does, for what may be the page of any server.
Json index_json(std::string_view text, const std::string& where) {
  try {
    return parse_json(text, where);
  } catch (const DataError& error) {
    throw DataError(std::string("this is not the index of a zoo: ") + error.what(), where, kTellHost);
  }
}

}  // namespace

ZooIndex::ZooIndex() : document_({{"schema", kIndexSchema}, {"entries", Json::array()}}) {}

ZooIndex::ZooIndex(std::string_view text, const std::string& where) : document_(index_json(text, where)) {
  refuse_other_version(document_, where);
  validate_json(document_, kIndexSchema, where);
  refuse_unsafe(document_.at("entries"), where);
}

std::optional<ZooEntry> ZooIndex::find(const SetName& name) const {
  for (const Json& json : document_.at("entries")) {
    ZooEntry entry = entry_from_json(json);
    const bool same =
        name.manifest_sha256.empty() ? entry.tag == name.tag : entry.manifest_sha256 == name.manifest_sha256;
    if (same && entry.model == name.model) return entry;
  }
  return std::nullopt;
}

std::vector<ZooEntry> ZooIndex::entries() const {
  std::vector<ZooEntry> all;
  for (const Json& json : document_.at("entries")) all.push_back(entry_from_json(json));
  return all;
}

ZooEntry ZooIndex::require(const SetName& name, const std::string& where) const {
  if (auto entry = find(name)) return *entry;
  std::vector<std::string> tags, all;
  for (const Json& json : document_.at("entries")) {
    const auto [model, tag] = key_of(json);
    all.push_back(model + ":" + tag);
    if (model == name.model) tags.push_back(all.back());
  }
  std::vector<std::string> near = tags.empty() ? near_names(name.text(), all) : tags;
  if (near.empty()) near = with_a_part_of(name, all);
  near.resize(std::min<std::size_t>(near.size(), 10));
  const std::string remedy = (near.empty() ? "" : "did you mean " + joined(near) + "? ") +
                             (all.empty() ? "the zoo is empty: publish a set first"
                                          : "oscar zoo list, with the same --zoo, shows what it has");
  throw DataError("the zoo has no " + name.text(), where, remedy);
}

void ZooIndex::put(const ZooEntry& entry) {
  Json& entries = document_.at("entries");
  const Json json = to_json(entry);
  // Not a binary search: an index that others wrote need not be sorted.
  const auto same =
      std::find_if(entries.begin(), entries.end(), [&](const Json& other) { return key_of(other) == key_of(json); });
  if (same != entries.end()) {
    *same = json;
    return;
  }
  entries.insert(
      std::find_if(entries.begin(), entries.end(), [&](const Json& other) { return key_of(other) > key_of(json); }),
      json);
}

std::string why_pinned(const fs::path& folder) {
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  if (error) return "";
  if (fs::exists(real / kSignatureName, error)) return "the manifest of this set is signed";
  if (is_sha256(real.filename().string())) return "this set lies in the cache, under the hash of its manifest";
  for (fs::path above = real.parent_path(); above != above.parent_path(); above = above.parent_path()) {
    if (has_set_at(above, real.lexically_relative(above).generic_string())) {
      return "the zoo in " + above.string() + " knows this set by the hash of its manifest";
    }
  }
  return "";
}

std::string SetName::text() const {
  return manifest_sha256.empty() ? model + ":" + tag : model + std::string(kDigestMark) + manifest_sha256;
}

bool is_sha256(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string published_path(const SetName& name) { return name.model + "/" + name.tag; }

namespace {

/// `text` in parts, of which none need be usable.
SetName split_name(const std::string& text) {
  SetName name;
  const auto mark = text.find(kDigestMark);
  const auto colon = text.find(':');
  name.model = text.substr(0, std::min(mark, colon));
  if (mark != std::string::npos && mark < colon) {
    name.manifest_sha256 = text.substr(mark + kDigestMark.size());
  } else {
    name.tag = colon == std::string::npos ? kDefaultTag : text.substr(colon + 1);
  }
  return name;
}

[[noreturn]] void refuse_name(const std::string& text, const std::string& where, const std::string& forms) {
  throw UsageError("\"" + text + "\" is not a name of a set", where,
                   "write " + forms + ", with letters, digits, '.', '_' and '-'");
}

}  // namespace

SetName parse_set_name(const std::string& text) {
  SetName name = split_name(text);
  const bool usable = name.manifest_sha256.empty() ? is_tag(name.tag) : is_sha256(name.manifest_sha256);
  if (!is_model_name(name.model) || !usable) {
    refuse_name(text, "NAME", "ORG/MODEL, ORG/MODEL:TAG or ORG/MODEL@sha256:HEX");
  }
  return name;
}

SetName parse_published_name(const std::string& text) {
  SetName name = split_name(text);
  if (!is_model_name(name.model) || !is_tag(name.tag)) refuse_name(text, "--name", "ORG/MODEL or ORG/MODEL:TAG");
  return name;
}

}  // namespace oscar
