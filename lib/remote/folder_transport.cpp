// SPDX-License-Identifier: MIT
// Files in a folder.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

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

  void get(const std::string& path, std::uint64_t max_bytes, const ByteSink& sink) override {
    const std::string file = where(path);
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
    if (stream == nullptr)
      throw IoError(std::string("cannot open: ") + std::strerror(errno), file, "check the permissions");
    std::vector<std::byte> block(kBlock);
    for (;;) {
      throw_if_interrupted();
      const std::size_t count = std::fread(block.data(), 1, block.size(), stream.get());
      if (count > 0) sink(std::span(block).first(count));
      if (count == block.size()) continue;
      if (std::ferror(stream.get()) != 0) throw IoError(std::string("cannot read: ") + std::strerror(errno), file, "");
      return;
    }
  }

  [[nodiscard]] std::string where(const std::string& path) const override { return (root_ / path).string(); }

 private:
  fs::path root_;
};

}  // namespace

std::string Transport::get_page(const std::string& path, const std::string&, std::uint64_t max_bytes,
                                const ByteSink& sink) {
  get(path, max_bytes, sink);
  return "";
}

void Transport::get_one(PieceRequest request) {
  bool begun = false, finished = false;
  request.done = [&](std::exception_ptr failure) {
    finished = true;
    if (failure != nullptr) std::rethrow_exception(failure);
  };
  const auto next = [&]() -> std::optional<PieceRequest> {
    if (std::exchange(begun, true)) return std::nullopt;
    return std::move(request);
  };
  get_pieces({next, [&] { return finished; }});
}

void Transport::get_pieces(const PieceSource& source) {
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
      get(request->path, request->max_bytes, [&](std::span<const std::byte> bytes) {
        const std::size_t skipped = std::min<std::uint64_t>(to_skip, bytes.size());
        to_skip -= skipped;
        if (skipped < bytes.size()) request->sink(bytes.subspan(skipped), false);
      });
    } catch (...) {
      failure = std::current_exception();
    }
    request->done(failure);
  }
}

std::unique_ptr<Transport> make_folder_transport(fs::path root) {
  return std::make_unique<FolderTransport>(std::move(root));
}

std::unique_ptr<Transport> open_transport(const StoreLocation& location, const TransferOptions& options) {
  return location.remote ? make_curl_transport(location, options) : make_folder_transport(location.folder);
}

}  // namespace oscar
