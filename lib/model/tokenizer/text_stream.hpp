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

// Text files for calibration as documents. In a .jsonl file each line is one, in a .json file each member of its list:
// a string, an object with a member "text", or a chat with "messages" (role and content; of content in parts, those of
// text) or "conversations" (from and value, as ShareGPT writes them). Other files are plain text, which has none.

/// Whether documents of this file stand for themselves, rather than for a piece of one long text.
[[nodiscard]] bool has_documents(const std::filesystem::path& path);
/// Calls document(text, where) for each document of a file that has_documents(), in order, until it returns false.
/// Throws DataError that names the file and the line, or the place in the list, and what TextStream throws.
void read_documents(const std::filesystem::path& path,
                    const std::function<bool(const std::string& text, const std::string& where)>& document);

}  // namespace oscar
