// SPDX-License-Identifier: MIT
#include <algorithm>
#include <span>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "model/tokenizer/tokenizer.hpp"
#include "serve/serve_check.hpp"

namespace oscar::serve {
namespace {

constexpr const char* kModels = "/v1/models";
constexpr const char* kCompletions = "/v1/completions";
constexpr std::size_t kMostOfNames = 1000;  // bytes that people read
const std::string kMore = "\xE2\x80\xA6";   // behind them: …
/// As many as OpenAI's interface gives.
constexpr int kListed = 5;
constexpr std::string_view kIdPrefix = "token_id:", kSpaceMark = "\xE2\x96\x81";

[[noreturn]] void not_this_interface(const std::string& what, const std::string& url) {
  throw DataError(what, url, "give the address of a server with OpenAI's completions interface (vLLM, SGLang)");
}

/// A member that must be there, of a type that must be it.
const Json& member(const Json& object, const char* name, Json::value_t type, const std::string& url) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  if (found == object.end() || found->type() != type) {
    not_this_interface(std::string("the answer has no \"") + name + "\" of type " + Json(type).type_name(), url);
  }
  return *found;
}

std::vector<std::pair<std::int32_t, double>> listed(const Json& top, const TokenNames& names) {
  std::vector<std::pair<std::int32_t, double>> found;
  if (!top.is_object()) return found;
  for (const auto& [name, value] : top.items()) {
    const std::int32_t id = names.id(name);
    const bool known = std::ranges::any_of(found, [id](const auto& entry) { return entry.first == id; });
    if (id >= 0 && !known && value.is_number()) found.emplace_back(id, value.get<double>());
  }
  return found;
}

}  // namespace

TokenNames::TokenNames(const std::filesystem::path& model) : ids_(token_names(tokenizer_of(model))) {}

std::int32_t TokenNames::id(const std::string& name) const {
  if (name.starts_with(kIdPrefix)) return parse_number(std::string_view(name).substr(kIdPrefix.size())).value_or(-1);
  if (const auto found = ids_.find(name); found != ids_.end()) return found->second;
  std::string marked;
  for (const char c : name) c == ' ' ? marked += kSpaceMark : marked += c;
  const auto found = ids_.find(marked);
  return found != ids_.end() ? found->second : -1;
}

std::vector<TokenSequence> cut_prompts(const std::vector<TokenSequence>& texts, int length, int most) {
  std::vector<TokenSequence> prompts;
  const auto count = static_cast<std::size_t>(length);
  for (const TokenSequence& text : texts) {
    for (std::size_t at = 0; at + count <= text.size() && std::ssize(prompts) < most; at += count) {
      const auto begin = text.begin() + static_cast<std::ptrdiff_t>(at);
      prompts.emplace_back(begin, begin + length);
    }
  }
  return prompts;
}

std::string served_model(const AskServer& ask, const std::string& wanted) {
  const Json answer = ask(kModels, nullptr);
  const std::string url = ask.url + kModels;
  std::string names;
  for (const Json& model : member(answer, "data", Json::value_t::array, url)) {
    const std::string name = member(model, "id", Json::value_t::string, url);
    if (wanted.empty() || name == wanted) return name;
    const bool fits = names.size() + name.size() < kMostOfNames;
    if (!names.ends_with(kMore)) names += (names.empty() ? "" : ", ") + (fits ? name : kMore);
  }
  if (names.empty()) not_this_interface("the server has no model", url);
  throw UsageError("the server has no model \"" + wanted + "\"", "--served-model", "give one of these: " + names);
}

namespace {

/// The first choice of an answer.
const Json& choice_of(const Json& answer, const std::string& url) {
  const Json& choices = member(answer, "choices", Json::value_t::array, url);
  if (choices.empty()) not_this_interface("the answer has no choices", url);
  return choices[0];
}

/// Log-probabilities of a choice, token by token, from `first` on; as long as they are known.
std::vector<ServedPosition> positions_of(const Json& choice, std::size_t first, const TokenNames& names,
                                         const std::string& url) {
  const auto log = choice.find("logprobs");
  if (log == choice.end() || !log->is_object()) {
    throw DataError("the server gives no log-probabilities", url,
                    "let it give at least " + std::to_string(kListed) + " a token (vLLM: --max-logprobs)");
  }
  const Json& tokens = member(*log, "tokens", Json::value_t::array, url);
  const Json& tops = member(*log, "top_logprobs", Json::value_t::array, url);
  std::vector<ServedPosition> positions;
  for (std::size_t i = first; i < std::min(tokens.size(), tops.size()) && tokens[i].is_string(); ++i) {
    ServedPosition position{names.id(tokens[i]), listed(tops[i], names)};
    if (position.token < 0 || position.log_probabilities.empty()) break;
    positions.push_back(std::move(position));
  }
  return positions;
}

std::vector<ServedPosition> complete(const AskServer& ask, const Json& body, std::size_t first,
                                     const TokenNames& names) {
  const Json answer = ask(kCompletions, &body);
  const std::string url = ask.url + kCompletions;
  return positions_of(choice_of(answer, url), first, names, url);
}

Json request(const std::string& model, const TokenSequence& prompt, int max_tokens) {
  return {{"model", model},   {"prompt", prompt},    {"max_tokens", max_tokens},
          {"temperature", 0}, {"logprobs", kListed}, {"return_tokens_as_token_ids", true}};
}

}  // namespace

std::vector<ServedPosition> ask_continuation(const AskServer& ask, const std::string& model,
                                             const TokenSequence& prompt, int max_tokens, const TokenNames& names) {
  return complete(ask, request(model, prompt, max_tokens), 0, names);
}

std::vector<ServedPosition> ask_scores(const AskServer& ask, const std::string& model, const TokenSequence& tokens,
                                       std::size_t first, const TokenNames& names) {
  if (first >= tokens.size()) return {};
  Json body = request(model, tokens, 1);
  body["echo"] = true;
  std::vector<ServedPosition> positions = complete(ask, body, first, names);
  const auto wanted = std::span(tokens).subspan(first);
  if (positions.size() < wanted.size() ||
      !std::ranges::equal(wanted, std::span(positions).first(wanted.size()), {}, {}, &ServedPosition::token)) {
    throw DataError("the reference does not give back the tokens that it was asked about", ask.url + kCompletions,
                    "it must know \"echo\" with \"logprobs\" (vLLM, SGLang), and run the same model");
  }
  positions.resize(wanted.size());
  return positions;
}

}  // namespace oscar::serve
