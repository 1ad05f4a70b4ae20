// SPDX-License-Identifier: MIT
// The table of supported architectures: for each model_type, how config.json becomes blocks.
#pragma once

#include <string>

#include "model/config/config.hpp"
#include "model/config/config_file.hpp"

namespace oscar {

/// Adds what published files of this type leave out. Throws DataError that lists the supported types if this is none.
void check_architecture(ConfigFile& file, const std::string& model_type);

/// Fills config.blocks and whatever else depends on the architecture; config has the common numbers already. Throws
/// DataError for a setting that is not supported.
void describe_architecture(const ConfigFile& file, ModelConfig& config);

}  // namespace oscar
