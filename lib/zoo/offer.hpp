// SPDX-License-Identifier: MIT
// What a zoo offers under a name: the entry of its index, and the manifest that the entry names by its hash.
#pragma once

#include <optional>

#include "base/status.hpp"
#include "remote/transport.hpp"
#include "zoo/index.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar {

struct Offer {
  ZooEntry entry;
  std::optional<SetManifest> manifest;  // if it came already
};

/// Asks for the index and, if `likely` is set, at the same time for the manifest where publish puts it. Throws
/// TransportError, DataError: no such name, a malformed index.
[[nodiscard]] Offer ask_index(Transport& zoo, const SetName& name, bool likely, const TransferOptions& options,
                              Status& status);

/// Lets the transport prepare for the files that a set below `prefix` usually has, before its manifest names them.
void expect_usual_files(Transport& transport, const std::string& prefix);

/// The manifest of an entry. Throws TransportError if it is another one, DataError if it is malformed.
[[nodiscard]] SetManifest fetch_manifest(Transport& zoo, const ZooEntry& entry, const TransferOptions& options,
                                         Status& status);

}  // namespace oscar
