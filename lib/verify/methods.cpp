// SPDX-License-Identifier: MIT
#include "verify/methods.hpp"

#include <algorithm>
#include <iterator>

namespace oscar::verify {
namespace {

std::vector<std::string> names_of(const std::vector<std::string>& compare) {
  if (compare == std::vector<std::string>{"none"}) return {};
  return compare == std::vector<std::string>{"all"} ? method_names() : compare;
}

}  // namespace

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  std::ranges::transform(peers(), std::back_inserter(names), &Peer::name);
  return names;
}

std::vector<KvMethod> methods_beside(std::vector<KvMethod> parts, const VerifyOptions& options,
                                     const ModelIdentity& model, int group_size) {
  std::vector<LayerShape> shapes;
  for (const auto& [id, layer] : parts.front().layers) {
    shapes.push_back({id, layer.head_dim, std::max(layer.num_kv_heads, model.num_key_value_heads), layer.value_dim});
  }
  const auto rotary =
      model.rope_theta > 0 ? std::optional(plain_rotary(model.rope_theta, shapes.front().head_dim)) : std::nullopt;
  std::vector<KvMethod> methods;
  for (const std::string& name : names_of(options.compare)) {
    const Windows windows = options.own_windows ? peer_named(name).windows : parts.front().windows;
    methods.push_back(make_baseline(name, shapes, windows, group_size, rotary));
  }
  std::ranges::move(parts, std::back_inserter(methods));
  return methods;
}

void list_methods(VerifyReport& report, const std::vector<KvMethod>& methods) {
  constexpr std::int64_t kContext = 131072;  // tokens that bits per element are of
  for (const KvMethod& method : methods) {
    report.methods.push_back(
        {method.name, method.kind, method.description, method.windows, bits_per_element(method, kContext), {}, {}, {}});
  }
}

}  // namespace oscar::verify
