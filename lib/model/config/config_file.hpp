// SPDX-License-Identifier: MIT
// Members of config.json with errors that name the file, and rotary embeddings as it describes them, in older and newer
// spellings.
#pragma once

#include <filesystem>
#include <string>

#include "base/json.hpp"
#include "model/config/config.hpp"

namespace oscar {

class ConfigFile {
 public:
  /// The file's object, or its member "text_config" if it describes the language part of a larger model.
  explicit ConfigFile(const std::filesystem::path& path);
  /// Takes a document that does not lie in a file of its own. where: names it in errors.
  ConfigFile(Json document, std::string where);

  /// Returns an object of the file, with errors that name the file, too.
  [[nodiscard]] ConfigFile part(Json members) const { return {std::move(members), path_}; }

  /// Adds the members that the file lacks.
  void use_defaults(const Json& members);

  [[nodiscard]] const Json& json() const { return json_; }
  [[nodiscard]] bool has(const char* name) const;
  /// Returns the positive whole number of this name. Throws DataError if there is none.
  [[nodiscard]] int dimension(const char* name) const;
  [[nodiscard]] int dimension(const char* name, int otherwise) const { return has(name) ? dimension(name) : otherwise; }
  /// Returns the whole number of this name, which may be 0, or `otherwise` where it is missing. Throws DataError for
  /// anything else.
  [[nodiscard]] int dimension_or_zero(const char* name, int otherwise) const {
    return has(name) && json_.at(name) == 0 ? 0 : dimension(name, otherwise);
  }
  /// Returns the positive number of this name in `parent`. Throws DataError if there is none.
  [[nodiscard]] double positive(const Json& parent, const char* name) const;
  [[nodiscard]] double positive(const char* name) const { return positive(json_, name); }
  [[nodiscard]] double positive(const char* name, double otherwise) const {
    return has(name) ? positive(name) : otherwise;
  }
  [[nodiscard]] bool flag(const char* name, bool otherwise = false) const;
  [[nodiscard]] std::string text(const char* name, const std::string& otherwise) const;

  [[noreturn]] void refuse(const std::string& what, const std::string& remedy = "fetch the checkpoint again") const;
  /// Throws DataError for a setting that this program does not know to execute.
  [[noreturn]] void unsupported(const std::string& what) const;

 private:
  std::string path_;
  Json json_;
};

/// What a model family takes for members that its config.json leaves out. theta 0: it must be there.
struct RopeDefaults {
  double theta = 0;
  double partial = 1;  // of the head
  bool alpha = false;  // "dynamic" may have an "alpha", by which the base grows once and for all
};

/// Reads the rotary embedding of heads of `head_dim` channels in layers of this type ("full_attention",
/// "sliding_attention", …; matters only where the file tells them apart). Throws DataError: a type that is not
/// supported, or a member that is missing.
[[nodiscard]] RopeSpec read_rope(const ConfigFile& file, const std::string& layer_type, int head_dim,
                                 const RopeDefaults& defaults = {});

/// Reads the angle of sliding layers that have one of their own (Gemma 3): nested, or "rope_local_base_freq" in older
/// files.
[[nodiscard]] RopeSpec read_local_rope(const ConfigFile& file, int head_dim);

/// 0.1 * weight * ln(factor) + 1: by how much YaRN sharpens attention for a longer context.
[[nodiscard]] double yarn_scale(double factor, double weight = 1);

}  // namespace oscar
