// SPDX-License-Identifier: MIT
// The tokenizer against what Hugging Face tokenizers makes of the same texts.
#include "model/tokenizer/tokenizer.hpp"

#include <doctest/doctest.h>

#include <functional>

#include "base/files.hpp"
#include "base/json.hpp"
#include "model/tokenizer/unicode.hpp"
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

TEST_CASE("added tokens of tokenizer_config.json count, and decide how they take part") {
  const test::TemporaryFolder folder;
  const fs::path file =
      changed(folder, [](Json& json) { json["added_tokens"].push_back(added_token("<a>", 9, false)); });
  Json tokens;
  tokens["7"] = added_token("<b>", 7, false);
  tokens["9"] = added_token("<a>", 9, false);
  tokens["9"]["rstrip"] = true;
  Json config{{"added_tokens_decoder", tokens}};
  const auto encode = [&](const char* text) {
    write_json(file.parent_path() / "tokenizer_config.json", config);
    return Tokenizer(file).encode(text, "");
  };
  CHECK(encode("<a> <b>") == Ids{2048, 2049});
  config["bos_token"] = "<b>";
  config["eos_token"] = "in";  // of the vocabulary
  config["pad_token"] = {{"content", "<c>"}};
  config["additional_special_tokens"] = {"<d>"};
  config["extra_special_tokens"] = {{"e_token", "<e>"}};
  CHECK(encode("<b>string") == Ids{2049, 520, 259, 71});
  for (const char* text : {"a<c>", "<d>", "<e> "}) CHECK_ERROR(encode(text), DataError, "names without an id");
  config["add_prefix_space"] = true;
  CHECK_ERROR(encode("a"), DataError, "\"add_prefix_space\" in tokenizer_config.json is not supported");
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  CHECK(encode("a") == sample().encode("a", ""));
}

TEST_CASE("the longest added token wins, before or after normalization as it says") {
  const test::TemporaryFolder folder;
  const Tokenizer tokenizer(changed(folder, [](Json& json) {
    json["added_tokens"].push_back(added_token("<|", 3000, false));
    json["added_tokens"].push_back(added_token("<|end", 3001, false));
    json["added_tokens"].push_back(added_token("\xc3\xa9", 3002, true));
    json["added_tokens"].push_back(added_token("o\xcc\x88", 3003, false));
  }));
  // Whatever the file says: those that the vocabulary lacks count on from its 2048 tokens, as in Hugging Face
  // tokenizers.
  CHECK(tokenizer.encode("<|endoftext|><|end<|<", "") == Ids{0, 2049, 2048, sample().encode("<", "").front()});
  CHECK(tokenizer.encode("e\xcc\x81", "") == Ids{166});
  CHECK(tokenizer.encode("\xc3\xa9", "") == Ids{166});
  CHECK(tokenizer.encode("o\xcc\x88", "") == Ids{2050});
  CHECK(tokenizer.encode("\xc3\xb6", "") != Ids{2050});
}

TEST_CASE("lines begin and end at every break, and words begin with a mark unless the file denies it") {
  std::vector<std::string> words;
  const auto add = [&](std::string_view word) { return words.emplace_back(word), true; };
  SplitPattern(R"(\s+$|[^q]^b|.)", "tokenizer.json").split("a  \n\nb\nb", add, add);
  CHECK(words == std::vector<std::string>{"a", "  \n", "\nb", "\nb"});
  words.clear();
  SplitPattern(R"((?=c)|\b\w+\b)", "tokenizer.json")
      .split("a\xcc\x81_-ccd", add, add);  // a letter's mark is of its word
  CHECK(words == std::vector<std::string>{"a\xcc\x81_", "-", "c", "cd"});
  const test::TemporaryFolder folder;
  const auto ids = [&](const char* scheme) {
    return Tokenizer(changed(folder,
                             [&](Json& json) {
                               json["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "_"}};
                               if (scheme != nullptr) json["pre_tokenizer"]["prepend_scheme"] = scheme;
                               json["model"]["unk_token"] = "<|endoftext|>";
                             }))
        .encode("a", "");
  };
  CHECK(ids(nullptr) == ids("always"));
  CHECK(ids(nullptr) != ids("never"));
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
  const Json replace{{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  refused(
      [&](Json& j) {
        j["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array_t(5, replace)}};
      },
      "normalizers[4]\" that makes texts more than 16 times as long");
  refused([](Json& j) { j["pre_tokenizer"] = nullptr; }, "without ByteLevel");
  refused([](Json& j) { j["pre_tokenizer"]["pretokenizers"][1]["type"] = "Whitespace"; },
          "pretokenizers[1]\" \"Whitespace\"");
  refused([](Json& j) { j["pre_tokenizer"]["pretokenizers"].erase(1); }, "without ByteLevel");
  refused([](Json& j) { j["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; }, "add_prefix_space");
  refused([](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }, "behavior\" \"Removed\"");
  refused([](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["invert"] = true; }, "invert\" true");
  refused([](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", "x"}}; }, "without a Regex");
  refused([](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; },
          "split pattern is not supported: missing");
  for (const char* foreign : {R"([a&&b])", R"([^a&&[^b]])", R"([a&&[^^b]])", R"([a[bc]])", R"([[:alpha:]])", R"([\W])",
                              R"(\h)", R"([\v])", R"(\K)", R"(\p{)", "(?m)", "(?i-m:a)", "a{,3}", "a{2}?", "a{1,2}+"}) {
    refused([&](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = foreign; },
            "in a split pattern, or what follows it, is not supported");
  }
  const Json metaspace{{"type", "Metaspace"}, {"replacement", "_"}, {"add_prefix_space", false}};
  refused([&](Json& j) { j["pre_tokenizer"] = metaspace; }, "\"prepend_scheme\" that is not \"never\"");
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
  refused([](Json& j) { j["model"]["merges"][5] = j["model"]["merges"][3]; }, "merge 5 stands there twice");
  refused([](Json& j) { j["model"]["merges"][5] = {"zz", "zq"}; }, "merge 5 is not in the vocabulary");
  refused([](Json& j) { j["model"]["merges"][5] = {"\xe6\x97\xa5", "a"}; }, "byte-level alphabet");
}

}  // namespace oscar
