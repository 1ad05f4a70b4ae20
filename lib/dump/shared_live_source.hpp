// SPDX-License-Identifier: MIT
// A model that several processes run together, each some of the sequences, as a QkvSource: the rows of a layer meet in
// the process that opens it, through files in a folder that all of them see. Rows, and the order they are in, are those
// of open_live(): a fit has the bits of one process. The model runs ahead of who opens its layers by two layers of each
// process at most; that many layers of rows lie in the folder.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "dump/live_source.hpp"

namespace oscar {

struct LiveShare {
  int rank = 0, ranks = 1;
  std::filesystem::path folder;  // of this fit alone
};

class SharedLiveSource : public QkvSource {
 public:
  /// Waits until this process's rows of all layers are there for the others. Throws what the model threw.
  virtual void finish() = 0;
};

/// options.layers: those that the processes open, each exactly one of them. `runner` and `status` must outlive the
/// source. Throws UsageError if there are fewer sequences than processes, and what open_live() throws; open() throws
/// what the model throws, and Interrupted or RankFailed while it waits for others.
[[nodiscard]] std::unique_ptr<SharedLiveSource> open_shared_live(ModelRunner& runner,
                                                                 std::vector<TokenSequence> sequences,
                                                                 const LiveOptions& options, LiveShare share,
                                                                 Status& status);

}  // namespace oscar
