// SPDX-License-Identifier: MIT
// What a fit of the coded cache keeps in a folder until its set is written: a file of statistics of each layer alone,
// and one of what errors cost in all of them, which is asked before any layer is read.
#pragma once

#include <filesystem>
#include <functional>
#include <map>

#include "fit/coded_fit.hpp"
#include "fit/kept_layers.hpp"

namespace oscar {

/// Returns all that decides what is taken; bits and scopes do not. recipe: CodedData::recipe.
[[nodiscard]] Json describe_coded_data(const QkvSource& source, Windows windows, const Json& recipe);

/// Returns a keeper of layers. about: what they are taken of.
[[nodiscard]] KeptLayers<CodedLayerData> kept_coded(const PartialFolder* folder, CodedData about);

/// Returns the file of costs. By its name PartialFolder checks it and takes it away as it does layers.
[[nodiscard]] std::filesystem::path file_of_costs(const PartialFolder& folder);
/// Returns the costs that are kept, or what `ask` returns, which is kept then.
[[nodiscard]] std::map<int, ErrorCost> kept_costs(const PartialFolder& folder,
                                                  const std::function<std::map<int, ErrorCost>()>& ask);

}  // namespace oscar
