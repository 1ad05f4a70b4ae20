// SPDX-License-Identifier: MIT
#include "model/gguf/gguf_model.hpp"

#include <fmt/core.h>

#include <regex>

#include "base/errors.hpp"
#include "base/sha256.hpp"

namespace oscar {
namespace {

namespace fs = std::filesystem;

/// "NAME-00001-of-00003" of a part's name without ".gguf": NAME, 1 and 3.
const std::regex kPart(R"((.*)-(\d{5})-of-(\d{5}))");

}  // namespace

GgufModel::GgufModel(const fs::path& path) : where_(path.string()) {
  open_parts(path);
  const std::optional<std::string> architecture = metadata().text("general.architecture");
  if (!architecture || architecture->empty()) {
    throw DataError("the GGUF file does not say what model it is of: general.architecture is missing", where_,
                    "name the file of a language model, as llama.cpp reads it");
  }
  architecture_ = *architecture;
  for (const auto& [name, file] : parts_) {
    for (const GgufTensor& tensor : file.tensors()) {
      if (tensors_.try_emplace(tensor.name, Place{&file, &tensor}).second) continue;
      throw DataError("two parts of the model have a tensor " + tensor.name, where_, "fetch all parts again");
    }
  }
}

void GgufModel::open_parts(const fs::path& path) {
  parts_.try_emplace(path.filename().string(), path);
  const Json count = metadata().value("split.count");
  if (!count.is_number_integer() || count <= 1) return;
  std::smatch match;
  const std::string stem = path.stem().string();
  if (!std::regex_match(stem, match, kPart)) {
    throw DataError(
        "the file is one of " + count.dump() + " parts, and its name does not say which", where_,
        "give the parts their names back: NAME-00001-of-" + fmt::format("{:05}", count.get<int>()) + ".gguf and so on");
  }
  const int parts = std::stoi(match[3].str());
  if (std::stoi(match[2].str()) != 1 || count != parts) {
    throw DataError("the file is not the first part of the model", where_,
                    fmt::format("name {}-00001-of-{:05}.gguf", match[1].str(), count.get<int>()));
  }
  for (int part = 2; part <= parts; ++part) {
    const std::string name = fmt::format("{}-{:05}-of-{:05}.gguf", match[1].str(), part, parts);
    parts_.try_emplace(name, path.parent_path() / name);
  }
}

std::string GgufModel::config_sha256() const {
  Sha256 hash;
  for (const GgufEntry& entry : metadata().entries()) {
    if (entry.key != "general.architecture" && !entry.key.starts_with(architecture_ + ".")) continue;
    hash.update(std::as_bytes(std::span(entry.key)));
    hash.update(std::as_bytes(std::span(&entry.type, 1)));
    hash.update(entry.value);
  }
  return hash.hex();
}

std::string gguf_model_name(const fs::path& path) {
  const std::string stem = path.stem().string();
  std::smatch match;
  return std::regex_match(stem, match, kPart) ? match[1].str() : stem;
}

}  // namespace oscar
