// SPDX-License-Identifier: MIT
// The tokenizer against what Hugging Face tokenizers makes of the same texts.
#include "model/tokenizer/tokenizer.hpp"

#include <doctest/doctest.h>

#include <functional>

#include "base/files.hpp"
#include "base/json.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

using Ids = std::vector<std::int32_t>;

void check_documents(const fs::path& tokenizer_json, const fs::path& documents) {
  const Tokenizer tokenizer(tokenizer_json);
  const Json json = read_json(documents);
  CHECK(json.size() >= 20);
  int number = 0;
  for (const Json& document : json) {
    const std::string where = "document " + std::to_string(number++);
    CHECK_MESSAGE(tokenizer.encode(document.at("text").get<std::string>(), where) == document.at("ids").get<Ids>(),
                  where);
  }
}

/// The sample's tokenizer.json after `change`.
fs::path changed(const test::TemporaryFolder& folder, const std::function<void(Json&)>& change) {
  Json json = read_json(test::data("qwen3-2m/tokenizer.json"));
  change(json);
  write_json(folder / "tokenizer.json", json);
  return folder / "tokenizer.json";
}

Json added_token(const std::string& content, int id, bool normalized) {
  return {{"id", id}, {"content", content}, {"normalized", normalized}, {"special", false}};
}

const Tokenizer& sample() {
  static const Tokenizer tokenizer(test::data("qwen3-2m/tokenizer.json"));
  return tokenizer;
}

}  // namespace

TEST_CASE("the sample's tokenizer gives the ids of the reference") {
  check_documents(test::data("qwen3-2m/tokenizer.json"), test::data("golden/qwen3-2m/tokenizer_docs.json"));
}

TEST_CASE("two tokenizers give the ids of the reference on every document") {
  for (const std::string name : {"qwen3-2m", "qwen3-15m"}) {
    const auto tokenizer = test::shared_data("models/" + name + "/tokenizer.json");
    const auto documents = test::shared_data("golden/" + name + "/tokenizer_docs.json");
    if (!tokenizer || !documents) return;
    check_documents(*tokenizer, *documents);
  }
}

TEST_CASE("merges written as strings mean the same as pairs") {
  const test::TemporaryFolder folder;
  const Tokenizer strings(changed(folder, [](Json& json) {
    for (Json& merge : json["model"]["merges"]) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }));
  const std::string text = read_text(test::data("text/pep-0334.txt"));
  CHECK(strings.encode(text, "") == sample().encode(text, ""));
}

TEST_CASE("encoding stops early with a prefix of the whole") {
  const std::string text = read_text(test::data("text/pep-0334.txt"));
  const Ids all = sample().encode(text, "");
  for (const std::size_t enough : {1, 2, 777}) {
    const Ids some = sample().encode(text, "", enough);
    CHECK(some.size() >= enough);
    CHECK(some.size() < enough + 64);
    CHECK(std::equal(some.begin(), some.end(), all.begin()));
  }
}

TEST_CASE("composed and decomposed text are the same text") {
  CHECK(sample().encode("caf\xc3\xa9", "") == sample().encode("cafe\xcc\x81", ""));
  const test::TemporaryFolder folder;
  const Tokenizer plain(changed(folder, [](Json& json) { json["normalizer"] = nullptr; }));
  CHECK(plain.encode("caf\xc3\xa9", "") != plain.encode("cafe\xcc\x81", ""));
}

TEST_CASE("the longest added token wins, before or after normalization as it says") {
  const test::TemporaryFolder folder;
  const Tokenizer tokenizer(changed(folder, [](Json& json) {
    json["added_tokens"].push_back(added_token("<|", 3000, false));
    json["added_tokens"].push_back(added_token("<|end", 3001, false));
    json["added_tokens"].push_back(added_token("\xc3\xa9", 3002, true));
    json["added_tokens"].push_back(added_token("o\xcc\x88", 3003, false));
  }));
  CHECK(tokenizer.encode("<|endoftext|><|end<|<", "") == Ids{0, 3001, 3000, sample().encode("<", "").front()});
  CHECK(tokenizer.encode("e\xcc\x81", "") == Ids{3002});
  CHECK(tokenizer.encode("\xc3\xa9", "") == Ids{3002});
  CHECK(tokenizer.encode("o\xcc\x88", "") == Ids{3003});
  CHECK(tokenizer.encode("\xc3\xb6", "") != Ids{3003});
}

TEST_CASE("ignore_merges takes a word that is a token as it is") {
  const test::TemporaryFolder folder;
  const auto with_word = [](Json& json) { json["model"]["vocab"]["zqxj"] = 2048; };
  CHECK(Tokenizer(changed(folder, with_word)).encode("zqxj", "").size() > 1);
  const Tokenizer ignoring(changed(folder, [&](Json& json) {
    with_word(json);
    json["model"]["ignore_merges"] = true;
  }));
  CHECK(ignoring.encode("zqxj", "") == Ids{2048});
  CHECK(ignoring.encode(" the", "") == sample().encode(" the", ""));
}

