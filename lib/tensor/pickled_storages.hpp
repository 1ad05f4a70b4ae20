// SPDX-License-Identifier: MIT
// The names that pickles of torch.save have for the types of elements.
#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "tensor/dtype.hpp"

namespace oscar {

inline constexpr std::array<std::pair<std::string_view, DType>, 10> kStorages{{{"DoubleStorage", DType::kF64},
                                                                               {"FloatStorage", DType::kF32},
                                                                               {"HalfStorage", DType::kF16},
                                                                               {"BFloat16Storage", DType::kBF16},
                                                                               {"LongStorage", DType::kI64},
                                                                               {"IntStorage", DType::kI32},
                                                                               {"ShortStorage", DType::kI16},
                                                                               {"CharStorage", DType::kI8},
                                                                               {"ByteStorage", DType::kU8},
                                                                               {"BoolStorage", DType::kBool}}};

}  // namespace oscar
