// SPDX-License-Identifier: MIT
// The pickles that torch.save writes (protocol 2): dicts, lists, tuples, numbers, strings, None and tensors. A stack
// machine builds these and knows nothing else: nothing is executed, any other global is refused by its name, and bytes
// that no torch.save wrote end in an error, never in more memory than the file accounts for. (libtorch has one too,
// which trusts the bytes: some make it read beyond its stack, or end the process.) What is written says the same in the
// opcodes that torch.save has.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "tensor/pickled_tensor.hpp"
#include "tensor/pt.hpp"

namespace oscar {

/// The value of a pickle; `make` is called for every tensor in it. where: the file. Throws DataError, as `make` may.
[[nodiscard]] PtValue read_pickle(std::span<const char> pickle, const std::function<Tensor(const PickledTensor&)>& make,
                                  const std::string& where);

/// The pickle of a value. Its tensors come into `tensors`; the elements of the i-th are the record "i".
[[nodiscard]] std::string write_pickle(const PtValue& value, std::vector<const Tensor*>& tensors);

}  // namespace oscar
