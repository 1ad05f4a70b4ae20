// SPDX-License-Identifier: MIT
#include "verify/codebook_file.hpp"
#include "verify/inspect/kinds.hpp"

namespace oscar {

Inspection inspect_codebook_file(const PtValue& archive, const std::string& where) {
  const CodebookFile file = read_codebook_file(archive, where);
  Inspection inspection{"product codebooks of OSCAR (.pt)", {}, file.problems};
  Json& facts = inspection.facts;
  for (const char* name : {"tensor", "rotation", "model"}) {
    if (const std::string said = said_in(archive, name); !said.empty()) facts[name] = said;
  }
  if (!file.shared) facts["layers"] = file.layers;
  const ProductStage& first = file.stages().front();
  facts["head_dim"] = file.head_dim();
  facts["pieces"] = first.pieces;
  facts["centroids"] = first.centroids;
  if (file.stages().size() > 1) facts["residual_centroids"] = file.stages().back().centroids;
  facts["bits_per_value"] = file.codebooks.front().bits();
  return inspection;
}

}  // namespace oscar
