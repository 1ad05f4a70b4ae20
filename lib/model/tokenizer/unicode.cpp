// SPDX-License-Identifier: MIT
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/tokenizer/unicode.hpp"

#include <fmt/format.h>
#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <new>

#include "base/errors.hpp"

namespace oscar {
namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80U; });
}

const utf8proc_uint8_t* bytes(std::string_view text) { return reinterpret_cast<const utf8proc_uint8_t*>(text.data()); }

}  // namespace

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80U) {
      ++at;
      continue;
    }
    utf8proc_int32_t code_point = 0;
    const auto length =
        utf8proc_iterate(bytes(text) + at, static_cast<utf8proc_ssize_t>(text.size() - at), &code_point);
    if (length <= 0) return at;
    at += static_cast<std::size_t>(length);
  }
  return std::nullopt;
}

std::string_view whole_characters(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80U) break;
    if (byte < 0xc0U) continue;  // not a character's first
    const std::size_t length = byte < 0xe0U ? 2 : byte < 0xf0U ? 3 : 4;
    return back < length ? text.substr(0, text.size() - back) : text;
  }
  return text;
}

namespace {

constexpr std::size_t kJitStackStart = 32 * 1024, kJitStackLimit = 16 * 1024 * 1024;

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

template <auto free_function>
struct Free {
  template <class T>
  void operator()(T* object) const {
    free_function(object);
  }
};
template <class T, auto free_function>
using Owned = std::unique_ptr<T, Free<free_function>>;

/// What a match needs besides its pattern; nothing of it outlives the match.
struct Workspace {
  Owned<pcre2_match_data, pcre2_match_data_free> data{pcre2_match_data_create(1, nullptr)};
  Owned<pcre2_match_context, pcre2_match_context_free> context{pcre2_match_context_create(nullptr)};
  Owned<pcre2_jit_stack, pcre2_jit_stack_free> stack{pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr)};
};

/// The thread's own: the pieces of one pattern are split by others, and a stack of its own for each took most of the
/// time.
const Workspace& workspace() {
  thread_local const Workspace work;
  if (!work.data || !work.context || !work.stack) throw std::bad_alloc();
  pcre2_jit_stack_assign(work.context.get(), nullptr, work.stack.get());
  return work;
}

std::unique_ptr<pcre2_code, void (*)(pcre2_code*)> compiled(const std::string& expression, int* error,
                                                            PCRE2_SIZE* offset) {
  return {pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, error, offset, nullptr),
          pcre2_code_free};
}

/// Whether PCRE2 knows a script by this name.
bool is_script(std::string_view name) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  return compiled(fmt::format("\\p{{sc:{}}}", name), &error, &offset) != nullptr;
}

