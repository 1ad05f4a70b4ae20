// SPDX-License-Identifier: MIT
#include "model/tokenizer/tokens.hpp"

#include <doctest/doctest.h>

#include "base/files.hpp"
#include "base/json.hpp"
#include "base/sha256.hpp"
#include "model/tokenizer/tokenizer.hpp"
#include "support/npy.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

using Sequences = std::vector<TokenSequence>;

constexpr TokenLimits kNoLimit{.seq_len = 1000, .max_tokens = 0, .max_sequences = 0};

}  // namespace

TEST_CASE("each row of a two-dimensional array is a sequence, a vector is one") {
  const test::TemporaryFolder folder;
  const Tensor matrix = Tensor::from({2, 3}, std::vector<std::int32_t>{1, 2, 3, 4, 5, 6});
  test::write_npy(folder / "m.npy", matrix);
  CHECK(read_tokens(folder / "m.npy", kNoLimit) == Sequences{{1, 2, 3}, {4, 5, 6}});
  Tensor vector(DType::kI64, {4});
  for (std::int64_t i = 0; i < 4; ++i) vector.values<std::int64_t>()[static_cast<std::size_t>(i)] = i;
  test::write_npy(folder / "v.npy", vector);
  CHECK(read_tokens(folder / "v.npy", kNoLimit) == Sequences{{0, 1, 2, 3}});
}

TEST_CASE("a .jsonl file has a list of ids a line") {
  const test::TemporaryFolder folder;
  write_file(folder / "t.jsonl", "[1, 2]\n\n[3]\r\n[]\n[4,5,6]");
  CHECK(read_tokens(folder / "t.jsonl", kNoLimit) == Sequences{{1, 2}, {3}, {4, 5, 6}});
}

TEST_CASE("a checkpoint without a tokenizer is refused by what it lacks") {
  const test::TemporaryFolder folder;
  write_file(folder / "notes.txt", "text");
  CHECK_ERROR(read_texts(folder.path(), {folder / "notes.txt"}, kNoLimit), DataError,
              "neither tokenizer.json nor tokenizer.model");
}

TEST_CASE("limits cut long sequences, the last one, and what follows") {
  const test::TemporaryFolder folder;
  write_file(folder / "t.jsonl", "[1,2,3,4,5]\n[6,7]\n[8,9]");
  bool was_cut = false;
  const auto limited = [&](int seq_len, std::int64_t tokens, std::int64_t sequences) {
    was_cut = false;
    return read_tokens(folder / "t.jsonl", {seq_len, tokens, sequences, &was_cut});
  };
  CHECK(limited(2, 0, 0) == Sequences{{1, 2}, {3, 4}, {5}, {6, 7}, {8, 9}});
  CHECK(was_cut);
  CHECK(limited(5, 6, 0) == Sequences{{1, 2, 3, 4, 5}, {6}});
  CHECK_FALSE(was_cut);
  CHECK(limited(10, 5, 0) == Sequences{{1, 2, 3, 4, 5}});
  CHECK(limited(2, 0, 3) == Sequences{{1, 2}, {3, 4}, {5}});
  CHECK(limited(3, 4, 9) == Sequences{{1, 2, 3}, {4}});
}

TEST_CASE("texts are encoded, joined and cut") {
  const test::TemporaryFolder folder;
  write_file(folder / "a.txt", "The secret code");
  write_file(folder / "b.txt", "for <|endoftext|>");
  const fs::path model = test::data("qwen3-2m");
  const Tokenizer tokenizer(model / "tokenizer.json");
  TokenSequence joined = tokenizer.encode("The secret code", "");
  const TokenSequence second = tokenizer.encode("for <|endoftext|>", "");
  joined.insert(joined.end(), second.begin(), second.end());

  CHECK(read_texts(model, {folder / "a.txt", folder / "b.txt"}, kNoLimit) == Sequences{joined});
  const Sequences cut =
      read_texts(model, {folder / "a.txt", folder / "b.txt"}, {.seq_len = 3, .max_tokens = 0, .max_sequences = 2});
  CHECK(cut == Sequences{{joined[0], joined[1], joined[2]}, {joined[3], joined[4], joined[5]}});
  joined.resize(joined.size() - 1);
  const auto size = static_cast<std::int64_t>(joined.size());
  CHECK(read_texts(model, {folder / "a.txt", folder / "b.txt"},
                   {.seq_len = 1000, .max_tokens = size, .max_sequences = 0}) == Sequences{joined});
}

