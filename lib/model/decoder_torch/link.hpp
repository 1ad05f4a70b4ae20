// SPDX-License-Identifier: MIT
// Links between GPUs: NCCL (nccl_link.cpp), or none where it was built without (no_link.cpp).
#pragma once

#include <c10/core/ScalarType.h>

#include <memory>
#include <string>

#include "model/decoder.hpp"
#include "model/decoder_torch/device.hpp"

namespace oscar {

/// As Decoder::link_place().
[[nodiscard]] std::string link_place(const Device& device);
/// As Decoder::new_link_name(). Throws BackendUnavailable.
[[nodiscard]] std::string new_link_name();
/// Of rows of hidden_size values in the device's type. `device` must outlive it.
[[nodiscard]] std::unique_ptr<HiddenLink> open_link(const Device& device, std::int64_t hidden_size,
                                                    const std::string& name, bool sends);

}  // namespace oscar
