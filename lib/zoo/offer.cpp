// SPDX-License-Identifier: MIT
#include "zoo/offer.hpp"

#include "base/errors.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"
#include "zoo/download.hpp"

namespace oscar {
namespace {

SetManifest checked_manifest(std::string text, const ZooEntry& entry, const std::string& where) {
  SetManifest manifest = parse_set_manifest(std::move(text), where);
  if (manifest.total_size != entry.total_size) {
    throw DataError("index and manifest disagree about the size of the set", where, "publish the set again");
  }
  return manifest;
}

}  // namespace

void expect_usual_files(Transport& transport, const std::string& prefix) {
  std::vector<std::string> paths;
  for (const char* name : {"k_rotation_qqt_r_h_pbr.pt", "v_rotation_sst_r_h_pbr.pt", "rotations.h5", "serve.env",
                           "k_clip_per_layer.json"}) {
    paths.push_back(join_path(prefix, name));
  }
  transport.expect(paths);
}

Offer ask_index(Transport& zoo, const SetName& name, bool likely, const TransferOptions& options, Status& status) {
  const std::string where = zoo.where(kIndexName), place = join_path(published_path(name), kManifestName);
  std::vector<std::string> paths{kIndexName};
  if (likely && name.manifest_sha256.empty()) {
    paths.push_back(place);
    expect_usual_files(zoo, published_path(name));
  }
  auto documents = fetch_texts(zoo, paths, kMaxDocumentBytes, options, status);
  Offer offer{ZooIndex(documents[0].required(), where).require(name, where), std::nullopt};
  // Somebody else's, or an older one, does not count.
  if (documents.size() > 1 && documents[1].text.size() == offer.entry.manifest_size &&
      sha256_hex(documents[1].text) == offer.entry.manifest_sha256) {
    offer.manifest = checked_manifest(std::move(documents[1].text), offer.entry, zoo.where(place));
  }
  return offer;
}

SetManifest fetch_manifest(Transport& zoo, const ZooEntry& entry, const TransferOptions& options, Status& status) {
  const std::string path = join_path(entry.path, kManifestName), where = zoo.where(path);
  if (entry.manifest_size > kMaxDocumentBytes) {
    throw DataError(
        "the index announces a manifest of " + plural(static_cast<std::int64_t>(entry.manifest_size), "byte"), where,
        "tell who hosts the zoo");
  }
  std::string text = fetch_text(zoo, path, {entry.manifest_size, entry.manifest_size}, options, status);
  if (sha256_hex(text) != entry.manifest_sha256) {
    throw TransportError("the manifest is not the one that the index names: sha256 differs", where,
                         "run again, since the zoo may be changing; if it stays so, publish the set again");
  }
  return checked_manifest(std::move(text), entry, where);
}

}  // namespace oscar
