// SPDX-License-Identifier: MIT
#include "verify/inspect/inspect.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/atomic_file.hpp"
#include "base/files.hpp"
#include "support/npy.hpp"
#include "support/support.hpp"
#include "tensor/pt.hpp"

namespace oscar {
namespace {

const std::vector<double> kTurn = {0.6, -0.8, 0.8, 0.6};
const std::vector<double> kIdentity = {1, 0, 0, 1};

PtValue text(const std::string& value) { return {value}; }

PtValue matrix(const std::vector<double>& values) { return {Tensor::from({2, 2}, std::span<const double>(values))}; }

PtValue eigenvalues(const std::vector<double>& values) {
  return {Tensor::from({static_cast<std::int64_t>(values.size())}, std::span<const double>(values))};
}

/// A rotation file with one layer that has these members.
fs::path rotation_file(const test::TemporaryFolder& folder, std::int64_t version, PtDict layer) {
  const PtDict layers = {{PtValue{std::int64_t{3}}, PtValue{std::move(layer)}}};
  const PtDict archive = {{text("format_version"), PtValue{version}},
                          {text("objective"), text("qqt_r_h_pbr")},
                          {text("source_grouping"), text("layer")},
                          {text("layers"), PtValue{layers}}};
  write_pt(folder / "k.pt", PtValue{archive});
  return folder / "k.pt";
}

std::string first_problem(const fs::path& path) {
  const Inspection found = inspect(path);
  return found.problems.empty() ? "" : found.problems.front();
}

}  // namespace

TEST_CASE("what the ranks of a server dumped is one dump, folders and files alike") {
  for (const bool in_files : {true, false}) {
    const test::TemporaryFolder folder;
    for (int rank = 0; rank < 2; ++rank) {
      PtDict part;
      for (const char* name : {"q", "k", "v"}) {
        Tensor rows(DType::kF32, {3, name[0] == 'q' ? 2 : 1, 4});
        std::ranges::fill(rows.values<float>(), static_cast<float>(rank + 1));
        part.push_back({text(name), {rows}});
      }
      part.push_back({text("seq_lens"), {Tensor::from({1}, std::span<const std::int32_t>(std::array{3}))}});
      const fs::path path = folder / ("layer_7_rank" + std::to_string(rank));
      if (in_files) write_pt(fs::path(path) += ".pt", {part});
      for (const PtItem& item : part) {
        if (!in_files) write_pt(path / *item.key.get_if<std::string>() / "1.pt", item.value);
      }
    }
    const Inspection found = inspect(folder.path());
    CHECK(found.kind == "dump of the ranks of a tensor-parallel server");
    CHECK(found.problems.empty());
    CHECK(found.facts["ranks"] == 2);
    CHECK(found.facts["layers"] == Json{7});
    CHECK(found.facts["tokens_per_layer"] == 3);
    CHECK(found.facts["query_heads"] == 4);
    CHECK(found.facts["kv_heads"] == 2);
    fs::remove_all(folder / (in_files ? "layer_7_rank1.pt" : "layer_7_rank1/v"));
    if (in_files) write_file(folder / "layer_7_rank1.pt", "nothing of the kind");
    CHECK_THROWS_AS((void)inspect(folder.path()), DataError);
  }
}

TEST_CASE("an orthogonal matrix with ascending eigenvalues is sound") {
  const test::TemporaryFolder folder;
  const fs::path path =
      rotation_file(folder, 1, {{text("rotation"), matrix(kTurn)}, {text("eigenvalues"), eigenvalues({1, 1.5})}});

  const Inspection found = inspect(path);

  CHECK(found.problems.empty());
  CHECK(found.facts["objective"] == "qqt");
  CHECK(found.facts["composition"] == "r_h_pbr");
  CHECK(found.facts["layers"] == Json::array({3}));
  CHECK(found.facts["eigenvalues"]["mean_effective_rank"].get<double>() == doctest::Approx(1.9602).epsilon(1e-3));
  // bfloat16(0.6)^2 + bfloat16(0.8)^2 = 0.6015625^2 + 0.80078125^2: the deviation that a server sees.
  CHECK(found.facts["largest_deviation_from_orthogonal"]["bfloat16"] == 0.0031280517578125);
}

TEST_CASE("what is wrong with a rotation file is said with its layer") {
  const test::TemporaryFolder folder;
  const auto problem = [&](const PtValue& rotation, const std::vector<double>& values) {
    return first_problem(
        rotation_file(folder, 1, {{text("rotation"), rotation}, {text("eigenvalues"), eigenvalues(values)}}));
  };
  CHECK(problem(matrix({1, 0.1, 0, 1}), {1, 2}).starts_with("layer 3: the inverse of the matrix is not its transpose"));
  CHECK(problem(matrix({NAN, 0, 0, 1}), {1, 2}).starts_with("layer 3: the file holds NaN or infinity"));
  CHECK(problem(matrix(kTurn), {1, INFINITY}).starts_with("layer 3: the file holds NaN or infinity"));
  CHECK(problem(matrix(kTurn), {2, 1}).starts_with("layer 3: eigenvalues are not ascending"));
}

TEST_CASE("with a query side, the two sides must undo each other instead") {
  const test::TemporaryFolder folder;
  const PtValue stretch = matrix({2, 0, 0, 0.5}), inverse = matrix({0.5, 0, 0, 2});
  CHECK(first_problem(rotation_file(folder, 3, {{text("rotation"), stretch}, {text("q_rotation"), inverse}})).empty());
  CHECK(first_problem(rotation_file(folder, 3, {{text("rotation"), stretch}, {text("q_rotation"), matrix(kIdentity)}}))
            .starts_with("layer 3: the read side does not undo the write side"));
}

TEST_CASE("rotation files that cannot be read are errors") {
  const test::TemporaryFolder folder;
  const PtItem turn{text("rotation"), matrix(kTurn)};
  CHECK_THROWS_AS((void)inspect(rotation_file(folder, 4, {turn})), DataError);
  CHECK_ERROR(inspect(rotation_file(folder, 1, {{text("other"), matrix(kTurn)}})), DataError, "\"rotation\"");
  CHECK_THROWS_AS((void)inspect(rotation_file(folder, 1, {{text("rotation"), eigenvalues({1, 2})}})), DataError);
  CHECK_ERROR(inspect(rotation_file(folder, 1, {turn, {text("eigenvalues"), eigenvalues({1})}})), DataError,
              "the number of eigenvalues");
  write_pt(folder / "k.pt",
           PtValue{PtDict{{text("format_version"), PtValue{std::int64_t{1}}}, {text("layers"), PtValue{PtDict{}}}}});
  CHECK_THROWS_AS((void)inspect(folder / "k.pt"), DataError);
}

TEST_CASE("a bare tensor with NaN is not sound") {
  const test::TemporaryFolder folder;
  write_pt(folder / "x.pt", eigenvalues({1, NAN}));
  CHECK(inspect(folder / "x.pt").problems.size() == 1);
  test::write_npy(folder / "x.npy", Tensor::from({2}, std::span<const double>(std::vector<double>{1, INFINITY})));
  CHECK(inspect(folder / "x.npy").problems.size() == 1);
}

TEST_CASE("facts are lines with their values under each other, layers are ranges, files are blocks") {
  const Json file = {{"layers", Json::array({0, 1, 2, 7})}, {"range", {{"min", 0.5}, {"max", 2}}}};
  const Inspection found{"x", {{"k_rotation.pt", file}, {"num_layers", 4}}, {"bad"}};
  CHECK(to_text(found, "p") ==
        "p: x\n"
        "  k_rotation.pt\n"
        "    layers  0-2,7\n"
        "    range   min 0.5, max 2\n"
        "  num layers  4\n"
        "  problem: bad\n"
        "  not sound\n");
}

}  // namespace oscar
