// SPDX-License-Identifier: MIT
// Layers side by side, as many as a backend can use.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "dump/source.hpp"

namespace oscar {

/// task(i, stream of ids[i]) on up to `lanes` threads, which may use parallel_for. Streams are opened in order, as a
/// live model demands. Throws what a task threw first; the others end at their next throw_if_interrupted().
void for_each_layer(QkvSource& source, std::span<const int> ids, int lanes,
                    const std::function<void(std::size_t, std::unique_ptr<LayerStream>)>& task);

}  // namespace oscar
