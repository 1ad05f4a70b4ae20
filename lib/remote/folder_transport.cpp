// SPDX-License-Identifier: MIT
// Files in a folder, one after the other, each from its start.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "base/files.hpp"
#include "base/status.hpp"
#include "base/text.hpp"
#include "remote/transport.hpp"

namespace oscar {
namespace {

namespace fs = std::filesystem;

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
      throw TransportError("the file has " + plural(static_cast<std::int64_t>(size), "byte") + ", more than the " +
                               std::to_string(max_bytes) + " that are expected",
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

std::unique_ptr<Transport> make_folder_transport(fs::path root) {
  return std::make_unique<FolderTransport>(std::move(root));
}

std::unique_ptr<Transport> open_transport(const StoreLocation& location, const TransferOptions& options) {
  return location.remote ? make_curl_transport(location, options) : make_folder_transport(location.folder);
}

}  // namespace oscar
