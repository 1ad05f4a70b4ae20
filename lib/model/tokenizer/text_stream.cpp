// SPDX-License-Identifier: MIT
#include "model/tokenizer/text_stream.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "base/places.hpp"
#include "base/status.hpp"

namespace oscar {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20;
constexpr std::size_t kPieceBytes = std::size_t{1} << 16;
constexpr char kConvert[] = "convert it: iconv -f UTF-16 -t UTF-8";

Descriptor open_text(const fs::path& place) {
  if (place == "-") return Descriptor(::dup(STDIN_FILENO));
  for (;;) {
    Descriptor file(::open(place.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
    if (file.get() < 0 && errno == EINTR) {  // a pipe that nobody writes to yet
      throw_if_interrupted();
      continue;
    }
    if (file.get() < 0 && errno == ENOENT) throw DataError("no such file", place.string(), "check the path");
    if (file.get() < 0) throw_io("cannot open for reading", place, errno);
    return file;
  }
}

}  // namespace

/// The bytes of an open file, or of a text that was fetched whole from a server.
class TextStream::Source {
 public:
  explicit Source(const fs::path& place) : place_(place), file_(is_remote(place) ? Descriptor(-1) : open_text(place)) {
    if (is_remote(place)) {
      fetched_ = place_text(place);
      return;
    }
    struct stat info {};
    if (::fstat(file_.get(), &info) != 0) throw_io("cannot read", place, errno);
    if (S_ISDIR(info.st_mode)) throw DataError("is a folder, not a file", place.string(), "name a file");
  }

  /// Reads at most `size` bytes and returns their number, which is 0 at the end.
  std::size_t read(char* to, std::size_t size) {
    if (file_.get() < 0) {
      const std::size_t count = fetched_.copy(to, size, taken_);
      taken_ += count;
      return count;
    }
    for (;;) {
      const ssize_t count = ::read(file_.get(), to, size);
      if (count >= 0) return static_cast<std::size_t>(count);
      if (errno != EINTR) throw_io("cannot read", place_, errno);
      throw_if_interrupted();
    }
  }

 private:
  fs::path place_;
  Descriptor file_;
  std::string fetched_;
  std::size_t taken_ = 0;
};

TextStream::TextStream(const fs::path& place)
    : where_(place == "-" ? "stdin" : place.string()), source_(std::make_unique<Source>(place)) {}

TextStream::~TextStream() = default;

bool TextStream::fill(std::string& text, std::size_t size) {
  while (!ended_ && text.size() < size) {
    const std::size_t before = text.size();
    text.resize(before + std::min(size - before, kPieceBytes));
    const std::size_t count = source_->read(text.data() + before, text.size() - before);
    text.resize(before + count);
    ended_ = count == 0;
    check(text, before);
  }
  return !ended_;
}

/// Checks the bytes that came last, which are those of `text` from `begin` on. The three bytes of a mark at the start
/// of the stream are awaited whole, however small the pieces of a pipe are.
void TextStream::check(std::string& text, std::size_t begin) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  while (read_ == 0 && !ended_ && text.size() - begin < kMark.size()) {
    char more = 0;
    ended_ = source_->read(&more, 1) == 0;
    if (!ended_) text += more;
  }
  const std::string_view fresh = std::string_view(text).substr(begin);
  if (read_ == 0 && (fresh.starts_with("\xFF\xFE") || fresh.starts_with("\xFE\xFF"))) {
    throw DataError("the text is in UTF-16, not in UTF-8", where_, kConvert);
  }
  if (const std::size_t zero = fresh.find('\0'); zero != std::string_view::npos) {
    throw DataError("there is a zero byte at byte " + std::to_string(read_ + zero) + ": this is not text in UTF-8",
                    where_, std::string("name a file of text; if it is UTF-16, ") + kConvert);
  }
  const bool has_mark = read_ == 0 && fresh.starts_with(kMark);
  read_ += fresh.size();
  if (has_mark) text.erase(begin, kMark.size());
}

void for_each_line(const fs::path& place,
                   const std::function<bool(std::string_view line, const std::string& where)>& line) {
  TextStream stream(place);
  std::string text;
  std::size_t begin = 0, searched = 0;  // of the line, and where its end may be
  int number = 0;
  for (bool more = true; more || begin < text.size();) {
    std::size_t end = text.find('\n', searched);
    if (end == std::string::npos && more) {
      text.erase(0, begin);
      begin = 0;
      searched = text.size();
      if (text.size() > kMaxLineBytes) {
        throw DataError("a line is longer than 64 MiB", stream.where() + ", line " + std::to_string(number + 1),
                        "write one document, or one list of token ids, a line");
      }
      more = stream.fill(text, text.size() + kPieceBytes);
      continue;
    }
    end = std::min(end, text.size());
    const std::string_view own = std::string_view(text).substr(begin, end - begin);
    begin = searched = std::min(end + 1, text.size());
    ++number;
    if (own.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (!line(own, stream.where() + ", line " + std::to_string(number))) return;
  }
}

namespace {

constexpr const char* kRemedy = R"(write documents like {"text": "..."} or {"messages": [...]}, in .jsonl one a line)";

std::string text_of_content(const Json& content, const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw DataError("a message has no content that is text", where, kRemedy);
  std::string text;
  for (const Json& part : content) {
    if (const Json& own = member(part, "text"); own.is_string()) text += own.get<std::string>();
  }
  return text;
}

const std::string& speaker_of(const Json& message, const char* name, const std::string& where) {
  if (const Json& found = member(message, name); found.is_string()) return found.get_ref<const std::string&>();
  throw DataError(std::string("a message has no \"") + name + "\"", where, kRemedy);
}

/// The turns of a chat: no template, but who speaks. speaker, content: names of members. Who is called otherwise in
/// "conversations" has the usual name.
std::string text_of_chat(const Json& messages, const char* speaker, const char* content, const std::string& where) {
  std::string text;
  for (const Json& message : messages) {
    const std::string& name = speaker_of(message, speaker, where);
    if (!message.contains(content) || message[content].is_null()) continue;  // a call of a tool
    const bool other_names = speaker == std::string_view("from");
    const std::string role = other_names && name == "human" ? "user"
                             : other_names && name == "gpt" ? "assistant"
                                                            : name;
    text += role + "\n" + text_of_content(message[content], where) + "\n\n";
  }
  return text;
}

std::string text_of_document(const Json& document, const std::string& where) {
  if (document.is_string()) return document.get<std::string>();
  const auto has = [&](const char* name) { return document.is_object() && document.contains(name); };
  if (has("text") && document["text"].is_string()) return document["text"].get<std::string>();
  if (has("messages") && document["messages"].is_array()) {
    return text_of_chat(document["messages"], "role", "content", where);
  }
  if (has("conversations") && document["conversations"].is_array()) {
    return text_of_chat(document["conversations"], "from", "value", where);
  }
  throw DataError(R"(the document has no "text", "messages" or "conversations")", where, kRemedy);
}

/// A list cannot be taken apart before it was read.
std::string whole_text(const std::filesystem::path& path) {
  constexpr std::size_t kMost = std::size_t{256} << 20;
  TextStream stream(path);
  std::string text;
  if (!stream.fill(text, kMost)) return text;
  throw DataError("the file is longer than 256 MiB, and a list in JSON is read whole", path.string(),
                  "write it as .jsonl, a document a line");
}

}  // namespace

bool has_documents(const std::filesystem::path& path) {
  return path.extension() == ".jsonl" || path.extension() == ".json";
}

void read_documents(const std::filesystem::path& path,
                    const std::function<bool(const std::string& text, const std::string& where)>& document) {
  if (path.extension() == ".jsonl") {
    return for_each_line(path, [&](std::string_view line, const std::string& where) {
      return document(text_of_document(parse_json(line, where), where), where);
    });
  }
  const Json list = parse_json(whole_text(path), path.string());
  if (!list.is_array()) {
    throw DataError("the file is not a list of documents", path.string(),
                    "write a list of strings or objects, or a document a line into a .jsonl file");
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string where = path.string() + ", document " + std::to_string(i + 1);
    if (!document(text_of_document(list[i], where), where)) return;
  }
}

}  // namespace oscar
