// SPDX-License-Identifier: MIT
#include "model/tokenizer/split_pattern.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <new>

#include "base/errors.hpp"

namespace oscar {
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
using Code = std::unique_ptr<pcre2_code, Free<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>>;

/// \s and \S as Unicode defines white space: PCRE2's own \s has U+180E, which no longer is.
std::string with_unicode_spaces(const std::string& expression) {
  std::string result;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    if (expression[i] != '\\' || i + 1 == expression.size()) {
      result += expression[i];
      continue;
    }
    const char escaped = expression[++i];
    if (escaped == 's') {
      result += "\\p{White_Space}";
    } else if (escaped == 'S') {
      result += "\\P{White_Space}";
    } else {
      result += {'\\', escaped};
    }
  }
  return result;
}

std::size_t length_of_character(unsigned char first_byte) {
  return first_byte < 0x80U ? 1 : first_byte < 0xe0U ? 2 : first_byte < 0xf0U ? 3 : 4;
}

}  // namespace

struct SplitPattern::Impl {
  Code code;
  std::string where;
};

SplitPattern::SplitPattern(const std::string& expression, const std::string& where) : impl_(std::make_unique<Impl>()) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::string rewritten = with_unicode_spaces(expression);
  impl_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rewritten.data()), rewritten.size(),
                                  PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
  if (!impl_->code) {
    throw DataError("cannot compile the split pattern: " + message_of(error) + " at its byte " + std::to_string(offset),
                    where, "fetch the tokenizer again, or pass token ids with --tokens");
  }
  // Where there is no JIT, matching is slower, not different.
  pcre2_jit_compile(impl_->code.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  impl_->where = where;
}

SplitPattern::~SplitPattern() = default;
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;

/// With PCRE2_PARTIAL_HARD a match is one only if no more text could change it: PCRE2 gives up where it would have to
/// look behind the end.
bool SplitPattern::split(std::string_view text, bool open, const std::function<bool(std::string_view)>& match,
                         const std::function<bool(std::string_view)>& between) const {
  const MatchData data(pcre2_match_data_create_from_pattern(impl_->code.get(), nullptr));
  const MatchContext context(pcre2_match_context_create(nullptr));
  const JitStack stack(pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr));
  if (!data || !context || !stack) throw std::bad_alloc();
  pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  std::size_t done = 0;  // everything before is part of a word
  for (std::size_t from = 0; from < text.size();) {
    const int result = pcre2_match(impl_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                   PCRE2_NO_UTF_CHECK | (open ? PCRE2_PARTIAL_HARD : 0), data.get(), context.get());
    if (result == PCRE2_ERROR_NOMATCH || result == PCRE2_ERROR_PARTIAL) break;
    if (result < 0) {
      throw DataError("the split pattern failed: " + message_of(result), impl_->where,
                      "break very long lines of the text, or pass token ids with --tokens");
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    const std::size_t begin = range[0], end = range[1];
    if (end <= begin) {  // an empty match cuts nothing
      from = begin + (begin < text.size() ? length_of_character(static_cast<unsigned char>(text[begin])) : 1);
      continue;
    }
    if (begin > done && !between(text.substr(done, begin - done))) return false;
    if (!match(text.substr(begin, end - begin))) return false;
    done = from = end;
  }
  return open || done >= text.size() || between(text.substr(done));
}

}  // namespace oscar
