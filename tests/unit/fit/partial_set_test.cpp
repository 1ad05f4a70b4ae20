// SPDX-License-Identifier: MIT
#include "fit/partial_set.hpp"

#include <doctest/doctest.h>

#include "base/atomic_file.hpp"
#include "base/files.hpp"
#include "fit/fit.hpp"
#include "rotation/formats.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

using Earlier = PartialSet::Earlier;

/// A set of one layer, d = 4, that can be written.
RotationSet set_of_one_layer(double first) {
  RotationSet set = unfitted_set(resolve_recipe({.recipe = "hadamard"}), {.recipe = "hadamard"});
  set.layers.resize(1);
  for (SideTransform* side : {&set.layers[0].key, &set.layers[0].value}) side->rotation = MatrixStack::identity(4);
  set.layers[0].key.rotation.data[0] = first;
  return set;
}

Json fit_with(const fs::path& reference) {
  const FitOptions options{.recipe = "uresidual", .reference_rotation = reference};
  return describe_fit(unfitted_set(resolve_recipe(options), options), options);
}

Json with_layers(const std::string& first, const std::string& second) {
  return {{"model", "m"}, {PartialSet::kDataOfLayers, {{"0", first}, {"7", second}}}};
}

}  // namespace

TEST_CASE("a fit is told from another by what its reference rotation is, not by where it lies") {
  const test::TemporaryFolder folder;
  const auto write = [&](const char* name, double first) {
    write_rotation_set(folder / name, set_of_one_layer(first), {.pt = false, .h5 = true}, true);
    return folder / name;
  };
  const Json fit = fit_with(write("a", 1));
  CHECK(fit_with(write("b", 1)) == fit);
  CHECK(fit_with(write("a", -1)) != fit);
  CHECK(fit["reference_rotation"].get<std::string>().size() == 64);
}

TEST_CASE("of a dump that has changed, layers that are fitted already must be the same, others need not") {
  const test::TemporaryFolder folder;
  const fs::path own = folder / "s.partial";
  const PartialSet partial(own, with_layers("a", "b"), Earlier::kReplace);
  partial.add(set_of_one_layer(1));  // layer 0
  CHECK(PartialSet(own, with_layers("a", "mended"), Earlier::kUse).has(0));
  CHECK(PartialSet::is_of(own, with_layers("x", "y")));
  CHECK_ERROR(PartialSet(own, with_layers("other", "mended"), Earlier::kUse), DataError,
              "layer 0 is fitted already, to other data than the dump has now");
  Json another = with_layers("a", "b");
  another["model"] = "n";
  CHECK_ERROR(PartialSet(own, another, Earlier::kUse), DataError, "is of another: model differ");
  CHECK_FALSE(PartialSet::is_of(own, another));
  CHECK_FALSE(PartialSet::is_of(folder / "nowhere", another));
  CHECK_FALSE(PartialSet(own, with_layers("other", "b"), Earlier::kReplace).has(0));
}

TEST_CASE("a kept layer that changed after it was written is made again, and a notice says so") {
  struct Notices : Status {
    std::string text;
    void notice(const std::string& line) override { text += line; }
  } notices;
  const test::TemporaryFolder folder;
  const Json of = with_layers("a", "b");
  const fs::path own = folder / "s.partial";
  const PartialSet partial(own, of, Earlier::kReplace);
  partial.add(set_of_one_layer(1));
  CHECK(PartialSet(PartialFolder(own, of, Earlier::kUse, &notices)).has(0));
  CHECK(notices.text.empty());
  std::string content = read_text(partial.file_of(0));
  content[content.size() - 3] = static_cast<char>(content[content.size() - 3] ^ 4);
  write_file(partial.file_of(0), content);
  CHECK_ERROR((void)partial.read(0), DataError, "changed after it was written");
  CHECK_FALSE(PartialSet(PartialFolder(own, of, Earlier::kUse, &notices)).has(0));
  CHECK(notices.text.find("is made again: tensor ") != std::string::npos);
}

TEST_CASE("what a folder of kept layers does not hold itself stays when it is done") {
  const test::TemporaryFolder folder;
  const fs::path own = folder / "s.partial";
  const PartialSet partial(own, with_layers("a", "b"), Earlier::kReplace);
  partial.add(set_of_one_layer(1));
  write_file(own / "hidden_2.safetensors", "");
  write_file(own / ".layer_1.safetensors.part.7", "");
  write_file(own / "mine.txt", "dear");
  partial.remove();
  CHECK(list_files(own) == std::vector<fs::path>{"mine.txt"});
  fs::remove(own / "mine.txt");
  partial.remove();
  CHECK_FALSE(fs::exists(own));
}

}  // namespace oscar