TEST_CASE("ByteLevel alone splits by its own pattern, or not at all") {
  const test::TemporaryFolder folder;
  const auto tokenizer = [&](bool use_regex) {
    return std::make_unique<Tokenizer>(changed(folder, [&](Json& json) {
      json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", use_regex}};
      json["model"]["vocab"]["12"] = 2048;
      json["model"]["vocab"]["2\xc4\xa0"] = 2049;  // "2" and the stand-in of a space
      json["model"]["merges"].insert(json["model"]["merges"].begin(), {{"2", "\xc4\xa0"}, {"1", "2"}});
    }));
  };
  const std::int32_t one = sample().encode("1", "").front(), space = sample().encode(" ", "").front();
  CHECK(tokenizer(true)->encode("12 ", "") == Ids{2048, space});
  CHECK(tokenizer(false)->encode("12 ", "") == Ids{one, 2049});
}

TEST_CASE("white space is what Unicode says it is") {
  for (const char* space : {"\xc2\x85", "\xc2\xa0", "\xe2\x80\xa8", "\xe3\x80\x80"}) {
    const Ids apart = sample().encode(std::string("=") + space, ""), last = sample().encode(space, "");
    CHECK(std::equal(last.begin(), last.end(), apart.begin() + 1, apart.end()));
  }
  // U+180E was white space once. It ends a run of white space instead of joining it: "\\s+(?!\\S)" leaves one space.
  const Ids ids = sample().encode("   \xe1\xa0\x8e", "");
  const Ids two = sample().encode("  ", "");
  CHECK(std::equal(two.begin(), two.end(), ids.begin()));
}

TEST_CASE("very long words and lines are encoded in reasonable time") {
  const std::size_t size = 300'000;
  for (const char c : {'a', ' ', '\n', '=', '\xff'}) {
    const std::string text = c == '\xff' ? std::string(size, 'x') + " y" : std::string(size, c);
    CHECK(sample().encode(text, "").size() > 1000);
  }
}

TEST_CASE("text that is not UTF-8 is refused with the offset of the first bad byte") {
  CHECK(sample().encode("", "").empty());
  for (const auto& [text, offset] :
       std::vector<std::pair<std::string, std::string>>{{"ab\xff"
                                                         "c",
                                                         "2"},
                                                        {"\xc3", "0"},
                                                        {"x\xed\xa0\x80", "1"},
                                                        {"\xc0\x80", "0"},
                                                        {"\xc3\xa9\xf4\x90\x80\x80", "2"}}) {
    CHECK_ERROR(sample().encode(text, "notes.txt"), DataError, "not UTF-8 at byte " + offset + " | notes.txt");
  }
}

