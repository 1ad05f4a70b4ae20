// SPDX-License-Identifier: MIT
#include "zoo/manage.hpp"

#include "base/atomic_file.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "zoo/file_lock.hpp"
#include "zoo/index.hpp"
#include "zoo/location.hpp"
#include "zoo/publish.hpp"
#include "zoo/render.hpp"

namespace oscar {
namespace {

fs::path folder_of(const std::string& zoo) {
  const StoreLocation location = parse_zoo_location(zoo);
  if (!location.remote) return location.folder;
  throw UsageError("only a zoo in a folder can be looked after", location.text(),
                   "change a copy in a folder, and upload that");
}

ZooIndex read_index(const fs::path& folder) {
  const fs::path path = folder / kIndexName;
  return {read_text(path), path.string()};
}

}  // namespace

fs::path render_zoo_page(const std::string& zoo, const std::string& url, fs::path out) {
  const fs::path folder = folder_of(zoo);
  const ZooIndex index = read_index(folder);
  if (out.empty()) {
    out = folder / "index.html";
    require_inside(folder, out);
  }
  write_file(out, render_zoo(index, url));
  return out;
}

void tag_set(const std::string& zoo, const std::string& name, const std::string& tag, bool force, Status& status) {
  const fs::path folder = folder_of(zoo);
  const SetName from = parse_set_name(name);
  const SetName to = parse_set_name(from.model + ":" + tag);
  const ZooIndex index = read_index(folder);
  const ZooEntry entry = index.require(from, (folder / kIndexName).string());
  const auto taken = index.find(to);
  if (taken && taken->manifest_sha256 != entry.manifest_sha256 && !force) {
    throw UsageError("the zoo has another set under " + to.text(), folder.string(),
                     "choose another tag, or pass --force to move it");
  }
  PublishOptions options;
  options.set = folder / entry.path;
  options.zoo = zoo;
  options.name = to.text();
  options.force = force || entry.forced;
  const PublishResult result = publish(options, status);
  status.notice(result.name + " is " + result.entry.manifest_sha256.substr(0, 12));
}

void deprecate_set(const std::string& zoo, const std::string& name, const std::string& reason, Status& status) {
  const fs::path folder = folder_of(zoo);
  for (const char* own : {kIndexName, kLockName}) require_inside(folder, folder / own);
  const SetName wanted = parse_set_name(name);
  const FileLock lock(folder / kLockName, true);
  ZooIndex index = read_index(folder);
  ZooEntry entry = index.require(wanted, (folder / kIndexName).string());
  entry.deprecated = reason;
  index.put(entry);
  write_json(folder / kIndexName, index.document());
  status.notice(entry.model + ":" + entry.tag + (reason.empty() ? " may be used" : " is deprecated"));
}

}  // namespace oscar
