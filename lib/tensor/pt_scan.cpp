// SPDX-License-Identifier: MIT
#include "tensor/pt_scan.hpp"

#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/errors.hpp"

namespace oscar {
namespace {

/// Opcodes of pickle protocol 2 by the bytes that follow them: none, one, two, four, eight …
constexpr std::string_view kNone = "()]}aest.RNbQ0lduo12\x81\x85\x86\x87\x88\x89", kOne = "Kqh\x80", kTwo = "M",
                           kFour = "Jj", kEight = "G";
/// … or a length of one or of four bytes and so many bytes …
constexpr std::string_view kShortCounted =
                               "U\x8c\x8a"
                               "C",
                           kCounted = "XTB\x8b";
/// … or two lines.
constexpr char kGlobal = 'c', kStop = '.';
/// Four bytes: where the reader, which makes room for all before it, is to keep an object.
constexpr char kPut = 'r';

[[noreturn]] void refuse(const std::string& what, const std::string& where) {
  throw DataError("cannot read the archive: " + what, where,
                  "fetch or write the file again; only zip archives made by torch.save can be read");
}

class Walk {
 public:
  Walk(std::span<const char> pickle, const std::string& where) : pickle_(pickle), where_(where) {}

  void run() {
    for (char opcode = 0; opcode != kStop;) {
      opcode = *take(1);
      pass(opcode);
    }
  }

 private:
  const char* take(std::uint64_t count) {
    if (count > pickle_.size() - position_) refuse("the pickle ends before what it announces", where_);
    const char* bytes = pickle_.data() + position_;
    position_ += count;
    return bytes;
  }

  std::uint32_t number() {
    std::uint32_t value = 0;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }

  void pass_line() {
    while (*take(1) != '\n') {
    }
  }

  void pass(char opcode) {
    const auto is = [&](std::string_view set) { return set.find(opcode) != std::string_view::npos; };
    if (is(kNone)) return;
    if (is(kOne)) return (void)take(1);
    if (is(kTwo)) return (void)take(2);
    if (is(kFour)) return (void)take(4);
    if (is(kEight)) return (void)take(8);
    if (is(kShortCounted)) return (void)take(static_cast<unsigned char>(*take(1)));
    if (is(kCounted)) return (void)take(number());
    if (opcode == kPut) {
      if (number() >= pickle_.size()) refuse("the pickle keeps more objects than it can have", where_);
      return;
    }
    if (opcode != kGlobal) refuse("the pickle has an opcode that torch.save does not write", where_);
    pass_line();
    pass_line();
  }

  std::span<const char> pickle_;
  const std::string& where_;
  std::size_t position_ = 0;
};

}  // namespace

void check_pickle_lengths(std::span<const char> pickle, const std::string& where) { Walk(pickle, where).run(); }

}  // namespace oscar