/// \s and \S as Unicode defines white space: PCRE2's own \s has U+180E, which no longer is. And \p{Han} as the script,
/// without the signs that it shares with others. And \w, \W, \b and \B by Oniguruma's letters, which have marks and
/// connectors; in a class only \w has another name.
std::string with_unicode_properties(const std::string& expression) {
  static const std::string kWord = R"(\p{Alphabetic}\p{M}\p{N}\p{Pc})", kOne = "[" + kWord + "]";
  static const std::map<char, std::string> kOutside{{'w', kOne},
                                                    {'W', "[^" + kWord + "]"},
                                                    {'b', fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", kOne)},
                                                    {'B', fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", kOne)}};
  std::string result;
  bool in_class = false;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    if (expression[i] != '\\' || i + 1 == expression.size()) {
      const bool is_first =
          i > 0 && (expression[i - 1] == '[' || expression.substr(i - std::min<std::size_t>(i, 2), 2) == "[^");
      if (in_class ? expression[i] == ']' && !is_first : expression[i] == '[') in_class = !in_class;
      result += expression[i];
      continue;
    }
    const char escaped = expression[++i];
    const auto word = kOutside.find(escaped);
    if (word != kOutside.end() && !in_class) {
      result += word->second;
    } else if (escaped == 'w') {
      result += kWord;
    } else if (escaped == 's') {
      result += "\\p{White_Space}";
    } else if (escaped == 'S') {
      result += "\\P{White_Space}";
    } else {
      result += {'\\', escaped};
      const std::string_view rest = std::string_view(expression).substr(i + 1);
      const std::size_t name = rest.find_first_not_of("{^");
      if ((escaped == 'p' || escaped == 'P') && rest.starts_with('{') &&
          is_script(rest.substr(name, rest.find('}') - name))) {
        result.append(rest.substr(0, name)).append("sc:"), i += name;
      }
    }
  }
  return result;
}

/// An expression of Oniguruma, which Hugging Face tokenizers has, for PCRE2: [A&&[^B]] becomes (?:(?![B])[A]). Throws
/// DataError for what PCRE2 reads otherwise, or may: other sets in sets, escapes, (?m), {,n}, {n}? and {n,m}+.
std::string for_pcre2(const std::string& expression, const std::string& where) {
  static const std::string kEscape = R"(\\(?:[pPx]\{[^{}]*\}|[aAbBdDefnrRsStwWxzZ]|[^A-Za-z]))";
  static const std::string kMember = R"((?:(?!\\W))" + kEscape + R"(|[^\\\[\]&]|&(?!&)))";
  static const SplitPattern kSame(
      R"(\[(?!\^)\]?)" + kMember + R"(*+&&\[\^(?!\^))" + kMember + R"(++\]\]|\[\^?\]?)" + kMember + R"(*+\]|)" +
          kEscape + R"(|\{\d+,\d*\}(?!\+)|\{\d+\}(?![?+])|\{(?!\d*,?\d*\})|\((?!\?[isx-]*m)|[^\\\[{(])",
      "");
  std::string result;
  const auto same = [&](std::string_view part) {
    const std::size_t cut = part.starts_with('[') ? part.find("&&[^") : std::string_view::npos;
    if (cut == std::string_view::npos) return result.append(part), true;
    const std::string_view without = part.substr(cut + 4, part.size() - cut - 6);
    return result.append(fmt::format("(?:(?![{}]){}])", without, part.substr(0, cut))), true;
  };
  const auto other = [&](std::string_view part) -> bool {
    const auto at = static_cast<std::size_t>(part.data() - expression.data());
    throw DataError(fmt::format("\"{}\" in a split pattern, or what follows it, is not supported",
                                whole_characters(std::string_view(expression).substr(at, 16))),
                    where, "encode the text elsewhere and pass token ids with --tokens");
  };
  kSame.split(expression, same, other);
  return result;
}

std::size_t length_of_character(unsigned char first_byte) {
  return first_byte < 0x80U ? 1 : first_byte < 0xe0U ? 2 : first_byte < 0xf0U ? 3 : 4;
}

DataError newer_than(const std::string& tables, utf8proc_int32_t code_point, const char* what,
                     const std::string& where) {
  return {fmt::format("the text has U+{:04X}, which is newer than the tables of {} here: {} cannot be told", code_point,
                      tables, what),
          where, "leave it out of the text, or encode the text elsewhere and pass token ids with --tokens"};
}

const SplitPattern& unknown_characters() {
  static const SplitPattern kUnknown("\\p{Cn}", "");
  return kUnknown;
}

/// A character that PCRE2 knows, for one that its tables lack: of the same category, script where CJK counts, and
/// length in UTF-8. What no table has is no letter anywhere if it never will be a character, and otherwise refused.
std::string older_like(std::string_view character, const std::string& where) {
  utf8proc_int32_t code_point = 0, like = 0;
  utf8proc_iterate(bytes(character), std::ssize(character), &code_point);
  const bool never = (code_point & 0xfffe) == 0xfffe || (code_point >= 0xfdd0 && code_point <= 0xfdef);
  const utf8proc_category_t category = utf8proc_category(code_point);
  if (never || code_point < 0x800) return std::string(character);
  if (category == UTF8PROC_CATEGORY_CN) {
    throw newer_than(std::string("Unicode ") + utf8proc_unicode_version(), code_point, "where words are cut beside it",
                     where);
  }
  // The first characters of each category are old.
  like = code_point < 0x10000 ? 0x800 : code_point < 0x20000 ? 0x10000 : 0x20000;
  while (like < code_point && utf8proc_category(like) != category) ++like;
  std::array<utf8proc_uint8_t, 4> encoded{};
  const auto length = utf8proc_encode_char(like, encoded.data());
  return {encoded.begin(), encoded.begin() + length};
}

}  // namespace

struct SplitPattern::Impl {
  std::unique_ptr<pcre2_code, void (*)(pcre2_code*)> code{nullptr, pcre2_code_free};
  std::string where;
};

SplitPattern::SplitPattern(const std::string& expression, const std::string& where) : impl_(std::make_unique<Impl>()) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::string rewritten = with_unicode_properties(where.empty() ? expression : for_pcre2(expression, where));
  impl_->code = compiled(rewritten, &error, &offset);
  if (!impl_->code) {
    throw DataError("the split pattern is not supported: " + message_of(error), where,
                    "encode the text elsewhere and pass token ids with --tokens");
  }
  // Where there is no JIT, matching is slower, not different.
  pcre2_jit_compile(impl_->code.get(), PCRE2_JIT_COMPLETE);
  impl_->where = where;
}

