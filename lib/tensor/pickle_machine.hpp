// SPDX-License-Identifier: MIT
// The stack machine of pickle.hpp, down to the objects that a pickle names, which may name each other in circles.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "tensor/pickled_tensor.hpp"

namespace oscar::pickle {

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

/// What the machine computes with.
struct Node {
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Tuple, List, Dict, Callable, DType, Storage,
               PickledTensor>
      value;
};

/// Runs a pickle: every object it made comes into `nodes`, and its value is returned. Throws DataError.
Node& run(std::span<const char> pickle, const std::string& where, std::deque<Node>& nodes);

}  // namespace oscar::pickle
