// SPDX-License-Identifier: MIT
// Files in a folder, one after the other, each from its start.
#include "remote/transport.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

#include "base/files.hpp"
#include "base/status.hpp"
#include "base/text.hpp"

namespace oscar {
namespace {

[[noreturn]] void refuse(const std::string& what, const AskedFor& asked) {
  throw UsageError(what, asked.option, asked.remedy);
}

std::string without_slashes(std::string text) {
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

StoreLocation folder_at(const std::string& path, const AskedFor& asked) {
  if (path.empty()) refuse("the folder's name is empty", asked);
  StoreLocation location;
  location.folder = fs::absolute(without_slashes(path)).lexically_normal();
  return location;
}

StoreLocation server_at(const std::string& scheme, const std::string& rest, const AskedFor& asked) {
  if (rest.find('@') != std::string::npos) {  // of which nothing is shown: it may be a password
    throw UsageError("an address has no user and no password", asked.option,
                     "leave them out, and put \"machine HOST login USER password …\" into ~/.netrc");
  }
  const std::string host = rest.substr(0, rest.find('/'));
  if (host.empty() || rest.find_first_of("?# \t\r\n\"<>\\") != std::string::npos) {
    refuse("not an address: " + scheme + "://" + rest.substr(0, rest.find_first_of("?#")), asked);
  }
  StoreLocation location;
  location.remote = true;
  location.url = scheme + "://" + without_slashes(rest);
  return location;
}

constexpr std::size_t kBlock = std::size_t{1} << 20;

class FolderTransport : public Transport {
 public:
  explicit FolderTransport(fs::path root) : root_(std::move(root)) {}

  [[nodiscard]] std::string where(const std::string& path) const override { return (root_ / path).string(); }

  void run(const RequestSource& source) override {
    while (!source.finished()) {
      throw_if_interrupted();
      const auto request = source.next();
      if (!request) {  // all of it waits for another attempt
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        continue;
      }
      std::uint64_t to_skip = request->offset;
      std::exception_ptr failure;
      try {
        read(where(request->path), request->max_bytes, [&](std::span<const std::byte> bytes) {
          const std::size_t skipped = std::min<std::uint64_t>(to_skip, bytes.size());
          to_skip -= skipped;
          if (skipped < bytes.size()) request->sink(bytes.subspan(skipped));
        });
      } catch (...) {
        failure = std::current_exception();
      }
      request->done(failure);
    }
  }

 private:
  /// Streams all of a file. One that exceeds max_bytes is refused.
  static void read(const std::string& file, std::uint64_t max_bytes,
                   const std::function<void(std::span<const std::byte>)>& sink) {
    std::error_code error;
    // A pipe or a device would block or never end.
    if (!fs::is_regular_file(file, error)) {
      throw NotFound("no such file", file, "check the path of the zoo, and that the set was published completely");
    }
    if (const auto size = fs::file_size(file, error); !error && size > max_bytes) {
      throw TransportError("the file has " + plural(size, "byte") + ", more than the " + std::to_string(max_bytes) +
                               " that are expected",
                           file, "publish the set again");
    }
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(std::fopen(file.c_str(), "rbe"), &std::fclose);
    if (stream == nullptr) throw_io("cannot open", file, errno);
    std::vector<std::byte> block(kBlock);
    for (std::size_t count = block.size(); count == block.size();) {
      throw_if_interrupted();
      count = std::fread(block.data(), 1, block.size(), stream.get());
      if (count > 0) sink(std::span(block).first(count));
    }
    if (std::ferror(stream.get()) != 0) throw_io("cannot read", file, errno);
  }

  fs::path root_;
};

}  // namespace

std::string environment(const char* name, const std::string& otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

bool may_see_secrets(const std::string& url) {
  constexpr std::array<std::string_view, 3> kHere{"http://127.0.0.1", "http://localhost", "http://[::1]"};
  return url.starts_with("https://") || std::ranges::any_of(kHere, [&](std::string_view begin) {
           return url.starts_with(begin) &&
                  (url.size() == begin.size() || url[begin.size()] == ':' || url[begin.size()] == '/');
         });
}

std::string join_path(const std::string& prefix, const std::string& path) {
  if (prefix.empty() || path.empty()) return prefix + path;
  return prefix + "/" + path;
}

std::string percent_decoded(const std::string& text, const AskedFor& asked) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      result += text[i];
      continue;
    }
    int byte = 0;
    const char* const begin = text.data() + i + 1;
    const bool whole = i + 2 < text.size() && std::from_chars(begin, begin + 2, byte, 16).ptr == begin + 2;
    if (!whole || byte <= 0) refuse("bad percent code in the address", asked);
    result += static_cast<char>(byte);
    i += 2;
  }
  return result;
}

StoreLocation parse_location(const std::string& text, const AskedFor& asked) {
  const auto mark = text.find("://");
  if (mark == std::string::npos) return folder_at(text, asked);
  const std::string scheme = text.substr(0, mark), rest = text.substr(mark + 3);
  if (scheme == "http" || scheme == "https") return server_at(scheme, rest, asked);
  if (scheme != "file") refuse("addresses at " + scheme + ":// are not supported", asked);
  const std::string path = rest.starts_with("localhost/") ? rest.substr(9) : rest;
  if (!path.starts_with('/')) refuse("file:// needs an absolute path", asked);
  return folder_at(percent_decoded(path, asked), asked);
}

std::unique_ptr<Transport> make_folder_transport(fs::path root) {
  return std::make_unique<FolderTransport>(std::move(root));
}

std::unique_ptr<Transport> open_transport(const StoreLocation& location, const TransferOptions& options) {
  return location.remote ? make_curl_transport(location, options) : make_folder_transport(location.folder);
}

}  // namespace oscar
