// SPDX-License-Identifier: MIT
#include "model/tokenizer/tokens.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/places.hpp"
#include "base/sha256.hpp"
#include "base/status.hpp"
#include "model/tokenizer/text_stream.hpp"
#include "model/tokenizer/tokenizer.hpp"
#include "model/tokenizer/unicode.hpp"
#include "tensor/npy.hpp"

namespace oscar {
namespace {

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
