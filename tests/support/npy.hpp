// SPDX-License-Identifier: MIT
// Writes small .npy files for tests, as numpy.save does.
#pragma once

#include <map>
#include <string>

#include "base/files.hpp"
#include "tensor/tensor.hpp"

namespace oscar::test {

/// Version 1.0; types: float32, float64, int32, int64.
inline void write_npy(const std::filesystem::path& path, const Tensor& tensor) {
  static const std::map<DType, std::string> kTypes{
      {DType::kF32, "<f4"}, {DType::kF64, "<f8"}, {DType::kI32, "<i4"}, {DType::kI64, "<i8"}};
  std::string header = "{'descr': '" + kTypes.at(tensor.dtype) + "', 'fortran_order': False, 'shape': (";
  for (const std::int64_t size : tensor.shape) header += std::to_string(size) + ",";
  header += "), }";
  header.resize(117, ' ');
  header += '\n';
  std::string file("\x93NUMPY\x01\x00\x76\x00", 10);
  file += header;
  file.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  write_file(path, file);
}

}  // namespace oscar::test