TEST_CASE("a tokenizer.json with features that are not supported names them") {
  const test::TemporaryFolder folder;
  const auto refused = [&](const std::function<void(Json&)>& change, const char* reason) {
    CHECK_ERROR(Tokenizer(changed(folder, change)), DataError, reason);
  };
  CHECK_ERROR(Tokenizer("/nowhere/tokenizer.json"), DataError, "no such file");
  refused([](Json& j) { j = Json::array(); }, "is not a JSON object");
  refused([](Json& j) { j["normalizer"]["type"] = "NFKC"; }, "\"normalizer\" \"NFKC\" is not supported");
  refused([](Json& j) { j["pre_tokenizer"] = nullptr; }, "without ByteLevel");
  refused([](Json& j) { j["pre_tokenizer"]["pretokenizers"][1]["type"] = "Whitespace"; },
          "pretokenizers[1]\" \"Whitespace\"");
  refused([](Json& j) { j["pre_tokenizer"]["pretokenizers"].erase(1); }, "without ByteLevel");
  refused([](Json& j) { j["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; }, "add_prefix_space");
  refused([](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }, "behavior\" \"Removed\"");
  refused([](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["invert"] = true; }, "invert\" true");
  refused([](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", "x"}}; }, "without a Regex");
  refused([](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; }, "cannot compile");
  refused([](Json& j) { j["post_processor"] = {{"type", "BertProcessing"}}; }, "\"post_processor\"");
  refused([](Json& j) { j["model"]["type"] = "Unigram"; }, "model.type");
  refused([](Json& j) { j["model"]["dropout"] = 0.1; }, "model.dropout");
  refused([](Json& j) { j["model"]["byte_fallback"] = true; }, "byte_fallback");
  refused([](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "end_of_word_suffix");
  refused([](Json& j) { j["added_tokens"][0]["single_word"] = true; }, "single_word");
  refused([](Json& j) { j["added_tokens"][0]["id"] = -1; }, "has an id");
  refused([](Json& j) { j["model"]["vocab"] = 3; }, "model.vocab");
  refused([](Json& j) { j["model"]["vocab"]["a"] = "x"; }, "has an id");
  refused([](Json& j) { j["model"]["merges"][5] = 3; }, "model.merges[5]\" is not a pair");
  refused([](Json& j) { j["model"]["merges"][5] = {"zz", "zq"}; }, "merge 5 is not in the vocabulary");
  refused([](Json& j) { j["model"]["merges"][5] = {"\xe6\x97\xa5", "a"}; }, "byte-level alphabet");
}

namespace {

/// Ids of an open text are the first of those of the whole, wherever it is cut, and most of them if it is long.
void check_open(const Tokenizer& tokenizer, const std::string& text, std::size_t most_left) {
  const Ids all = tokenizer.encode(text, "");
  const std::size_t step = text.size() > 400 ? 97 : 1;
  for (std::size_t size = 0; size <= text.size(); size += step) {
    const std::string part = text.substr(0, size);
    const Ids some = tokenizer.encode(part, "", all.size() + 1, TextEnd::kOpen);
    REQUIRE(some.size() <= all.size());
    CHECK_MESSAGE(std::equal(some.begin(), some.end(), all.begin()),
                  part.substr(part.size() - std::min<std::size_t>(20, part.size())));
    if (size + step <= text.size() || most_left == std::string::npos) continue;
    CHECK(some.size() + most_left > all.size());
  }
}

/// A vocabulary of ASCII and a few merges, in which a text is one word, as Llama 2 has it.
Json one_word_tokenizer() {
  Json vocabulary,
      merges = Json::array(
          {{"t", "h"}, {"\xE2\x96\x81", "th"}, {"th", "e"}, {"\xE2\x96\x81", "\xE2\x96\x81"}, {"\xE2\x96\x81th", "e"}});
  for (int c = 10; c < 127; ++c) vocabulary[std::string(1, static_cast<char>(c))] = c;
  int id = 200;
  for (const char* token :
       {"\xE2\x96\x81", "th", "\xE2\x96\x81th", "the", "\xE2\x96\x81\xE2\x96\x81", "\xE2\x96\x81the", "<unk>"}) {
    vocabulary[token] = id++;
  }
  const Json normalizer{{"type", "Sequence"},
                        {"normalizers",
                         {{{"type", "Prepend"}, {"prepend", "\xE2\x96\x81"}},
                          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xE2\x96\x81"}}}}};
  return {{"added_tokens", Json::array()},
          {"normalizer", normalizer},
          {"pre_tokenizer", nullptr},
          {"model", {{"type", "BPE"}, {"unk_token", "<unk>"}, {"vocab", vocabulary}, {"merges", merges}}}};
}

}  // namespace

TEST_CASE("of a text that goes on, ids are those that hold whatever follows") {
  const std::string text = read_text(test::data("text/pep-0334.txt"));
  check_open(sample(), text, 200);
  check_open(sample(),
             "a  b\n\n\n c <|endoftext|>x<|endof caf\xc3\xa9 e\xcc\x81 \xe6\x97\xa5\xe6\x9c\xac\n12345 's 'll  \t end",
             std::string::npos);
  const test::TemporaryFolder folder;
  const auto with = [&](const std::function<void(Json&)>& change) {
    return std::make_unique<Tokenizer>(changed(folder, change));
  };
  const std::string marked = "ab <s>  cd <s>  <s>x  \n\n\n y<s> z\n\n w   <s";
  for (const char* side : {"lstrip", "rstrip"}) {
    for (const bool normalized : {false, true}) {
      check_open(*with([&](Json& json) {
        Json token = added_token("<s>", 3000, normalized);
        token[side] = true;
        json["added_tokens"].push_back(token);
        json["added_tokens"].push_back(added_token("\n\n", 3001, normalized));
      }),
                 marked, std::string::npos);
    }
  }
  check_open(*with([](Json& json) {  // looks behind, and at the start of the text
    json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] =
        "^ab|(?<=b) |\\p{L}+|\\s+(?!\\S)|\\s+|[^\\s\\p{L}]+";
  }),
             marked, std::string::npos);
  check_open(*with([](Json& json) {  // cuts nowhere
    json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  }),
             marked, std::string::npos);
  write_json(folder / "one_word.json", one_word_tokenizer());
  const Tokenizer one_word(folder / "one_word.json");
  check_open(one_word, "the  the then   the", std::string::npos);
  std::string the;
  while (the.size() < 100'000) the += "the then  ";
  CHECK(one_word.encode(the, "", the.size(), TextEnd::kOpen).size() + 20 > one_word.encode(the, "").size());
}

}  // namespace oscar
