// SPDX-License-Identifier: MIT
#include "model/tokenizer/tokens.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <numbers>
#include <string_view>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "base/places.hpp"
#include "base/sha256.hpp"
#include "base/status.hpp"
#include "model/tokenizer/tokenizer.hpp"
#include "model/tokenizer/unicode.hpp"
#include "tensor/npy.hpp"

namespace oscar {
namespace {

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

/// Text that is read piece by piece, as much of it as is wanted: of an open file, or one that was fetched whole from a
/// server.
class TextStream {
 public:
  /// place: a path, an address, or "-" for stdin. Throws DataError for what is missing or a folder, IoError.
  explicit TextStream(const fs::path& place)
      : where_(place == "-" ? "stdin" : place.string()),
        place_(place),
        file_(is_remote(place) ? Descriptor(-1) : open_text(place)) {
    if (is_remote(place)) {
      fetched_ = place_text(place);
      return;
    }
    struct stat info {};
    if (::fstat(file_.get(), &info) != 0) throw_io("cannot read", place, errno);
    if (S_ISDIR(info.st_mode)) throw DataError("is a folder, not a file", place.string(), "name a file");
  }

  /// Returns the name of the place for messages: its path or address, or "stdin".
  [[nodiscard]] const std::string& where() const noexcept { return where_; }

  /// Appends until `text` has `size` bytes; false: the text ends with it. A byte order mark of UTF-8 at the start is
  /// left out. Throws DataError for a zero byte and for a mark of UTF-16, Interrupted while it waits for a pipe.
  bool fill(std::string& text, std::size_t size) {
    while (!ended_ && text.size() < size) {
      const std::size_t before = text.size();
      text.resize(before + std::min(size - before, kPieceBytes));
      const std::size_t count = read(text.data() + before, text.size() - before);
      text.resize(before + count);
      ended_ = count == 0;
      check(text, before);
    }
    return !ended_;
  }

 private:
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

