// SPDX-License-Identifier: MIT
#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <set>
#include <variant>

#include "base/errors.hpp"
#include "tensor/pt.hpp"

namespace oscar {
namespace {

constexpr char kPickleRemedy[] = "fetch or write the file again; only zip archives made by torch.save can be read";
constexpr int kProtocol = 2;

/// What shapes and names may have: each tensor keeps copies of its own.
constexpr std::size_t kMostDimensions = 64, kLongestName = 256;

constexpr int kMaxDepth = 64;
/// Objects that a pickle names more than once are built as often, within a limit: a few bytes can name an object twice
/// in another that is named twice, and so on.
constexpr std::size_t kMaxPickleCopies = 16;  // of the bytes of the pickle
/// What a pickle makes, and what is built of it: each takes some hundred times the byte that may ask for it.
constexpr std::size_t kMaxValues = 1U << 20U;

// What the machine computes with: objects that may name each other in circles.

enum class Callable { rebuild_tensor, ordered_dict };
struct Storage {
  DType dtype;
  std::string record;
};
struct Node;
using Nodes = std::vector<Node*>;
struct Tuple {
  Nodes items;
};
struct List {
  Nodes items;
};
struct Dict {
  Nodes items;  // key, value, key, value …
};

struct Node {
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Tuple, List, Dict, Callable, DType, Storage,
               PickledTensor>
      value;
};

/// Runs a pickle: every object that it made comes into `nodes`.
class Machine {
 public:
  Machine(std::span<const char> pickle, const std::string& where, std::deque<Node>& nodes)
      : pickle_(pickle), where_(where), nodes_(nodes) {}

  Node& run() {
    if (*take(1) != '\x80' || *take(1) != kProtocol) refuse("the pickle is not of protocol 2");
    for (;;) {
      const char opcode = *take(1);
      if (opcode == '.') break;
      if (!push_value(opcode) && !fill(opcode) && !remember(opcode) && !call(opcode)) {
        throw DataError("the pickle makes another object than a plain dict, list, number, string or tensor", where_,
                        "save plain values, for a module's state_dict dict(state), or fetch the file again");
      }
    }
    if (stack_.size() != 1 || !marks_.empty()) refuse("the pickle does not end with one value");
    return *stack_.front();
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError("cannot read the archive: " + what, where_, kPickleRemedy);
  }

  // --- bytes
  const char* take(std::uint64_t count) {
    if (count > pickle_.size() - position_) refuse("the pickle ends before what it announces");
    const char* bytes = pickle_.data() + position_;
    position_ += count;
    return bytes;
  }
  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  std::string text(std::uint64_t size) { return {take(size), size}; }
  std::string line() {
    std::string text;
    for (char c = *take(1); c != '\n'; c = *take(1)) text += c;
    return text;
  }
  /// Little-endian two's complement.
  std::int64_t long_number() {
    const auto size = number<std::uint8_t>();
    if (size > sizeof(std::int64_t)) refuse("the pickle has a number of more than 64 bits");
    const char* bytes = take(size);
    std::int64_t value = size > 0 && bytes[size - 1] < 0 ? -1 : 0;
    std::memcpy(&value, bytes, size);
    return value;
  }
  double float_number() {
    std::array<char, sizeof(double)> bytes{};
    const char* big_endian = take(bytes.size());
    std::reverse_copy(big_endian, big_endian + bytes.size(), bytes.begin());
    return std::bit_cast<double>(bytes);
  }

  // --- the stack
  template <class T>
  void push(T value) {
    if (nodes_.size() == kMaxValues) refuse("the pickle makes more than a million values");
    stack_.push_back(&nodes_.emplace_back(Node{std::move(value)}));
  }
  Nodes pop(std::size_t count) {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() - floor < count) refuse("the pickle takes more values than it has");
    const Nodes values(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return values;
  }
  Nodes pop_marked() {
    if (marks_.empty()) refuse("the pickle ends a group that it did not begin");
    Nodes values = pop(stack_.size() - marks_.back());
    marks_.pop_back();
    return values;
  }
  template <class T>
  T& as(Node* node, const char* expected) const {
    T* value = std::get_if<T>(&node->value);
    if (value == nullptr) refuse(std::string("the pickle has another value where it needs ") + expected);
    return *value;
  }
  Node* top() {
    const Nodes value = pop(1);
    stack_.push_back(value.front());
    return value.front();
  }

