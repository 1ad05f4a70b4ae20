// SPDX-License-Identifier: MIT
#include "fit/fitted_layer.hpp"

#include <doctest/doctest.h>

#include "base/atomic_file.hpp"
#include "base/files.hpp"
#include "fit/fit.hpp"
#include "set/formats.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

using Earlier = PartialFolder::Earlier;

/// A set of one layer, d = 4, that can be written.
RotationPart set_of_one_layer(double first) {
  RotationPart set = unfitted_set(resolve_recipe({.recipe = "hadamard"}), {.recipe = "hadamard"});
  set.layers.resize(1);
  for (SideTransform* side : {&set.layers[0].key, &set.layers[0].value}) side->rotation = MatrixStack::identity(4);
  set.layers[0].key.rotation.data[0] = first;
  return set;
}

/// Keeps layer 0.
void keep_one_layer(const PartialFolder& folder) {
  const RotationPart set = set_of_one_layer(1);
  kept_fit(&folder, set).add(0, {set.layers.front(), ""});
}

Json with_layers(const std::string& first, const std::string& second) {
  return {{"model", "m"}, {PartialFolder::kDataOfLayers, {{"0", first}, {"7", second}}}};
}

}  // namespace

TEST_CASE("of a dump that has changed, layers that are fitted already must be the same, others need not") {
  const test::TemporaryFolder folder;
  const fs::path own = folder / "s.partial";
  const PartialFolder partial(own, with_layers("a", "b"), Earlier::kReplace);
  keep_one_layer(partial);  // layer 0
  CHECK(PartialFolder(own, with_layers("a", "mended"), Earlier::kUse).has(0));
  CHECK(PartialFolder::is_of(own, with_layers("x", "y")));
  CHECK_ERROR(PartialFolder(own, with_layers("other", "mended"), Earlier::kUse), DataError,
              "layer 0 is fitted already, to other data than the dump has now");
  Json another = with_layers("a", "b");
  another["model"] = "n";
  CHECK_ERROR(PartialFolder(own, another, Earlier::kUse), DataError, "is of another: model differ");
  CHECK_FALSE(PartialFolder::is_of(own, another));
  CHECK_FALSE(PartialFolder::is_of(folder / "nowhere", another));
  CHECK_FALSE(PartialFolder(own, with_layers("other", "b"), Earlier::kReplace).has(0));
}

TEST_CASE("a kept layer that changed after it was written is made again, and a notice says so") {
  struct Notices : Status {
    std::string text;
    void notice(const std::string& line) override { text += line; }
  } notices;
  const test::TemporaryFolder folder;
  const Json of = with_layers("a", "b");
  const fs::path own = folder / "s.partial";
  const PartialFolder partial(own, of, Earlier::kReplace);
  keep_one_layer(partial);
  CHECK(PartialFolder(own, of, Earlier::kUse, &notices).has(0));
  CHECK(notices.text.empty());
  std::string content = read_text(partial.file_of(0));
  content[content.size() - 3] = static_cast<char>(content[content.size() - 3] ^ 4);
  write_file(partial.file_of(0), content);
  CHECK_ERROR((void)kept_fit(&partial, {}).take(std::vector{0}), DataError, "changed after it was written");
  CHECK_FALSE(PartialFolder(own, of, Earlier::kUse, &notices).has(0));
  CHECK(notices.text.find("is made again: tensor ") != std::string::npos);
}

TEST_CASE("what a folder of kept layers does not hold itself stays when it is done") {
  const test::TemporaryFolder folder;
  const fs::path own = folder / "s.partial";
  const PartialFolder partial(own, with_layers("a", "b"), Earlier::kReplace);
  keep_one_layer(partial);
  write_file(own / "hidden_2.safetensors", "");
  write_file(own / ".layer_1.safetensors.part.7", "");
  write_file(own / "mine.txt", "dear");
  partial.remove();
  CHECK(list_files(own) == std::vector<fs::path>{"mine.txt"});
  fs::remove(own / "mine.txt");
  partial.remove();
  CHECK_FALSE(fs::exists(own));
}

TEST_CASE("a fitted layer comes back from its file with its bits and its sample, and from memory") {
  const test::TemporaryFolder folder;
  const RotationPart set = set_of_one_layer(0.5);
  const PartialFolder partial(folder / "s.partial", Json::object(), Earlier::kReplace);
  for (const PartialFolder* where : {&partial, static_cast<const PartialFolder*>(nullptr)}) {
    KeptLayers<FittedLayer> kept = kept_fit(where, set);
    CHECK(kept.missing(std::vector{0, 3}) == std::vector{0, 3});
    kept.add(0, {set.layers.front(), "9 keys"});
    CHECK(kept.missing(std::vector{0, 3}) == (where != nullptr ? std::vector{3} : std::vector{0, 3}));
    const FittedLayer back = kept.take(std::vector{0}).front();
    CHECK(back.clip_sample == "9 keys");
    CHECK(back.layer.layer_id == 0);
    CHECK(back.layer.key.rotation.data == set.layers.front().key.rotation.data);
  }
  fs::rename(partial.file_of(0), partial.file_of(3));
  CHECK_ERROR((void)kept_fit(&partial, set).take(std::vector{3}), DataError, "this is not layer 3");
}

}  // namespace oscar