  /// Checks the bytes that came last, which are those of `text` from `begin` on. The three bytes of a mark at the start
  /// of the stream are awaited whole, however small the pieces of a pipe are.
  void check(std::string& text, std::size_t begin) {
    constexpr std::string_view kMark = "\xEF\xBB\xBF";
    while (read_ == 0 && !ended_ && text.size() - begin < kMark.size()) {
      char more = 0;
      ended_ = read(&more, 1) == 0;
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

  std::string where_;
  fs::path place_;
  Descriptor file_;
  std::string fetched_;
  std::size_t taken_ = 0;   // of what was fetched
  std::uint64_t read_ = 0;  // bytes
  bool ended_ = false;
};

/// Calls line(text, "<where>, line <n>") for the lines that are not blank until it returns false. Throws what
/// TextStream throws, and DataError for a line of more than 64 MiB.
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

// Text files for calibration as documents. In a .jsonl file each line is one, in a .json file each member of its list:
// a string, an object with a member "text", or a chat with "messages" (role and content; of content in parts, those of
// text) or "conversations" (from and value, as ShareGPT writes them). Other files are plain text, which has none.

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

/// Whether documents of this file stand for themselves, rather than for a piece of one long text.
bool has_documents(const std::filesystem::path& path) {
  return path.extension() == ".jsonl" || path.extension() == ".json";
}

/// Calls document(text, where) for each document of a file that has_documents(), in order, until it returns false.
/// Throws DataError that names the file and the line, or the place in the list, and what TextStream throws.
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

/// Cuts what it is given into sequences until a limit is reached.
class Cutter {
 public:
  /// prefix: what each sequence starts with.
  explicit Cutter(const TokenLimits& limits, TokenSequence prefix = {}) : limits_(limits), prefix_(std::move(prefix)) {
    OSCAR_CHECK(limits.seq_len > 0);
    if (prefix_.size() >= static_cast<std::size_t>(limits.seq_len)) prefix_.clear();
  }

  [[nodiscard]] bool full() const { return room() == 0; }

  void add(std::span<const std::int32_t> ids) {
    const bool cuts = ids.size() + prefix_.size() > static_cast<std::size_t>(limits_.seq_len);
    if (cuts && limits_.was_cut != nullptr) *limits_.was_cut = true;
    while (!ids.empty() && !full()) {
      const std::size_t size =
          std::min({ids.size(), static_cast<std::size_t>(limits_.seq_len) - prefix_.size(), room()});
      sequences_.push_back(prefix_);
      sequences_.back().insert(sequences_.back().end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(size));
      tokens_ += sequences_.back().size();
      ids = ids.subspan(size);
    }
  }

  [[nodiscard]] std::vector<TokenSequence> take(const std::string& where) {
    if (sequences_.empty()) throw DataError("there are no tokens", where, "name a file that is not empty");
    return std::move(sequences_);
  }

  /// Tokens that may still come, besides the prefix.
  [[nodiscard]] std::size_t room() const {
    constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
    const auto sequences = static_cast<std::size_t>(limits_.max_sequences);
    std::size_t room = kAll;
    if (limits_.max_sequences > 0) {
      const std::size_t own = static_cast<std::size_t>(limits_.seq_len) - prefix_.size();
      const std::size_t left = sequences - std::min(sequences, sequences_.size());
      room = left > kAll / own ? kAll : left * own;
    }
    if (limits_.max_tokens <= 0) return room;
    const std::size_t used = tokens_ + prefix_.size(), all = static_cast<std::size_t>(limits_.max_tokens);
    return std::min(room, all - std::min(all, used));
  }

 private:
  TokenLimits limits_;
  TokenSequence prefix_;
  std::vector<TokenSequence> sequences_;
  std::size_t tokens_ = 0;
};

TokenSequence to_ids(const std::vector<std::int64_t>& values, const std::string& where) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= 0 && values[i] <= std::numeric_limits<std::int32_t>::max()) continue;
    throw DataError("token id " + std::to_string(values[i]) + " is not in 0 … 2^31 - 1",
                    where + ", position " + std::to_string(i), "check that the file holds token ids");
  }
  return {values.begin(), values.end()};
}

/// What has no name that tells its kind: stdin, /dev/fd/63, a FIFO.
bool may_be_pipe(const fs::path& path) {
  return path == "-" || (!is_remote(path) && fs::exists(path) && !fs::is_regular_file(path));
}

void read_npy_tokens(const fs::path& path, Cutter& cutter) {
  const Tensor tensor = read_npy(path);
  const std::size_t rank = tensor.shape.size();
  if ((tensor.dtype != DType::kI32 && tensor.dtype != DType::kI64) || rank < 1 || rank > 2) {
    throw DataError("expected int32 or int64 of one or two dimensions, found " + shape_text(tensor.shape) + " of " +
                        std::string(name_of(tensor.dtype)),
                    path.string(), "save the token ids with numpy as int32");
  }
  const TokenSequence ids = to_ids(tensor.to_int64(), path.string());
  const auto length = static_cast<std::size_t>(tensor.shape.back());
  for (std::size_t begin = 0; begin < ids.size() && !cutter.full(); begin += length) {
    cutter.add(std::span(ids).subspan(begin, length));
  }
}

void read_jsonl_tokens(const fs::path& path, Cutter& cutter) {
  for_each_line(path, [&](std::string_view line, const std::string& where) {
    const Json json = parse_json(line, where);
    const auto is_id = [](const Json& value) { return value.is_number_integer(); };
    if (!json.is_array() || !std::all_of(json.begin(), json.end(), is_id)) {
      throw DataError("the line is not a list of token ids", where, "write one list such as [1, 2, 3] a line");
    }
    cutter.add(to_ids(json.get<std::vector<std::int64_t>>(), where));
    return !cutter.full();
  });
}

/// The first ids of a text, of which little more is read than they take. The last ids of what was read, which what
/// follows could change, do not count.
TokenSequence encode_stream(const Tokenizer& tokenizer, const fs::path& path, std::size_t enough) {
  constexpr std::size_t kFirst = 1 << 16, kBytesOfToken = 8, kGrowth = 4, kUnsure = 64;
  constexpr std::size_t kMost = std::size_t{1} << 30;
  TextStream stream(path);
  std::string text;
  enough = std::min(enough, kMost);
  for (std::size_t size = std::clamp(enough, kFirst, kMost / kBytesOfToken) * kBytesOfToken;; size *= kGrowth) {
    throw_if_interrupted();
    const bool more = stream.fill(text, std::min(size, kMost));
    const std::string_view read = more ? whole_characters(text) : text;
    TokenSequence ids = tokenizer.encode(read, stream.where(), enough + kUnsure);
    if (!more) return ids;
    if (ids.size() >= enough + kUnsure) {
      ids.resize(enough);
      return ids;
    }
    if (text.size() >= kMost) {
      throw DataError("the text is longer than 1 GiB, and its first GiB is not enough", stream.where(),
                      "lower --max-tokens, or give the text in several files");
    }
  }
}

}  // namespace

