// SPDX-License-Identifier: MIT
// A part of a set as a way to store keys and values.
#pragma once

#include "measure/kv_method.hpp"
#include "set/coded_part.hpp"
#include "set/rotation_part.hpp"

namespace oscar {

/// Returns rotations as a method, which has copies of their matrices. Clip ratios that they do not know are the
/// published constants.
[[nodiscard]] KvMethod method_of(const RotationPart& rotations, Windows windows);
/// Returns the coded cache as a method. Keys that are stored before RoPE are decoded, turned and rounded to bfloat16
/// before attention reads them.
[[nodiscard]] KvMethod method_of(const CodedPart& coded, Windows windows);

}  // namespace oscar
