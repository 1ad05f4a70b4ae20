// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <bit>
#include <string_view>

#include "base/errors.hpp"
#include "tensor/pt.hpp"

namespace oscar {
namespace {

std::string_view storage_name(DType dtype) {
  const auto* const known = std::ranges::find(kStorages, dtype, &std::pair<std::string_view, DType>::second);
  OSCAR_CHECK(known != kStorages.end());
  return known->first;
}

/// Opcodes of Python's pickletools, by their names there.
class Writer {
 public:
  explicit Writer(std::vector<const Tensor*>& tensors) : tensors_(tensors) {}

  void operator()(std::monostate) { out_ += 'N'; }
  void operator()(bool value) { out_ += value ? '\x88' : '\x89'; }
  void operator()(std::int64_t value) {
    if (value == static_cast<std::int32_t>(value)) {
      out_ += 'J';  // BININT
      append(static_cast<std::int32_t>(value));
    } else {
      out_ += "\x8a\x08";  // LONG1, of 8 bytes
      append(value);
    }
  }
  void operator()(double value) {
    out_ += 'G';  // BINFLOAT, the only number with its highest byte first
    const auto bytes = std::bit_cast<std::array<char, sizeof value>>(value);
    out_.append(bytes.rbegin(), bytes.rend());
  }
  void operator()(const std::string& value) {
    out_ += 'X';  // BINUNICODE
    append(static_cast<std::uint32_t>(value.size()));
    out_ += value;
  }
  void operator()(const PtList& list) {
    out_ += "](";  // EMPTY_LIST, MARK
    for (const PtValue& item : list) add(item);
    out_ += 'e';  // APPENDS
  }
  void operator()(const PtDict& dict) {
    out_ += "}(";  // EMPTY_DICT, MARK
    for (const auto& [key, item] : dict) {
      add(key);
      add(item);
    }
    out_ += 'u';  // SETITEMS
  }
  /// torch._utils._rebuild_tensor_v2(storage, offset, shape, strides, requires_grad, backward_hooks)
  void operator()(const Tensor& tensor) {
    std::vector<std::int64_t> strides(tensor.shape.size(), 1);
    for (std::size_t i = strides.size(); i-- > 1;)
      strides[i - 1] = strides[i] * std::max<std::int64_t>(tensor.shape[i], 1);
    global("torch._utils", "_rebuild_tensor_v2");
    out_ += "((";
    (*this)(std::string("storage"));
    global("torch", storage_name(tensor.dtype));
    (*this)(std::to_string(tensors_.size()));
    (*this)(std::string("cpu"));
    (*this)(tensor.size());
    out_ += "tQ";  // TUPLE, BINPERSID: the storage
    (*this)(std::int64_t{0});
    numbers(tensor.shape);
    numbers(strides);
    (*this)(false);
    global("collections", "OrderedDict");
    out_ += ")RtR";  // EMPTY_TUPLE, REDUCE, TUPLE, REDUCE
    tensors_.push_back(&tensor);
  }
  void operator()(const TensorLocation&) { OSCAR_CHECK(false); }  // of a value that was only located
  void add(const PtValue& value) { std::visit(*this, value.value); }

  [[nodiscard]] std::string finish() { return "\x80\x02" + out_ + '.'; }

 private:
  template <class T>
  void append(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void global(std::string_view module, std::string_view name) {
    out_.append("c").append(module).append("\n").append(name).append("\n");
  }
  void numbers(const std::vector<std::int64_t>& values) {
    out_ += '(';
    for (const std::int64_t value : values) (*this)(value);
    out_ += 't';
  }

  std::vector<const Tensor*>& tensors_;
  std::string out_;
};

}  // namespace

std::string write_pickle(const PtValue& value, std::vector<const Tensor*>& tensors) {
  Writer writer(tensors);
  writer.add(value);
  return writer.finish();
}

}  // namespace oscar
