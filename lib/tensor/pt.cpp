// SPDX-License-Identifier: MIT
#include "tensor/pt.hpp"

#include "base/atomic_file.hpp"
#include "base/errors.hpp"
#include "base/places.hpp"
#include "base/plugin.hpp"
#include "tensor/pt_plugin.hpp"

namespace oscar {
namespace {

const PtPlugin& plugin() {
  static const PtPlugin* const instance =
      reinterpret_cast<decltype(&oscar_pt_plugin)>(plugin_symbol("tensor_pt", "oscar_pt_plugin"))();
  return *instance;
}

}  // namespace

const PtValue* PtValue::find(const std::string& key) const {
  const auto* dict = get_if<PtDict>();
  if (dict == nullptr) return nullptr;
  for (const auto& [name, member] : *dict) {
    const auto* text = name.get_if<std::string>();
    if (text != nullptr && *text == key) return &member;
  }
  return nullptr;
}

const PtValue* PtValue::find(std::int64_t key) const {
  const auto* dict = get_if<PtDict>();
  if (dict == nullptr) return nullptr;
  for (const auto& [name, member] : *dict) {
    const auto* number = name.get_if<std::int64_t>();
    if (number != nullptr && *number == key) return &member;
  }
  return find(std::to_string(key));
}

void open_pt_support() { (void)plugin(); }

PtValue read_pt(const std::filesystem::path& path) { return plugin().read(*open_place(path), path.string()); }

Tensor read_pt_tensor(const std::filesystem::path& path) {
  PtValue value = read_pt(path);
  auto* tensor = std::get_if<Tensor>(&value.value);
  if (tensor == nullptr) {
    throw DataError("expected an archive with one bare tensor", path.string(), "check that this is a dump's chunk");
  }
  return std::move(*tensor);
}

void write_pt(const std::filesystem::path& path, const PtValue& value) {
  AtomicFile file(path);
  plugin().write(file.temporary_path(), value);
  file.commit();
}

TensorLocation locate_pt_tensor(const std::filesystem::path& path) {
  return plugin().locate(*open_place(path), path.string());
}

}  // namespace oscar