std::vector<TokenSequence> read_tokens(const fs::path& path, const TokenLimits& limits, Pipes pipes) {
  Cutter cutter(limits);
  if (path.extension() == ".npy") {
    read_npy_tokens(path, cutter);
  } else if (path.extension() == ".jsonl" || (pipes == Pipes::kRead && may_be_pipe(path))) {
    if (pipes == Pipes::kRefuse && !is_remote(path)) (void)regular_file_size(path);
    read_jsonl_tokens(path, cutter);
  } else {
    throw UsageError("unknown kind of token file", path.string(), "use .npy or .jsonl, or --text for text");
  }
  return cutter.take(path.string());
}

std::vector<TokenSequence> read_texts(const fs::path& model, const std::vector<fs::path>& texts,
                                      const TokenLimits& limits) {
  const Tokenizer tokenizer(tokenizer_of(model));
  Cutter cutter(limits, tokenizer.prefix());
  TokenSequence joined;
  const auto room = [&] { return cutter.room() - std::min(cutter.room(), joined.size()); };
  std::string names;
  for (const fs::path& path : texts) {
    names += (names.empty() ? "" : ", ") + path.string();
    if (room() == 0) {
      if (path != "-" && !place_exists(path)) throw DataError("no such file", path.string(), "check the path");
      continue;
    }
    if (has_documents(path)) {
      read_documents(path, [&](const std::string& text, const std::string& where) {
        throw_if_interrupted();
        if (room() > 0) cutter.add(tokenizer.encode(text, where, room()));
        return room() > 0;
      });
    } else {
      const TokenSequence ids = encode_stream(tokenizer, path, room());
      joined.insert(joined.end(), ids.begin(), ids.end());
    }
  }
  cutter.add(joined);
  return cutter.take(names);
}

std::string block_hash(std::span<const std::int32_t> ids) {
  Sha256 hash;
  hash.update(std::as_bytes(ids));
  return hash.hex().substr(0, CalibrationData::kBlockDigits);
}

namespace {

/// See CalibrationData::blocks.
std::string block_hashes(std::span<const std::int32_t> ids) {
  constexpr std::size_t kBlock = CalibrationData::kBlockTokens;
  std::string hashes;
  for (std::size_t begin = 0; begin == 0 || begin + kBlock <= ids.size(); begin += kBlock) {
    hashes += block_hash(ids.subspan(begin, std::min(kBlock, ids.size())));
  }
  return hashes;
}

}  // namespace

std::vector<std::int64_t> spread_over(std::int64_t context, const std::vector<TokenSequence>& sequences) {
  std::vector<std::int64_t> first;
  for (const TokenSequence& sequence : sequences) {
    const double place = std::fmod(static_cast<double>(first.size()) * std::numbers::phi, 1);
    first.push_back(
        std::max<std::int64_t>(0, std::llround(place * static_cast<double>(context - std::ssize(sequence)))));
  }
  return first;
}

CalibrationData describe(const std::vector<TokenSequence>& sequences) {
  Sha256 hash;
  CalibrationData data;
  data.sequences = static_cast<std::int64_t>(sequences.size());
  for (const TokenSequence& sequence : sequences) {
    const auto length = static_cast<std::int64_t>(sequence.size());
    hash.update(std::as_bytes(std::span(&length, 1)));
    hash.update(std::as_bytes(std::span(sequence)));
    data.tokens += length;
    data.blocks.push_back(block_hashes(sequence));
  }
  data.data_sha256 = hash.hex();
  return data;
}

}  // namespace oscar