TEST_CASE("each document of a .jsonl file starts a sequence of its own") {
  const test::TemporaryFolder folder;
  const fs::path model = test::data("qwen3-2m");
  const Tokenizer tokenizer(model / "tokenizer.json");
  write_file(folder / "t.jsonl",
             "{\"text\": \"The secret code\"}\n{\"messages\": [{\"role\": \"user\", \"content\": "
             "[{\"type\": \"text\", \"text\": \"for\"}, {\"type\": \"image\"}]}, {\"role\": \"assistant\", "
             "\"content\": null}]}\n");
  const Sequences apart{tokenizer.encode("The secret code", ""), tokenizer.encode("user\nfor\n\n", "")};
  CHECK(read_texts(model, {folder / "t.jsonl"}, kNoLimit) == apart);
  const auto first = static_cast<std::int64_t>(apart[0].size());
  CHECK(read_texts(model, {folder / "t.jsonl"}, {.max_tokens = first + 1, .max_sequences = 0}) ==
        Sequences{apart[0], {apart[1][0]}});
}

TEST_CASE("what a tokenizer puts before texts starts every sequence") {
  const test::TemporaryFolder folder;
  const fs::path model = folder.path();
  Json json = read_json(test::data("qwen3-2m/tokenizer.json"));
  json["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single",
                             {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                              {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}}},
                            {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {7}}}}}}};
  write_json(model / "tokenizer.json", json);
  write_file(folder / "a.txt", "The secret code");
  const TokenSequence ids = Tokenizer(model / "tokenizer.json").encode("The secret code", "");
  REQUIRE(ids.size() >= 3);
  const Sequences cut = read_texts(model, {folder / "a.txt"}, {.seq_len = 2, .max_tokens = 5, .max_sequences = 0});
  CHECK(cut == Sequences{{7, ids[0]}, {7, ids[1]}});
  CHECK(read_texts(model, {folder / "a.txt"}, {.seq_len = 2, .max_tokens = 6, .max_sequences = 0}).size() == 3);
}

TEST_CASE("files that hold no usable tokens are refused") {
  const test::TemporaryFolder folder;
  const auto jsonl = [&](const std::string& text) {
    write_file(folder / "t.jsonl", text);
    return read_tokens(folder / "t.jsonl", kNoLimit);
  };
  CHECK_ERROR(jsonl(""), DataError, "there are no tokens");
  CHECK_ERROR(jsonl("[1]\n[2,\n"), DataError, "t.jsonl, line 2");
  CHECK_ERROR(jsonl("{\"ids\":[1]}"), DataError, "not a list of token ids");
  CHECK_ERROR(jsonl("[1.5]"), DataError, "not a list of token ids");
  CHECK_ERROR(jsonl("[1,-1]"), DataError, "token id -1 is not in");
  CHECK_ERROR(jsonl("[4294967296]"), DataError, "position 0");
  CHECK_ERROR(read_tokens(folder / "t.txt", kNoLimit), UsageError, "use .npy or .jsonl");
  test::write_npy(folder / "f.npy", Tensor(DType::kF32, {2}));
  CHECK_ERROR(read_tokens(folder / "f.npy", kNoLimit), DataError, "expected int32 or int64");
  test::write_npy(folder / "c.npy", Tensor(DType::kI32, {1, 1, 1}));
  CHECK_ERROR(read_tokens(folder / "c.npy", kNoLimit), DataError, "one or two dimensions");
  test::write_npy(folder / "e.npy", Tensor(DType::kI32, {3, 0}));
  CHECK_ERROR(read_tokens(folder / "e.npy", kNoLimit), DataError, "there are no tokens");
  write_file(folder / "bad.txt", "caf\xe9");
  CHECK_ERROR(read_texts(test::data("qwen3-2m"), {folder / "bad.txt"}, kNoLimit), DataError, "bad.txt");
  write_file(folder / "empty.txt", "");
  CHECK_ERROR(read_texts(test::data("qwen3-2m"), {folder / "empty.txt"}, kNoLimit), DataError, "there are no tokens");
  CHECK_ERROR(read_texts(folder.path(), {folder / "empty.txt"}, kNoLimit), DataError, "tokenizer.json");
}

