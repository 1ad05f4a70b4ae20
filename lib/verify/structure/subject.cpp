// SPDX-License-Identifier: MIT
#include "verify/structure/subject.hpp"

#include "set/one_truth.hpp"
#include "set/set_folder.hpp"

namespace oscar::verify {

SetUnderTest under_test(Set set) {
  SetUnderTest out{set.model,        set.calibration,       set.windows, set.manifest,
                   set.verification, parts_of_readers(set), {},          {}};
  if (set.coded) out.parts.push_back(make_subject(std::move(*set.coded)));
  for (auto& [name, part] : set.rotations) out.parts.push_back(make_subject(name, std::move(part)));
  return out;
}

SetUnderTest open_set(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) {
    Set set = read_set(path, ListedFiles::kChecked);
    std::vector<std::string> found;
    if (!set.manifest.is_null()) found = disagreements(path, set);
    SetUnderTest out = under_test(std::move(set));
    out.contradictions = std::move(found);
    return out;
  }
  RotationFile file = read_rotation_pt(path);
  SetUnderTest out{.model = file.model, .calibration = file.calibration};
  out.parts.push_back(make_subject(path, std::move(file)));
  return out;
}

}  // namespace oscar::verify
