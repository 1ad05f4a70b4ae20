// SPDX-License-Identifier: MIT
#include "tensor/pt.hpp"

#include <doctest/doctest.h>

#include "base/files.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

PtValue sample() {
  const std::vector<float> values{1, 2, 3, 4};
  PtDict layer{{{std::string("layer_id")}, {std::int64_t{7}}},
               {{std::string("rotation")}, {Tensor::from({2, 2}, std::span(values))}}};
  return {PtDict{{{std::string("format_version")}, {std::int64_t{1}}},
                 {{std::string("objective")}, {std::string("qqt_r_h_pbr")}},
                 {{std::string("scale")}, {0.5}},
                 {{std::string("list")}, {PtList{{true}, {std::monostate{}}}}},
                 {{std::string("layers")}, {PtDict{{{std::int64_t{7}}, {std::move(layer)}}}}}}};
}

}  // namespace

TEST_CASE("a .pt archive gives back what was written") {
  const test::TemporaryFolder folder;
  write_pt(folder / "a.pt", sample());

  const PtValue value = read_pt(folder / "a.pt");

  CHECK(*value.find("format_version")->get_if<std::int64_t>() == 1);
  CHECK(*value.find("objective")->get_if<std::string>() == "qqt_r_h_pbr");
  CHECK(*value.find("scale")->get_if<double>() == 0.5);
  CHECK(value.find("list")->get_if<PtList>()->size() == 2);
  const PtValue* layer = value.find("layers")->find(7);
  REQUIRE(layer != nullptr);
  CHECK(layer->find("rotation")->get_if<Tensor>()->to_doubles() == std::vector<double>{1, 2, 3, 4});
  CHECK(value.find("nothing") == nullptr);
}

TEST_CASE("the same values give the same .pt bytes, whatever the file is called") {
  const test::TemporaryFolder folder;
  write_pt(folder / "a.pt", sample());
  write_pt(folder / "b.pt", sample());
  CHECK(read_text(folder / "a.pt") == read_text(folder / "b.pt"));
}

TEST_CASE("the payload of a bare tensor is where locate says") {
  const test::TemporaryFolder folder;
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  write_pt(folder / "t.pt", {Tensor::from({3, 1, 2}, std::span(values))});

  const TensorLocation location = locate_pt_tensor(folder / "t.pt");

  CHECK(location.dtype == DType::kF32);
  CHECK(location.shape == std::vector<std::int64_t>{3, 1, 2});
  std::vector<float> payload(6);
  read_at(folder / "t.pt", location.offset, std::as_writable_bytes(std::span(payload)));
  CHECK(payload == values);
  CHECK_ERROR((write_pt(folder / "d.pt", sample()), locate_pt_tensor(folder / "d.pt")), DataError, "one bare tensor");
}

TEST_CASE("damaged archives are errors, at whatever byte they end") {
  const test::TemporaryFolder folder;
  write_pt(folder / "a.pt", sample());
  const std::string bytes = read_text(folder / "a.pt");
  for (std::size_t size = 0; size < bytes.size(); size += 97) {
    write_file(folder / "cut.pt", bytes.substr(0, size));
    CHECK_ERROR(read_pt(folder / "cut.pt"), DataError, "cut.pt");
  }
  CHECK_ERROR(read_pt(folder / "none.pt"), DataError, "no such file");
}

TEST_CASE("elements whose checksum differs are an error, and those of another byte order") {
  const test::TemporaryFolder folder;
  write_pt(folder / "a.pt", sample());
  const PtValue located = locate_pt(folder / "a.pt");
  std::string bytes = read_text(folder / "a.pt");
  bytes[located.find("layers")->find(7)->find("rotation")->get_if<TensorLocation>()->offset] ^= 1;
  write_file(folder / "a.pt", bytes);
  CHECK_ERROR(read_pt(folder / "a.pt"), DataError, "data/0 is damaged: its checksum differs");

  std::string archive;
  ZipWriter writer([&](std::string_view part) { archive += part; }, 1);
  writer.add("a/data.pkl", "\x80\x02N.");
  writer.add("a/byteorder", "big");
  writer.finish();
  write_file(folder / "big.pt", archive);
  CHECK_ERROR(read_pt(folder / "big.pt"), DataError, "not little-endian");
  CHECK_ERROR(locate_pt(folder / "big.pt"), DataError, "not little-endian");
}

TEST_CASE("a tensor that claims more elements than its record holds is refused") {
  CHECK_ERROR(read_pt(test::data("malformed/oversized_view.pt")), DataError, "larger than its record");
  CHECK_ERROR(read_pt(test::data("malformed/repeated_element.pt")), DataError, "more elements than the archive");
}

}  // namespace oscar
