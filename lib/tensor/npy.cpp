// SPDX-License-Identifier: MIT
#include "tensor/npy.hpp"

#include <array>
#include <charconv>
#include <cstring>
#include <string_view>

#include "base/errors.hpp"
#include "base/files.hpp"

namespace oscar {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

constexpr std::array<std::pair<DType, std::string_view>, 9> kDescriptions{{{DType::kF64, "<f8"},
                                                                           {DType::kF32, "<f4"},
                                                                           {DType::kF16, "<f2"},
                                                                           {DType::kI64, "<i8"},
                                                                           {DType::kI32, "<i4"},
                                                                           {DType::kI16, "<i2"},
                                                                           {DType::kI8, "|i1"},
                                                                           {DType::kU8, "|u1"},
                                                                           {DType::kBool, "|b1"}}};

[[noreturn]] void refuse_npy(const std::string& what, const std::string& path,
                             const std::string& remedy = "save the array again with numpy.save") {
  throw DataError(what, path, remedy);
}

/// The header, a Python dict literal as numpy writes it, and where the payload starts.
struct NpyHeader {
  std::string_view dict;
  std::size_t payload = 0;
};

NpyHeader find_header(std::string_view file, const std::string& path) {
  if (file.substr(0, kMagic.size()) != kMagic || file.size() < 12) refuse_npy("not a .npy file", path);
  const int version = file[6];
  if (version < 1 || version > 3) refuse_npy("unknown .npy version " + std::to_string(version), path);
  std::size_t length = 0;
  std::memcpy(&length, file.data() + 8, version == 1 ? 2 : 4);  // little-endian, as this machine
  const std::size_t begin = version == 1 ? 10 : 12;
  if (length > file.size() - begin) refuse_npy("truncated: the header is longer than the file", path);
  return {file.substr(begin, length), begin + length};
}

/// The text after `'key':`, without leading blanks.
std::string_view member(std::string_view dict, const std::string& key, const std::string& path) {
  const std::size_t at = dict.find("'" + key + "':");
  if (at == std::string_view::npos) refuse_npy("the header has no member " + key, path);
  const std::string_view rest = dict.substr(at + key.size() + 3);
  return rest.substr(std::min(rest.find_first_not_of(' '), rest.size()));
}

DType parse_type(std::string_view text, const std::string& path) {
  const std::string_view quoted =
      text.substr(0, 1) == "'" ? text.substr(1, text.find('\'', 1) - 1) : text.substr(0, 12);
  for (const auto& [dtype, description] : kDescriptions) {
    if (description == quoted) return dtype;
  }
  if (quoted.substr(0, 1) == ">") refuse_npy("big-endian data (" + std::string(quoted) + ")", path);
  refuse_npy("unsupported element type " + std::string(quoted), path,
             "save floats, or integers of a signed type such as int32");
}

/// "(3, 4)", "(3,)" or "()".
std::vector<std::int64_t> parse_shape(std::string_view text, const std::string& path) {
  std::vector<std::int64_t> shape;
  const std::size_t close = text.find(')');
  if (text.substr(0, 1) != "(" || close == std::string_view::npos) refuse_npy("the header has no proper shape", path);
  const std::size_t behind = text.find_first_not_of(' ', close + 1);
  if (behind != text.npos && text[behind] != ',' && text[behind] != '}') {
    refuse_npy("the header has more than a shape where its shape is", path);
  }
  for (std::string_view rest = text.substr(1, close - 1); !rest.empty();) {
    if (rest.front() == ' ' || rest.front() == ',') {
      rest.remove_prefix(1);
      continue;
    }
    std::int64_t size = -1;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), size);
    if (error != std::errc() || size < 0) refuse_npy("the header has no proper shape", path);
    shape.push_back(size);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  }
  return shape;
}

}  // namespace

Tensor read_npy(const std::filesystem::path& path) { return parse_npy(MappedFile(path).bytes(), path.string()); }

Tensor parse_npy(std::span<const std::byte> file, const std::string& where) {
  const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size());
  const auto [dict, payload] = find_header(bytes, where);
  const DType dtype = parse_type(member(dict, "descr", where), where);
  const std::vector<std::int64_t> shape = parse_shape(member(dict, "shape", where), where);
  if (member(dict, "fortran_order", where).substr(0, 5) != "False") {
    refuse_npy("the array is in Fortran order", where, "save numpy.ascontiguousarray(array) instead");
  }
  const auto count = static_cast<std::uint64_t>(num_elements(shape));
  const std::size_t available = bytes.size() - payload;
  if (count > available / size_of(dtype)) {
    refuse_npy("truncated: shape " + shape_text(shape) + " needs more than the " + std::to_string(available) +
                   " bytes that are there",
               where);
  }
  Tensor tensor(dtype, shape);
  if (count > 0) std::memcpy(tensor.data.data(), bytes.data() + payload, tensor.data.size());
  return tensor;
}

}  // namespace oscar