  // --- the opcodes; false: not one of these
  bool push_value(char opcode) {
    switch (opcode) {
      case 'N':
        return push(std::monostate{}), true;
      case '\x88':
        return push(true), true;
      case '\x89':
        return push(false), true;
      case 'K':
        return push(std::int64_t{number<std::uint8_t>()}), true;
      case 'M':
        return push(std::int64_t{number<std::uint16_t>()}), true;
      case 'J':
        return push(std::int64_t{number<std::int32_t>()}), true;
      case '\x8a':
        return push(long_number()), true;
      case 'G':
        return push(float_number()), true;
      case 'X':
        return push(text(number<std::uint32_t>())), true;
      case ')':
        return push(Tuple{}), true;
      case ']':
        return push(List{}), true;
      case '}':
        return push(Dict{}), true;
      case 't':
        return push(Tuple{pop_marked()}), true;
      case '\x85':
        return push(Tuple{pop(1)}), true;
      case '\x86':
        return push(Tuple{pop(2)}), true;
      case '\x87':
        return push(Tuple{pop(3)}), true;
      default:
        return false;
    }
  }

  bool fill(char opcode) {
    const bool many = opcode == 'e' || opcode == 'u';
    if (opcode == 'a' || opcode == 'e') {
      const Nodes values = many ? pop_marked() : pop(1);
      append(as<List>(top(), "a list").items, values);
    } else if (opcode == 's' || opcode == 'u') {
      const Nodes values = many ? pop_marked() : pop(2);
      if (values.size() % 2 != 0) refuse("the pickle has a key without a value");
      append(as<Dict>(top(), "a dict").items, values);
    } else {
      return false;
    }
    return true;
  }
  static void append(Nodes& items, const Nodes& values) { items.insert(items.end(), values.begin(), values.end()); }

  bool remember(char opcode) {
    switch (opcode) {
      case '(':
        return marks_.push_back(stack_.size()), true;
      case 'q':
        return keep(number<std::uint8_t>()), true;
      case 'r':
        return keep(number<std::uint32_t>()), true;
      case 'h':
        return recall(number<std::uint8_t>()), true;
      case 'j':
        return recall(number<std::uint32_t>()), true;
      default:
        return false;
    }
  }
  void keep(std::size_t place) {
    if (place >= pickle_.size()) refuse("the pickle keeps more objects than it can have");
    if (place >= kept_.size()) kept_.resize(place + 1);
    kept_[place] = top();
  }
  void recall(std::size_t place) {
    if (place >= kept_.size() || kept_[place] == nullptr) refuse("the pickle names an object that it does not have");
    stack_.push_back(kept_[place]);
  }

  bool call(char opcode) {
    if (opcode == 'c') {
      const std::string module = line();
      push_global(module, line());
    } else if (opcode == 'Q') {
      push_storage(as<Tuple>(pop(1).front(), "a storage").items);
    } else if (opcode == 'R') {
      const Nodes call = pop(2);
      const Nodes& arguments = as<Tuple>(call[1], "arguments").items;
      if (as<Callable>(call[0], "a function") == Callable::rebuild_tensor) {
        push_tensor(arguments);
      } else if (arguments.empty()) {
        push(Dict{});
      } else {
        refuse("the pickle makes an OrderedDict in a way that torch.save does not");
      }
    } else {
      return false;
    }
    return true;
  }

  void push_global(const std::string& module, const std::string& name) {
    if (module == "torch._utils" && name == "_rebuild_tensor_v2") return push(Callable::rebuild_tensor);
    if (module == "collections" && name == "OrderedDict") return push(Callable::ordered_dict);
    if (module == "torch" && name.ends_with("Storage")) {
      const auto known = std::ranges::find(kStorages, name, &std::pair<std::string_view, DType>::first);
      if (known != kStorages.end()) return push(known->second);
      throw DataError("tensors of torch." + name + " are not supported", where_,
                      "convert the file to a plain floating-point or integer type");
    }
    throw DataError("the pickle asks for the forbidden global \"" + module + "." + name + "\"", where_,
                    "do not trust this file; rotation files need only dicts, numbers, strings and tensors");
  }

  /// ("storage", type, record, device, number of elements)
  void push_storage(const Nodes& fields) {
    if (fields.size() < 3 || as<std::string>(fields[0], "a storage") != "storage") refuse("the pickle has no storage");
    const auto& record = as<std::string>(fields[2], "a record's name");
    if (record.size() > kLongestName) refuse("the pickle names a record at too great length");
    push(Storage{as<DType>(fields[1], "a type"), record});
  }

