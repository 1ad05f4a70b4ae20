// SPDX-License-Identifier: MIT
#include "tensor/pickle.hpp"

#include <set>

#include "base/errors.hpp"
#include "tensor/pickle_machine.hpp"

namespace oscar {
namespace {

constexpr int kMaxDepth = 64;
/// Objects that a pickle names more than once are built as often, within a limit: a few bytes can name an object twice
/// in another that is named twice, and so on.
constexpr std::size_t kMaxPickleCopies = 16;  // of the bytes of the pickle

using pickle::Node, pickle::Nodes;

class Builder {
 public:
  Builder(std::size_t pickle_bytes, const std::function<Tensor(const PickledTensor&)>& make, const std::string& where)
      : bytes_left_(kMaxPickleCopies * pickle_bytes), make_(make), where_(where) {}

  PtValue build(const Node& node, int depth) {
    if (depth > kMaxDepth) refuse("its values are nested too deep");
    const auto* text = std::get_if<std::string>(&node.value);
    const std::size_t bytes = text != nullptr ? text->size() + 1 : 1;
    if (bytes > bytes_left_) refuse("it names the same values too often");
    bytes_left_ -= bytes;
    return std::visit([&](const auto& value) { return build_value(value, depth); }, node.value);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError("cannot read the archive: " + what, where_, "write the file again with plain values");
  }

  template <class Plain>
  PtValue build_value(const Plain& value, int) {
    return {value};
  }
  PtValue build_value(const pickle::Tuple& tuple, int depth) { return build_list(tuple.items, depth); }
  PtValue build_value(const pickle::List& list, int depth) { return build_list(list.items, depth); }
  PtValue build_value(const pickle::Dict& dict, int depth) {
    PtDict out;
    std::set<std::variant<std::int64_t, std::string>> keys;
    for (std::size_t i = 0; i < dict.items.size(); i += 2) {
      PtItem item{build(*dict.items[i], depth + 1), build(*dict.items[i + 1], depth + 1)};
      const auto* number = item.key.get_if<std::int64_t>();
      const auto* text = item.key.get_if<std::string>();
      if (number == nullptr && text == nullptr) refuse("a dict has a key that is neither a string nor an integer");
      const bool fresh = number != nullptr ? keys.insert(*number).second : keys.insert(*text).second;
      if (!fresh) refuse("a dict has the key " + (number != nullptr ? std::to_string(*number) : *text) + " twice");
      out.push_back(std::move(item));
    }
    return {std::move(out)};
  }
  PtValue build_value(const PickledTensor& tensor, int) { return {make_(tensor)}; }
  PtValue build_value(pickle::Callable, int) { refuse("it holds a function as a value"); }
  PtValue build_value(DType, int) { refuse("it holds a type as a value"); }
  PtValue build_value(const pickle::Storage&, int) { refuse("it holds a storage as a value"); }

  PtValue build_list(const Nodes& items, int depth) {
    PtList out;
    for (const Node* item : items) out.push_back(build(*item, depth + 1));
    return {std::move(out)};
  }

  std::size_t bytes_left_;
  const std::function<Tensor(const PickledTensor&)>& make_;
  const std::string& where_;
};

}  // namespace

PtValue read_pickle(std::span<const char> bytes, const std::function<Tensor(const PickledTensor&)>& make,
                    const std::string& where) {
  std::deque<Node> nodes;
  const Node& value = pickle::run(bytes, where, nodes);
  return Builder(bytes.size(), make, where).build(value, 0);
}

}  // namespace oscar
