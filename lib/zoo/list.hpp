// SPDX-License-Identifier: MIT
// Where zoos are, and what one has, for people who choose a set: its index and nothing else is read. What stands there
// is what the publisher says; pull checks the manifest that it names.
#pragma once

#include <optional>
#include <string>
#include <vector>

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

/// One line of the list. Texts and figures that the index lacks, or has with another type, are empty.
struct ListedSet {
  ZooEntry entry;
  std::string model, recipe, codec;
  std::string verdict;  // verify's, or "not verified"
  std::optional<double> key_bits, value_bits;
  std::optional<double> kld;  // mean KL of the model's predictions, nats a token

  /// "ORG/MODEL:TAG"
  [[nodiscard]] std::string name() const { return entry.model + ":" + entry.tag; }
};

struct ZooList {
  std::string zoo;
  std::size_t all = 0;  // sets that the zoo has
  std::vector<ListedSet> sets;
};

/// Lists what a zoo has. Throws UsageError, TransportError, and DataError for a malformed index.
[[nodiscard]] ZooList list_zoo(const ListOptions& options, Status& status,
                               const TransportFactory& open = open_transport);

/// "oscar zoo list --json": "zoo", and "sets" with the members of ListedSet.
[[nodiscard]] Json to_json(const ZooList& list);

}  // namespace oscar
