// SPDX-License-Identifier: MIT
#include "model/gguf/gguf_words.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/errors.hpp"

namespace oscar {
namespace {

constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kDigit = R"(\p{N})";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
                                R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
                                R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Named {
  std::string_view name;
  std::array<const char*, 2> patterns;
  bool composes = false, whole_words = false, begin = false;
};

constexpr std::array kWords{
    Named{"chatglm-bpe", {kLlama3}},
    Named{"default", {kGpt2}},
    Named{"deepseek-r1-qwen", {kQwen2}},
    Named{"glm4", {kLlama3}},
    Named{"gpt-2", {kGpt2}},
    Named{"gpt-4o", {kO200k}, false, true},
    Named{"llama-bpe", {kLlama3}, false, true, true},
    Named{"qwen2", {kQwen2}, true},
    Named{"refact", {kDigit, kGpt2}},
    Named{"smollm", {kDigit, kGpt2}},
    Named{"starcoder", {kDigit, kGpt2}},
    Named{"tekken", {kTekken}, false, true},
};

}  // namespace

GgufWords gguf_words(const Json& pre, const std::string& where) {
  const std::string name = pre.is_string() ? pre.get<std::string>() : "default";
  const auto* const found = std::ranges::find_if(kWords, [&](const Named& each) { return each.name == name; });
  if (found == kWords.end()) {
    throw DataError(
        "the GGUF file cuts text into words as \"" + name + "\" does (tokenizer.ggml.pre), which is not " + "supported",
        where, "encode the text elsewhere and pass token ids with --tokens");
  }
  GgufWords words{{}, found->composes, found->whole_words, found->begin};
  for (const char* pattern : found->patterns) {
    if (pattern != nullptr) words.patterns.emplace_back(pattern);
  }
  return words;
}

}  // namespace oscar