TEST_CASE("calibration data are hashed as lengths of 8 bytes and ids of 4, little-endian") {
  const CalibrationData data = describe({{1, 2}, {258}});
  CHECK(data.sequences == 2);
  CHECK(data.tokens == 3);
  using namespace std::string_literals;
  CHECK(data.data_sha256 == sha256_hex("\x02\0\0\0\0\0\0\0\x01\0\0\0\x02\0\0\0\x01\0\0\0\0\0\0\0\x02\x01\0\0"s));
}

TEST_CASE("of a long text no more is read than the limits need, with the ids of the whole") {
  const test::TemporaryFolder folder;
  const fs::path model = test::data("qwen3-2m");
  std::string text;
  while (text.size() < 3'000'000) text += read_text(test::data("text/pep-0334.txt"));
  write_file(folder / "long.txt", text);
  const TokenSequence all = Tokenizer(model / "tokenizer.json").encode(text, "");
  for (const std::int64_t tokens : {500, 40'000, 300'000}) {
    const Sequences some =
        read_texts(model, {folder / "long.txt"}, {.seq_len = 1 << 30, .max_tokens = tokens, .max_sequences = 0});
    REQUIRE(some.size() == 1);
    CHECK(some.front() == TokenSequence(all.begin(), all.begin() + tokens));
  }
  write_file(folder / "bad_end.txt", text + "caf\xe9");
  CHECK(read_texts(model, {folder / "bad_end.txt"}, {.max_tokens = 500, .max_sequences = 0}).size() == 1);
  CHECK_ERROR(read_texts(model, {folder / "bad_end.txt"}, kNoLimit), DataError, "not UTF-8");
  CHECK_ERROR(read_texts(model, {folder / "long.txt", folder / "none.txt"}, {.max_tokens = 500, .max_sequences = 0}),
              DataError, "no such file");
}

TEST_CASE("a byte order mark is no text, and what is not in UTF-8 says what it is") {
  const test::TemporaryFolder folder;
  const fs::path model = test::data("qwen3-2m");
  const auto read = [&](const std::string& content, const char* name = "t.txt") {
    write_file(folder / name, content);
    return read_texts(model, {folder / name}, kNoLimit);
  };
  CHECK(read("\xEF\xBB\xBFThe secret code") == read("The secret code"));
  CHECK(read("\xEF\xBB\xBF{\"text\": \"The secret code\"}\n", "t.jsonl") == read("The secret code"));
  CHECK_ERROR(read("\xFF\xFET\0h\0"), DataError, "in UTF-16, not in UTF-8");
  CHECK_ERROR(read("\xFE\xFF"), DataError, "in UTF-16");
  CHECK_ERROR(read(std::string("The\0code", 8)), DataError, "there is a zero byte at byte 3");
  CHECK_ERROR(read_texts(model, {"/dev/zero"}, kNoLimit), DataError, "there is a zero byte at byte 0");
  CHECK_ERROR(read_texts(model, {folder.path()}, kNoLimit), DataError, "is a folder");
}

TEST_CASE("lists in .json and conversations are documents, too") {
  const test::TemporaryFolder folder;
  const fs::path model = test::data("qwen3-2m");
  const auto read = [&](const std::string& content) {
    write_file(folder / "t.json", content);
    return read_texts(model, {folder / "t.json"}, kNoLimit);
  };
  write_file(folder / "t.jsonl", R"({"text": "one"}
{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]})");
  const Sequences two = read_texts(model, {folder / "t.jsonl"}, kNoLimit);
  CHECK(two.size() == 2);
  CHECK(read(R"(["one", {"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "u"},
                {"from": "gpt", "value": "a"}]}])") == two);
  CHECK_ERROR(read("{\"text\": \"one\"}"), DataError, "not a list of documents");
  CHECK_ERROR(read("[\"one\", {\"conversations\": [{\"value\": \"s\"}]}]"), DataError, "t.json, document 2");
  CHECK_ERROR(read("[{\"txt\": 1}]"), DataError, "has no \"text\"");
}

}  // namespace oscar
