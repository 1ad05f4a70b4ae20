// SPDX-License-Identifier: MIT
#include "verify/pq_methods.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "peers/codebook_file.hpp"
#include "verify/methods.hpp"
#include "verify/structure/subject.hpp"

namespace oscar::verify {
namespace {

/// "pq_1.0"
std::string pq_name(double bits) {
  const std::string number = fmt::format("{:g}", bits);
  return "pq_" + number + (number.find('.') == std::string::npos ? ".0" : "");
}

void require_layers_of(const KvMethod& set, const KvMethod& rotations, int num_kv_heads, const std::string& where) {
  const auto fails = [&](const std::string& what) {
    throw DataError(what, where, "give the rotations of this model that the codebooks were trained with");
  };
  if (set.layers.size() != rotations.layers.size()) fails("the rotations are of other layers than the set");
  for (const auto& [id, layer] : set.layers) {
    const auto found = rotations.layers.find(id);
    const std::string name = "layer " + std::to_string(id);
    if (found == rotations.layers.end()) fails("the rotations have no " + name);
    const auto fits = [&](const KvSide& side, int dim) {
      const MatrixStack& matrices = side.transform->rotation;
      return matrices.dim == dim &&
             (matrices.count == 1 || matrices.count == std::max(num_kv_heads, layer.num_kv_heads));
    };
    const int value_dim = layer.value_dim > 0 ? layer.value_dim : layer.head_dim;
    if (!fits(found->second.key, layer.head_dim) || !fits(found->second.value, value_dim)) {
      fails("the rotations have heads of another size or number in " + name);
    }
  }
}

/// The set that turns keys and stores values.
KvMethod rotations_of(const ProductCodes& codes, const KvMethod& set, const ModelIdentity& model) {
  if (codes.rotations.empty()) {
    if (set.layers.begin()->second.key.codec.coded == nullptr) return set;
    throw UsageError("product codes are of rotated keys, and a coded set has no rotations of that kind",
                     "--pq-codebook", "give the rotations that they were trained with by --pq-rotations SET");
  }
  const Subject subject = read_subject(codes.rotations);
  const std::string where = codes.rotations.string();
  if (subject.sides.size() != 2) {
    throw DataError("holds rotations of one side", where, "give a set, or a folder with those of keys and values");
  }
  KvMethod method = method_of_set(set_of(subject), set.windows);
  require_layers_of(set, method, model.num_key_value_heads, where);
  return method;
}

CodebookFile read_key_codebooks(const std::filesystem::path& path) {
  const PtValue archive = read_pt(path);
  if (!is_codebook_file(archive)) {
    throw DataError("holds no product codebooks", path.string(), "\"oscar inspect\" says what it is");
  }
  CodebookFile file = read_codebook_file(archive, path.string());
  if (!file.problems.empty()) {
    throw DataError(file.problems.front(), path.string(), "\"oscar inspect\" lists what servers refuse in it");
  }
  if (said_in(archive, "tensor") == "v") {
    throw DataError("the codebooks are of values", path.string(), "give those of keys");
  }
  return file;
}

const ProductCodebook& codebook_of_layer(const CodebookFile& file, int layer, int head_dim, const std::string& where) {
  if (file.head_dim() != head_dim) {
    throw DataError("the codebooks are of heads of " + std::to_string(file.head_dim()) + ", and layer " +
                        std::to_string(layer) + " has heads of " + std::to_string(head_dim),
                    where, "give codebooks of this model");
  }
  if (file.shared) return file.codebooks.front();
  const auto found = std::ranges::find(file.layers, layer);
  if (found == file.layers.end()) {
    throw DataError("no codebook for layer " + std::to_string(layer), where, "give codebooks of all layers");
  }
  return file.codebooks[static_cast<std::size_t>(found - file.layers.begin())];
}

/// The same with keys in product codes.
KvMethod with_product_codes(KvMethod method, const CodebookFile& file, const std::string& where) {
  const double bits = file.codebooks.front().bits();
  method.name = pq_name(bits);
  method.kind = MethodKind::kBaseline;
  for (auto& [id, layer] : method.layers) {
    const ProductCodebook& codebook = codebook_of_layer(file, id, layer.head_dim, where);
    layer.key.method = std::make_shared<const SideMethod>(product_coded(codebook, *layer.key.transform));
    layer.key.transform = nullptr;
    layer.key.codec = {};
  }
  return method;
}

void require_files_for(const std::vector<std::string>& compare, const std::vector<KvMethod>& methods) {
  for (const std::string& name : compare) {
    const auto is_it = [&](const KvMethod& method) { return method.name == name; };
    if (!name.starts_with("pq_") || std::ranges::any_of(methods, is_it)) continue;
    throw UsageError("no codebooks for \"" + name + "\" (" + name.substr(3) + " bits a value)", "--compare",
                     "give them by --pq-codebook FILE; rotation/tools/train_pq_codebooks.py of FutureMLS-Lab/OSCAR "
                     "trains them on a dump and the set's k_rotation file (pq_1.5: with --stage2-centroids 16)");
  }
}

void require_name_of(const std::string& name, const std::vector<std::string>& compare, const std::string& where) {
  const bool many = compare == std::vector<std::string>{"all"} || compare == std::vector<std::string>{"every"};
  if (many || std::ranges::find(compare, name) != compare.end()) return;
  throw UsageError("the codebooks in " + where + " are not compared", "--pq-codebook", "add " + name + " to --compare");
}

}  // namespace

std::vector<KvMethod> pq_methods(const ProductCodes& codes, const std::vector<std::string>& compare,
                                 const KvMethod& set, const ModelIdentity& model) {
  std::vector<KvMethod> methods;
  for (const std::filesystem::path& path : codes.codebooks) {
    const std::string where = path.string();
    KvMethod method = with_product_codes(rotations_of(codes, set, model), read_key_codebooks(path), where);
    require_name_of(method.name, compare, where);
    if (std::ranges::any_of(methods, [&](const KvMethod& other) { return other.name == method.name; })) {
      throw UsageError("two files make " + method.name, "--pq-codebook", "give one file for each number of bits");
    }
    method.description = "keys turned by " + (codes.rotations.empty() ? "this set" : codes.rotations.string()) +
                         " and stored in product codes of " + where +
                         ", whose own bits are not counted; values and windows as the rotations' set has them";
    methods.push_back(std::move(method));
  }
  require_files_for(compare, methods);
  return methods;
}

}  // namespace oscar::verify
