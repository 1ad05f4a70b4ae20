// SPDX-License-Identifier: MIT
// The texts of schemas/*.schema.json, compiled in by the build.
#pragma once

#include <string_view>

namespace oscar {

/// Text of a schema by its name, for example "oscar.dump.v1"; empty if there is none.
[[nodiscard]] std::string_view schema_source(std::string_view name);

}  // namespace oscar
