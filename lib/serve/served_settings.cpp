// SPDX-License-Identifier: MIT
#include "serve/served_settings.hpp"

#include <algorithm>
#include <cstdlib>

#include "base/errors.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"
#include "rotation/formats.hpp"

namespace oscar::serve {
namespace {

namespace fs = std::filesystem;

constexpr char kOwnFolder[] = "oscar-rotations";

/// The environment of the server's processes, as far as the answer tells it.
Json told_environment(const Json& answer) {
  Json told = Json::object();
  const auto take = [&](const Json& state) {
    const auto found = state.is_object() ? state.find("env_vars") : state.end();
    if (state.is_object() && found != state.end() && found->is_object()) told.update(*found);
  };
  take(answer);
  const auto states = answer.is_object() ? answer.find("internal_states") : answer.end();
  if (answer.is_object() && states != answer.end() && states->is_array()) std::ranges::for_each(*states, take);
  return told;
}

bool is_on(const Json& environment, const char* name) {
  const auto found = environment.find(name);
  if (found == environment.end() || !found->is_string()) return false;
  std::string value = found->get<std::string>();
  std::ranges::transform(value, value.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return value == "1" || value == "true" || value == "yes" || value == "y";
}

/// Empty if the file is one of the set's, or is not on this machine.
std::string why_other_file(const fs::path& path, const ServedFiles& files) {
  if (std::ranges::find(path, fs::path(kOwnFolder)) != path.end()) return "which the server made itself at a start";
  std::error_code ignored;
  if (files.empty() || !fs::is_regular_file(path, ignored)) return {};
  const std::string hash = sha256_file(path);
  const bool ours = std::ranges::any_of(files, [&](const auto& file) { return file.second == hash; });
  return ours ? "" : "which is no file of this set";
}

bool same_shapes(const RotationSet& a, const RotationSet& b) {
  return std::ranges::equal(a.layers, b.layers, [](const LayerRotation& x, const LayerRotation& y) {
    return x.layer_id == y.layer_id && x.key.rotation.dim == y.key.rotation.dim &&
           x.value.rotation.dim == y.value.rotation.dim;
  });
}

fs::path hub_home() {
  if (const char* home = std::getenv("HF_HOME"); home != nullptr && *home != '\0') return home;
  const char* user = std::getenv("HOME");
  return user == nullptr ? fs::path() : fs::path(user) / ".cache/huggingface";
}

}  // namespace

std::vector<std::string> why_other_settings(const AskServer& ask, const ServedFiles& files) {
  Json environment;
  try {
    environment = told_environment(ask("/server_info", nullptr));
  } catch (const Error&) {  // servers of other makes have no such page
    return {};
  }
  std::vector<std::string> reasons;
  if (is_on(environment, "SGLANG_OSCAR_CALIBRATION_ACTIVE")) {
    reasons.emplace_back("the server calibrated itself at its start, since it did not find its rotation files");
  }
  for (const char* name : {"SGLANG_OSCAR_K_ROTATION_PATH", "SGLANG_OSCAR_V_ROTATION_PATH"}) {
    const auto found = environment.find(name);
    if (found == environment.end() || !found->is_string()) continue;
    const std::string path = found->get<std::string>(), why = why_other_file(path, files);
    if (!why.empty())
      reasons.push_back("the server has " + std::string(name) + "=" + printable_line(path) + ", " + why);
  }
  return reasons;
}

std::vector<OwnCalibration> own_calibrations(const RotationSet& set) {
  std::vector<OwnCalibration> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(hub_home() / kOwnFolder, ignored)) {
    try {
      RotationSet own = read_rotation_set(entry.path());
      if (same_shapes(own, set)) found.push_back({entry.path(), std::move(own)});
    } catch (const Error&) {  // half written, or something else
    }
  }
  std::ranges::sort(found, {}, &OwnCalibration::folder);
  return found;
}

}  // namespace oscar::serve
