// SPDX-License-Identifier: MIT
// The methods that a set is compared with, other people's mostly, as data. One whose rows stand alone is a Hadamard and
// a row codec, which backends compute; others decode the history of a side.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "measure/kv_method.hpp"

namespace oscar {

/// Rows times a Hadamard, then a row codec.
struct RowCodecs {
  int levels = 4;  // 0: rows stay bfloat16
  bool turn_keys = false, turn_values = false;
  bool whole_rows = false;  // one group a row; else groups of the set's size
  double key_clip = 0, value_clip = 0;
};

struct Peer {
  std::string name;
  /// One line: what it is, and what stands in for what a dump lacks.
  std::string description;
  /// Its authors' windows; {0, 0} where they say nothing.
  Windows windows{0, 0};
  RowCodecs rows = {};
  /// How histories are decoded, in place of `rows`, if they are set.
  SideMethod key = {}, value = {};
  /// Its authors quantise keys before RoPE.
  bool before_rope = false;
  /// What engines that ship it as a cache of their own call it: vLLM's --kv-cache-dtype, llama.cpp's --cache-type-k and
  /// --cache-type-v; empty where none does.
  std::string vllm = {}, llama_cpp = {};
};

/// Returns all of them, in the order of reports: bf16, naive, hadamard, …
[[nodiscard]] const std::vector<Peer>& peers();
/// Throws UsageError that lists the names.
[[nodiscard]] const Peer& peer_named(const std::string& name);

namespace methods {

// Those that decode histories (histories.cpp, where their formulas stand).
[[nodiscard]] std::vector<Peer> rotated_methods();  // QuaRot, RotateKV, OScaR, OptR
[[nodiscard]] std::vector<Peer> kivi_methods();     // KIVI, Kitty
[[nodiscard]] std::vector<Peer> engine_formats();   // TurboQuant of vLLM, llama.cpp, floating-point caches

}  // namespace methods

/// What a layer needs to know to get a baseline.
struct LayerShape {
  int layer_id = 0;
  int head_dim = 0;
  int num_kv_heads = 1;
  int value_dim = 0;  // as in KvLayer, like the next
  std::optional<Rotary> rotary = {};
};

/// Makes a method for these layers. group_size: of naive, hadamard* and int*; others have their own. Throws UsageError
/// as peer_named.
[[nodiscard]] KvMethod make_baseline(const std::string& name, const std::vector<LayerShape>& layers, Windows windows,
                                     int group_size);

/// Returns Sylvester's Hadamard matrices / sqrt(n) on the diagonal, n the largest power of two that divides dim.
[[nodiscard]] MatrixStack hadamard_baseline_matrix(int dim);

}  // namespace oscar
