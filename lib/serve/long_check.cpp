// SPDX-License-Identifier: MIT
#include "serve/long_check.hpp"

#include <fmt/format.h>

#include <functional>
#include <numeric>

#include "base/check.hpp"
#include "serve/text_quality.hpp"

namespace oscar::serve {
namespace {

constexpr double kAny = 1e9;

/// One figure's values, text by text.
using Values = std::vector<double>;

double mean_of(const Values& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// The difference is relative where `relative`.
LongFigure figure_of(const char* name, const Values& reference, const Values& server, verify::Interval limit,
                     bool relative) {
  Values differences, scale;
  for (std::size_t i = 0; i < server.size(); ++i) {
    differences.push_back(server[i] - reference[i]);
    scale.push_back(relative ? std::max(reference[i], 1.0) : 1.0);
  }
  const auto interval = verify::bootstrap(differences, scale);
  OSCAR_CHECK(interval.has_value());  // there are kFewestLong or more
  return {name, mean_of(reference), mean_of(server), mean_of(differences) / mean_of(scale), *interval, limit};
}

/// What is counted in the texts of one server.
struct Texts {
  std::vector<std::vector<std::string>> words;
  std::vector<std::size_t> broken;
};

Texts read_texts_of(const LongAnswers& answers, const TextReader& reader) {
  Texts texts;
  const auto take = [&](const std::string& text) {
    texts.words.push_back(reader.words(text));
    texts.broken.push_back(reader.broken_characters(text));
  };
  for (const LongPassage& passage : answers.passages) take(passage.text);
  for (const ServedReply& reply : answers.replies) take(reply.text);
  return texts;
}

template <class Item>
Values values_of(const std::vector<Item>& items, const std::function<double(const Item&)>& value) {
  Values values;
  for (const Item& item : items) values.push_back(value(item));
  return values;
}

}  // namespace

const char* LongFigure::verdict() const {
  if (interval.high < limit.low || interval.low > limit.high) return "worse";
  return interval.low >= limit.low && interval.high <= limit.high ? "equal" : "unclear";
}

std::vector<LongFigure> compare_long(const LongAnswers& served, const LongAnswers& reference, const LongTask& task,
                                     const TokenNames& names) {
  const auto quoted = [](const LongAnswers& a) {
    return values_of<LongPassage>(a.passages, [](const LongPassage& passage) { return passage.quoted; });
  };
  const auto lengths = [](const LongAnswers& a) {
    return values_of<ServedReply>(a.replies,
                                  [](const ServedReply& reply) { return static_cast<double>(reply.tokens); });
  };
  const auto unanswered = [](const LongAnswers& a) {
    return values_of<ServedReply>(a.replies, [](const ServedReply& reply) { return reply.answered ? 0.0 : 1.0; });
  };
  std::vector<LongFigure> figures{figure_of("quoted", quoted(reference), quoted(served), {-0.05, kAny}, false)};
  if (!task.questions.empty()) {
    figures.push_back(figure_of("length", lengths(reference), lengths(served), {-0.2, 0.2}, true));
    figures.push_back(figure_of("unanswered", unanswered(reference), unanswered(served), {-kAny, 0.05}, false));
  }
  const TextReader reader;
  const Texts theirs = read_texts_of(served, reader), known = read_texts_of(reference, reader);
  KnownWords vocabulary;
  constexpr int kPromptsAndQuestions = 2;  // words of these are known whatever is left out
  for (int i = 0; i < kPromptsAndQuestions; ++i) {
    for (const TokenSequence& prompt : task.prompts) vocabulary.add(reader.words(names.text(prompt)));
    for (const std::string& question : task.questions) vocabulary.add(reader.words(question));
  }
  for (const auto& words : known.words) vocabulary.add(words);
  const auto repeated = [](const Texts& texts) { return values_of<std::vector<std::string>>(texts.words, repetition); };
  const auto garbled = [&](const Texts& texts) {
    Values values;
    for (std::size_t i = 0; i < texts.words.size(); ++i)
      values.push_back(vocabulary.garbling(texts.words[i], texts.broken[i], known.words[i]));
    return values;
  };
  figures.push_back(figure_of("repetition", repeated(known), repeated(theirs), {-kAny, 0.05}, false));
  figures.push_back(figure_of("garbling", garbled(known), garbled(theirs), {-kAny, 0.02}, false));
  return figures;
}

std::vector<std::string> why_worse(const std::vector<LongFigure>& figures) {
  std::vector<std::string> reasons;
  for (const LongFigure& f : figures) {
    if (f.verdict() != std::string("worse")) continue;
    const double limit = f.interval.high < f.limit.low ? f.limit.low : f.limit.high;
    reasons.push_back(
        fmt::format("long answers, {}: {:.3g}, of the reference {:.3g}; the difference of {:+.3f} ({:+.3f} to {:+.3f}) "
                    "is beyond {:+.2f}",
                    f.name, f.server, f.reference, f.difference, f.interval.low, f.interval.high, limit));
  }
  return reasons;
}

Json to_json(const std::vector<LongFigure>& figures, const LongTask& task, const LongOptions& options,
             const std::string& reference) {
  const auto bound = [](double limit) { return limit <= -kAny || limit >= kAny ? Json() : Json(limit); };
  Json list = Json::array();
  for (const LongFigure& f : figures) {
    list.push_back({{"name", f.name},
                    {"reference", f.reference},
                    {"server", f.server},
                    {"difference", f.difference},
                    {"interval", {f.interval.low, f.interval.high}},
                    {"limit", {bound(f.limit.low), bound(f.limit.high)}},
                    {"verdict", f.verdict()}});
  }
  return {{"reference", reference},
          {"passages", task.prompts.size()},
          {"questions", task.questions.size()},
          {"long_tokens", options.long_tokens},
          {"answer_tokens", options.answer_tokens},
          {"temperature", options.temperature},
          {"figures", std::move(list)}};
}

}  // namespace oscar::serve
