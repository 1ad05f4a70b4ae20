// SPDX-License-Identifier: MIT
// Where zoos are, and what one has, for people who choose a set: its index and nothing else is read. What stands there
// is what the publisher says; pull checks the manifest that it names.
#pragma once

#include <optional>
#include <string>

#include "base/status.hpp"
#include "remote/transport.hpp"
#include "zoo/index.hpp"

namespace oscar {

/// Where a zoo is that is read: a folder, file://, http(s)://, or a folder on the Hub. A path to index.json means the
/// folder that it lies in. Throws UsageError.
[[nodiscard]] StoreLocation zoo_location(const std::string& zoo);
/// The zoo that was installed or built with this binary; empty if there is none.
[[nodiscard]] std::filesystem::path installed_zoo();
/// OSCAR_ZOO, else the zoo that was installed or built with this binary. Throws UsageError if there is none.
[[nodiscard]] std::string default_zoo();

struct ListOptions {
  std::optional<std::string> zoo;  // as PullOptions::zoo
  /// A pattern with * or ? is matched with the whole name "ORG/MODEL:TAG", and other text with any part of it. Case
  /// does not count. An empty pattern fits all.
  std::string pattern;
  TransferOptions transfer;
};

/// rows: of each set "name" ("ORG/MODEL:TAG"), "model", "recipe", "parts" ({"coded": {"bits": {"key", "value"},
/// "kld"}}, kld being the mean KL of the model's predictions, nats a token), "readers" (readers_of()), "total_size",
/// "created", "forced", "signed_by" and "manifest_sha256". Texts that the index lacks, or has with another type, are
/// empty, figures null.
struct ZooList {
  std::string zoo;
  std::size_t all = 0;  // sets that the zoo has
  Json rows = Json::array();
};

/// Lists what a zoo has. Throws UsageError, TransportError, and DataError for a malformed index.
[[nodiscard]] ZooList list_zoo(const ListOptions& options, Status& status,
                               const TransportFactory& open = open_transport);

}  // namespace oscar
