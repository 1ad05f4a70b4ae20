// SPDX-License-Identifier: MIT
// Text that is read piece by piece, as much of it as is wanted: from a file, a pipe, stdin or an address (which is
// fetched whole, base/places.hpp). The only reader of files that takes pipes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace oscar {

class TextStream {
 public:
  /// place: a path, an address, or "-" for stdin. Throws DataError for what is missing or a folder, IoError.
  explicit TextStream(const std::filesystem::path& place);
  ~TextStream();
  TextStream(const TextStream&) = delete;
  TextStream& operator=(const TextStream&) = delete;

  /// Returns the name of the place for messages: its path or address, or "stdin".
  [[nodiscard]] const std::string& where() const noexcept { return where_; }
  /// Appends until `text` has `size` bytes; false: the text ends with it. A byte order mark of UTF-8 at the start is
  /// left out. Throws DataError for a zero byte and for a mark of UTF-16, Interrupted while it waits for a pipe.
  bool fill(std::string& text, std::size_t size);

 private:
  class Source;
  void check(std::string& text, std::size_t begin);

  std::string where_;
  std::unique_ptr<Source> source_;
  std::uint64_t read_ = 0;  // bytes
  bool ended_ = false;
};

/// Calls line(text, "<where>, line <n>") for the lines that are not blank until it returns false. Throws what
/// TextStream throws, and DataError for a line of more than 64 MiB.
void for_each_line(const std::filesystem::path& place,
                   const std::function<bool(std::string_view line, const std::string& where)>& line);

}  // namespace oscar
