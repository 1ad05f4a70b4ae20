// SPDX-License-Identifier: MIT
#include "zoo/list.hpp"

#include <fnmatch.h>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "remote/fetch.hpp"
#include "remote/hub.hpp"
#include "set/set.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar {
namespace {

/// A number, or null; if `otherwise` is a text, a text.
Json at(const Json& summary, const std::string& pointer, const Json& otherwise = nullptr) {
  const Json::json_pointer path(pointer);
  if (!summary.contains(path)) return otherwise;
  const Json& found = summary.at(path);
  return (otherwise.is_string() ? found.is_string() : found.is_number()) ? found : otherwise;
}

bool fits(const std::string& name, const std::string& pattern) {
  const bool whole = pattern.find_first_of("*?") != std::string::npos;
  return ::fnmatch((whole ? pattern : "*" + pattern + "*").c_str(), name.c_str(), FNM_CASEFOLD) == 0;
}

Json row_of(const ZooEntry& entry) {
  const Json& summary = entry.summary;
  Json parts = Json::object();
  for (const std::string name : {kCodedName, kRotationsName, kWithMeansName}) {
    const std::string part = "/parts/" + name, method = "/verification/methods/" + name;
    if (!summary.contains(Json::json_pointer(part))) continue;
    parts[name] = {{"bits", {{"key", at(summary, part + "/bits/key")}, {"value", at(summary, part + "/bits/value")}}},
                   {"kld", at(summary, method + "/model/kld_mean")}};
  }
  return {{"name", entry.model + ":" + entry.tag},
          {"model", at(summary, "/model", "")},
          {"recipe", at(summary, "/recipe", "")},
          {"parts", std::move(parts)},
          {"readers", readers_of(summary)},
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
    location.url += "/" + join_path(hub_files(address), percent_encoded(address.folder));
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
  if (const std::string zoo = environment("OSCAR_ZOO"); !zoo.empty()) return zoo;
  const fs::path zoo = installed_zoo();
  if (zoo.empty()) throw UsageError("no zoo is installed with this oscar", "", "name one with --zoo, or set OSCAR_ZOO");
  return zoo.string();
}

ZooList list_zoo(const ListOptions& options, Status& status, const TransportFactory& open) {
  const StoreLocation zoo = zoo_location(options.zoo ? *options.zoo : default_zoo());
  const auto transport = open(zoo, options.transfer);
  const std::string index = fetch_text(*transport, kIndexName, {0, kMaxDocumentBytes}, options.transfer, status);
  const std::vector<ZooEntry> entries = ZooIndex(index, transport->where(kIndexName)).entries();
  ZooList list{zoo.text(), entries.size()};
  for (const ZooEntry& entry : entries) {
    if (fits(entry.model + ":" + entry.tag, options.pattern)) list.rows.push_back(row_of(entry));
  }
  return list;
}

}  // namespace oscar
