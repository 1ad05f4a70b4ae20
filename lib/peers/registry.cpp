// SPDX-License-Identifier: MIT
#include <algorithm>
#include <iterator>

#include "peers/families.hpp"

namespace oscar {

const std::vector<SequenceMethod>& sequence_methods() {
  static const std::vector<SequenceMethod> all = [] {
    using namespace methods;
    std::vector<SequenceMethod> list;
    for (const auto family :
         {symmetric_methods, quarot_methods, turboquant_methods, kivi_methods, rotatekv_methods, occam_methods,
          optr_methods, kvquant_methods, skvq_methods, llama_cpp_methods, float_methods, lloyd_max_methods}) {
      std::vector<SequenceMethod> part = family();
      std::move(part.begin(), part.end(), std::back_inserter(list));
    }
    return list;
  }();
  return all;
}

const SequenceMethod* find_sequence_method(const std::string& name) {
  const auto& all = sequence_methods();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const SequenceMethod& each) { return each.name == name; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace oscar
