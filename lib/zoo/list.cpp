// SPDX-License-Identifier: MIT
#include "zoo/list.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "remote/fetch.hpp"
#include "remote/hub.hpp"
#include "set/verdict.hpp"

namespace oscar {
namespace {

Json summary_at(const Json& summary, const char* pointer) {
  const Json::json_pointer path(pointer);
  return summary.contains(path) ? summary.at(path) : Json();
}

std::string text_of_member(const Json& value) { return value.is_string() ? value.get<std::string>() : ""; }

std::optional<double> figure(const Json& value) {
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

/// The KLD of the set itself, not of a method that verify compared it with.
std::optional<double> kld_of(const Json& summary) {
  const Json methods = summary_at(summary, "/verification/methods");
  for (const Json& method : methods.is_object() ? methods : Json::object()) {
    if (text_of_member(summary_at(method, "/kind")) == "this") return figure(summary_at(method, "/model/kld_mean"));
  }
  return std::nullopt;
}

ListedSet listed(ZooEntry entry) {
  const Json& summary = entry.summary;
  const std::optional<Verdict> verdict = recorded_verdict(summary);
  return {.entry = entry,
          .model = text_of_member(summary_at(summary, "/model")),
          .recipe = text_of_member(summary_at(summary, "/recipe")),
          .codec = text_of_member(summary_at(summary, "/codec")),
          .verdict = verdict ? name_of(*verdict) : "not verified",
          .key_bits = figure(summary_at(summary, "/bits/key")),
          .value_bits = figure(summary_at(summary, "/bits/value")),
          .kld = kld_of(summary)};
}

std::string small_letters(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool fits(const ListedSet& set, const std::string& pattern) {
  if (pattern.find_first_of("*?") == std::string::npos) {
    return small_letters(set.name()).find(small_letters(pattern)) != std::string::npos;
  }
  return ::fnmatch(pattern.c_str(), set.name().c_str(), FNM_CASEFOLD) == 0;
}

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

Json row_of(const ListedSet& set) {
  const ZooEntry& entry = set.entry;
  return {{"name", set.name()},
          {"model", set.model},
          {"recipe", set.recipe},
          {"codec", set.codec},
          {"bits", {{"key", or_null(set.key_bits)}, {"value", or_null(set.value_bits)}}},
          {"kld", or_null(set.kld)},
          {"verdict", set.verdict},
          {"total_size", entry.total_size},
          {"created", entry.created},
          {"forced", entry.forced},
          {"signed_by", entry.signed_by},
          {"manifest_sha256", entry.manifest_sha256}};
}

}  // namespace

StoreLocation zoo_location(const std::string& zoo) {
  if (is_hub_address(zoo)) {
    const HubAddress address = parse_hub_address(zoo);
    StoreLocation location = hub_endpoint();
    location.url += "/" + join_path(hub_files(address), address.folder);
    return location;
  }
  // Both ends that people paste: "…/zoo/" and "…/zoo/index.json".
  constexpr std::string_view kIndex = "/index.json";
  return parse_location(zoo.ends_with(kIndex) ? zoo.substr(0, zoo.size() - kIndex.size()) : zoo,
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

ZooList list_zoo(const ListOptions& options, Status& status, const TransportFactory& open) {
  const StoreLocation zoo = zoo_location(options.zoo ? *options.zoo : default_zoo());
  const auto transport = open(zoo, options.transfer);
  const std::string index = fetch_text(*transport, kIndexName, {0, kMaxDocumentBytes}, options.transfer, status);
  const std::vector<ZooEntry> entries = ZooIndex(index, transport->where(kIndexName)).entries();
  ZooList list{zoo.text(), entries.size(), {}};
  for (const ZooEntry& entry : entries) {
    ListedSet set = listed(entry);
    if (fits(set, options.pattern)) list.sets.push_back(std::move(set));
  }
  return list;
}

Json to_json(const ZooList& list) {
  Json sets = Json::array();
  for (const ListedSet& set : list.sets) sets.push_back(row_of(set));
  return {{"zoo", list.zoo}, {"sets", std::move(sets)}};
}

}  // namespace oscar
