// SPDX-License-Identifier: MIT
// PyTorch archives (torch.save, zip format), read against an allow-list and written so that
// torch.load(weights_only=True) takes them: a zip archive (zip.hpp) of a pickle (pickle.hpp) and of one member for the
// elements of each tensor. Nothing in an archive is ever executed: only dicts, lists, tuples, numbers, strings, None
// and tensors are built, and any other global is an error that names it. Non-goals: the legacy (non-zip) format,
// compressed members, sparse or quantised tensors, views with strides (they are made contiguous).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "tensor/tensor.hpp"

namespace oscar {

struct PtValue;
/// Lists and tuples.
using PtList = std::vector<PtValue>;
/// A dictionary in file order; keys are strings or integers.
struct PtItem;
using PtDict = std::vector<PtItem>;

struct PtValue {
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Tensor, TensorLocation, PtList, PtDict> value;

  /// The member of a dict under a string key, or under an integer key (which also matches its decimal string); null if
  /// absent or if this is not a dict.
  [[nodiscard]] const PtValue* find(const std::string& key) const;
  [[nodiscard]] const PtValue* find(std::int64_t key) const;
  /// Two values are equal if they are of the same types and hold the same values in the same order.
  [[nodiscard]] bool operator==(const PtValue& other) const;
  template <class T>
  [[nodiscard]] const T* get_if() const {
    return std::get_if<T>(&value);
  }
};

struct PtItem {
  PtValue key, value;
  [[nodiscard]] bool operator==(const PtItem&) const = default;
};

inline bool PtValue::operator==(const PtValue& other) const { return value == other.value; }

/// Reads a whole archive. Throws DataError: missing, truncated, not an archive, a forbidden global.
[[nodiscard]] PtValue read_pt(const std::filesystem::path& path);
/// Reads an archive that holds one bare tensor. Throws DataError if it holds something else.
[[nodiscard]] Tensor read_pt_tensor(const std::filesystem::path& path);
/// Writes atomically.
void write_pt(const std::filesystem::path& path, const PtValue& value);

/// Reads an archive without the elements of its tensors: in the place of each is where it lies. Throws DataError as
/// read_pt does, and for a tensor that is not contiguous.
[[nodiscard]] PtValue locate_pt(const std::filesystem::path& path);
/// Tells where the one tensor of an archive lies, without reading the payload. Throws DataError as read_pt_tensor does,
/// and for a tensor that is not contiguous.
[[nodiscard]] TensorLocation locate_pt_tensor(const std::filesystem::path& path);

}  // namespace oscar