  /// (storage, offset, shape, strides, requires_grad, hooks, what else is to be done with the elements)
  void push_tensor(const Nodes& fields) {
    if (fields.size() < 4) refuse("the pickle has a tensor without shape or strides");
    const auto& [dtype, record] = as<Storage>(fields[0], "a storage");
    if (fields.size() > 6 && !as<Dict>(fields[6], "a dict").items.empty()) {
      throw DataError("tensors that negate or conjugate what is stored are not supported", where_,
                      "save them with .resolve_conj().resolve_neg()");
    }
    push(
        PickledTensor{dtype, record, as<std::int64_t>(fields[1], "an offset"), numbers(fields[2]), numbers(fields[3])});
  }
  std::vector<std::int64_t> numbers(Node* tuple) const {
    std::vector<std::int64_t> values;
    const Nodes& items = as<Tuple>(tuple, "a shape").items;
    if (items.size() > kMostDimensions) refuse("the pickle has a tensor of too many dimensions");
    for (Node* item : items) values.push_back(as<std::int64_t>(item, "a number"));
    return values;
  }

  std::span<const char> pickle_;
  const std::string& where_;
  std::size_t position_ = 0;
  std::deque<Node>& nodes_;
  Nodes stack_, kept_;
  std::vector<std::size_t> marks_;
};

/// Makes a value of what the machine computed.
class Builder {
 public:
  Builder(std::size_t pickle_bytes, const std::function<PtValue(const PickledTensor&)>& make, const std::string& where)
      : bytes_left_(kMaxPickleCopies * pickle_bytes), make_(make), where_(where) {}

  PtValue build(const Node& node, int depth) {
    if (depth > kMaxDepth) refuse("its values are nested too deep");
    const auto* text = std::get_if<std::string>(&node.value);
    const std::size_t bytes = text != nullptr ? text->size() + 1 : 1;
    if (bytes > bytes_left_ || values_left_ == 0) refuse("it names the same values too often");
    bytes_left_ -= bytes;
    --values_left_;
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
  PtValue build_value(const Tuple& tuple, int depth) { return build_list(tuple.items, depth); }
  PtValue build_value(const List& list, int depth) { return build_list(list.items, depth); }
  PtValue build_value(const Dict& dict, int depth) {
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
  PtValue build_value(const PickledTensor& tensor, int) { return make_(tensor); }
  PtValue build_value(Callable, int) { refuse("it holds a function as a value"); }
  PtValue build_value(DType, int) { refuse("it holds a type as a value"); }
  PtValue build_value(const Storage&, int) { refuse("it holds a storage as a value"); }

  PtValue build_list(const Nodes& items, int depth) {
    PtList out;
    for (const Node* item : items) out.push_back(build(*item, depth + 1));
    return {std::move(out)};
  }

  std::size_t bytes_left_, values_left_ = kMaxValues;
  const std::function<PtValue(const PickledTensor&)>& make_;
  const std::string& where_;
};

}  // namespace

bool PickledTensor::is_contiguous() const {
  if (num_elements(shape) == 0) return true;
  std::int64_t expected = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

void require_inside(const PickledTensor& view, std::uint64_t record_bytes, const std::string& where) {
  bool inside = view.offset >= 0 && view.strides.size() == view.shape.size();
  std::int64_t end = view.offset;
  for (std::size_t i = 0; inside && i < view.shape.size(); ++i) {
    std::int64_t span = 0;
    inside = view.shape[i] >= 0 && view.strides[i] >= 0 &&
             !__builtin_mul_overflow(view.shape[i] - 1, view.strides[i], &span) &&
             !__builtin_add_overflow(end, span, &end);
  }
  const auto capacity = static_cast<std::int64_t>(record_bytes / size_of(view.dtype));
  if (!inside || (num_elements(view.shape) > 0 && end >= capacity)) {
    throw DataError("a tensor is larger than its record in the archive", where, kPickleRemedy);
  }
}

Tensor gather(const PickledTensor& view, std::span<const std::byte> record) {
  Tensor out(view.dtype, view.shape);
  if (out.data.empty()) return out;
  const std::size_t size = size_of(view.dtype);
  if (view.is_contiguous()) {
    std::memcpy(out.data.data(), record.data() + static_cast<std::size_t>(view.offset) * size, out.data.size());
    return out;
  }
  std::vector<std::int64_t> index(view.shape.size());
  std::int64_t from = view.offset;
  for (std::size_t to = 0; to < out.data.size(); to += size) {
    std::memcpy(out.data.data() + to, record.data() + static_cast<std::size_t>(from) * size, size);
    for (std::size_t i = index.size(); i-- > 0;) {  // the next index, as an odometer counts
      from += view.strides[i];
      if (++index[i] < view.shape[i]) break;
      from -= view.strides[i] * view.shape[i];
      index[i] = 0;
    }
  }
  return out;
}

PtValue read_pickle(std::span<const char> bytes, const std::function<PtValue(const PickledTensor&)>& make,
                    const std::string& where) {
  std::deque<Node> nodes;
  const Node& value = Machine(bytes, where, nodes).run();
  return Builder(bytes.size(), make, where).build(value, 0);
}

}  // namespace oscar
