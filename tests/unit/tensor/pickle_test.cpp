// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include "base/files.hpp"
#include "support/support.hpp"
#include "tensor/pt.hpp"

namespace oscar {
namespace {

using namespace std::string_literals;

/// The value of a pickle of protocol 2 with these opcodes; its tensors are zeros of their shapes.
PtValue read(const std::string& opcodes) {
  const std::string pickle = "\200\002"s + opcodes + ".";
  return read_pickle(
      pickle, [](const PickledTensor& tensor) { return PtValue{Tensor(tensor.dtype, tensor.shape)}; }, "a.pt");
}

std::string text(const std::string& value) {
  return "X"s + static_cast<char>(value.size()) + "\0\0\0"s + value;  // up to 255 bytes
}

/// A tensor of two elements in a storage of this type.
std::string tensor(const std::string& type, const std::string& more = "") {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + type + text("0") + text("cpu") +
         "K\002tQK\000K\002\205K\001\205\211ccollections\nOrderedDict\n)R"s + more + "tR";
}

const std::string kFloats = "ctorch\nFloatStorage\n";

}  // namespace

TEST_CASE("a pickle's plain values, containers and tensors") {
  CHECK(read("N").get_if<std::monostate>() != nullptr);
  CHECK(*read("\210").get_if<bool>());
  CHECK(*read("J\376\377\377\377").get_if<std::int64_t>() == -2);
  CHECK(*read("\212\002\000\200"s).get_if<std::int64_t>() == -32768);
  CHECK(*read("\212\005\000\000\000\000\001"s).get_if<std::int64_t>() == std::int64_t{1} << 32);
  CHECK(*read("G\077\340\0\0\0\0\0\0"s).get_if<double>() == 0.5);
  CHECK(*read(text("abc")).get_if<std::string>() == "abc");
  CHECK(read("](K\001K\002eK\003a").get_if<PtList>()->size() == 3);
  CHECK(read("K\001K\002\206").get_if<PtList>()->size() == 2);
  const PtValue dict = read("ccollections\nOrderedDict\n)RK\007" + tensor(kFloats) + "s");
  CHECK(dict.find(7)->get_if<Tensor>()->shape == std::vector<std::int64_t>{2});
  CHECK(read(tensor(kFloats, "}")).get_if<Tensor>() != nullptr);
}

TEST_CASE("an object that a pickle names twice is there twice") {
  const PtValue value = read("](]q\005K\001ah\005e");
  REQUIRE(value.get_if<PtList>()->size() == 2);
  for (const PtValue& list : *value.get_if<PtList>()) CHECK(list.get_if<PtList>()->size() == 1);
}

TEST_CASE("types and functions that rotation files do not need are refused by name") {
  CHECK_ERROR(read(tensor("ctorch\nQUInt8Storage\n")), DataError, "torch.QUInt8Storage are not supported");
  CHECK_ERROR(read(tensor(kFloats, "}" + text("neg") + "\210s")), DataError, "negate or conjugate what is stored");
  CHECK_ERROR(read("ctorch._utils\n_rebuild_qtensor\n"), DataError,
              "forbidden global \"torch._utils._rebuild_qtensor\"");
  CHECK_ERROR(read("ctorch.jit._pickle\nrestore_type_tag\n"), DataError, "forbidden global");
  CHECK_ERROR(read(kFloats), DataError, "a type as a value");
  CHECK_ERROR(read("ccollections\nOrderedDict\n"), DataError, "a function as a value");
}

TEST_CASE("pickles that no torch.save wrote are errors") {
  const char* const kOther = "another value where it needs";
  CHECK_ERROR(read(tensor("K\015")), DataError, kOther);  // a number for a type
  CHECK_ERROR(read("NK\001K\002\206R"), DataError, kOther);
  CHECK_ERROR(read("K\001K\002a"), DataError, kOther);
  CHECK_ERROR(read("}(K\001u"), DataError, "a key without a value");
  CHECK_ERROR(read("}(K\001Nh\001u"), DataError, "an object that it does not have");
  CHECK_ERROR(read("}(K\001NK\001Nu"), DataError, "the key 1 twice");
  CHECK_ERROR(read("}(NNu"), DataError, "neither a string nor an integer");
  CHECK_ERROR(read("e"), DataError, "a group that it did not begin");
  CHECK_ERROR(read("](a"), DataError, "more values than it has");
  CHECK_ERROR(read("(K\001\206"), DataError, "more values than it has");
  CHECK_ERROR(read(""), DataError, "does not end with one value");
  CHECK_ERROR(read("NN"), DataError, "does not end with one value");
  CHECK_ERROR(read("(N"), DataError, "does not end with one value");
  CHECK_ERROR(read("Nr\377\377\377\177"), DataError, "more objects than it can have");
  CHECK_ERROR(read("X\377\377\377\177"), DataError, "ends before");
  CHECK_ERROR(read("\212\011"s + std::string(9, 'x')), DataError, "more than 64 bits");
  CHECK_ERROR(read("\223"), DataError, "another object than");
  CHECK_ERROR(read(text("x") + "2\206"), DataError, "another object than");  // DUP, which copies
  CHECK_ERROR(read("ccollections\nOrderedDict\n)R}" + text("_metadata") + "}sb"), DataError, "dict(state)");
  std::string many = tensor(kFloats);
  many.replace(many.find("K\002\205"), 3, "(" + std::string(200, 'N') + "t");
  CHECK_ERROR(read(many), DataError, "too many dimensions");
}

TEST_CASE("a pickle cannot take more memory or stack than its bytes account for") {
  CHECK_ERROR(read("]q\001h\001a"), DataError, "nested too deep");  // a list that holds itself
  CHECK_ERROR(read("N" + std::string(100'000, '\205')), DataError, "nested too deep");
  std::string doubling = "]q\001";
  for (char i = 1; i < 40; ++i) doubling += "](h"s + i + "h" + i + "eq" + static_cast<char>(i + 1);
  CHECK_ERROR(read("(" + doubling + "t"), DataError, "the same values too often");
  std::string repeated = "](" + text(std::string(200, 'x')) + "q\001";
  for (int i = 0; i < 100; ++i) repeated += "h\001";
  CHECK_ERROR(read(repeated + "e"), DataError, "the same values too often");
  const std::size_t million = std::size_t{1} << 20U;
  CHECK_ERROR(read("(" + std::string(million, 'N') + "t"), DataError, "more than a million values");
  std::string shared = "X\0\0\002\0"s + std::string(131'072, 'x') + "](" + std::string(1000, 'N') + "eq\001";
  for (int i = 0; i < 1100; ++i) shared += "h\001";
  CHECK_ERROR(read("(" + shared + "t"), DataError, "the same values too often");
}

TEST_CASE("a view is checked against its record, and gathered whatever its strides") {
  const std::vector<float> values{0, 1, 2, 3, 4, 5, 6};
  PickledTensor view{DType::kF32, "0", 1, {3, 2}, {1, 3}};
  CHECK_FALSE(view.is_contiguous());
  CHECK(gather(view, std::as_bytes(std::span(values))).to_doubles() == std::vector<double>{1, 4, 2, 5, 3, 6});
  const auto check = [&](std::int64_t offset, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides) {
    require_inside({DType::kF32, "0", offset, std::move(shape), std::move(strides)}, values.size() * sizeof(float),
                   "a.pt");
  };
  CHECK_NOTHROW(check(1, {3, 2}, {1, 3}));
  CHECK_NOTHROW(check(9, {0, 2}, {1, 3}));
  CHECK_ERROR(check(2, {3, 2}, {1, 3}), DataError, "larger than its record");
  CHECK_ERROR(check(-1, {1}, {1}), DataError, "larger than its record");
  CHECK_ERROR(check(0, {2}, {-1}), DataError, "larger than its record");
  CHECK_ERROR(check(0, {2}, {}), DataError, "larger than its record");
  CHECK_ERROR(check(0, {3}, {std::int64_t{1} << 62}), DataError, "larger than its record");
}

}  // namespace oscar