SplitPattern::~SplitPattern() = default;
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;

bool SplitPattern::split(std::string_view text, const std::function<bool(std::string_view)>& match,
                         const std::function<bool(std::string_view)>& between) const {
  std::string known;
  if (!impl_->where.empty() &&
      std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0xe0U; })) {
    unknown_characters().split(
        text, [&](std::string_view character) { return known.append(older_like(character, impl_->where)), true; },
        [&](std::string_view others) { return known.append(others), true; });
  }
  const std::string_view subject = known.empty() ? text : known;
  const Workspace& work = workspace();
  std::size_t done = 0;  // everything before is part of a word
  for (std::size_t from = 0; from < text.size();) {
    const int result = pcre2_match(impl_->code.get(), reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(),
                                   from, PCRE2_NO_UTF_CHECK, work.data.get(), work.context.get());
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      throw DataError("the split pattern failed: " + message_of(result), impl_->where,
                      "break very long lines of the text, or pass token ids with --tokens");
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(work.data.get());
    const std::size_t begin = range[0], end = range[1];
    if (end <= begin) {  // an empty match cuts what is before it from what follows
      if (begin > done && !between(text.substr(done, begin - done))) return false;
      done = begin;
      from = begin + (begin < text.size() ? length_of_character(static_cast<unsigned char>(text[begin])) : 1);
      continue;
    }
    if (begin > done && !between(text.substr(done, begin - done))) return false;
    if (!match(text.substr(begin, end - begin))) return false;
    done = from = end;
  }
  return done >= text.size() || between(text.substr(done));
}

std::string to_nfc(std::string_view text, const std::string& where) {
  if (is_ascii(text)) return std::string(text);
  const auto refuse_mark = [&](std::string_view character) {
    utf8proc_int32_t code_point = 0;
    utf8proc_iterate(bytes(character), std::ssize(character), &code_point);
    if (utf8proc_get_property(code_point)->combining_class == 0) return true;
    throw newer_than("Unicode 14", code_point, "in what order marks stand beside it", where);
  };
  unknown_characters().split(text, refuse_mark, [](std::string_view) { return true; });
  utf8proc_uint8_t* result = nullptr;
  const auto length = utf8proc_map(bytes(text), static_cast<utf8proc_ssize_t>(text.size()), &result,
                                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (length == UTF8PROC_ERROR_NOMEM || length == UTF8PROC_ERROR_OVERFLOW) throw std::bad_alloc();
  OSCAR_CHECK(length >= 0);  // the text was checked
  return {reinterpret_cast<const char*>(result), static_cast<std::size_t>(length)};
}

}  // namespace oscar
