// SPDX-License-Identifier: MIT
// A zoo on a web server: the only file that knows libcurl's way of fetching. Everything goes through one multi handle,
// so that the index, the manifest and the files share connections: over HTTP/2 all of them one.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <list>
#include <map>
#include <utility>

#include "base/check.hpp"
#include "base/sha256.hpp"
#include "base/status.hpp"
#include "zoo/curl_handle.hpp"
#include "zoo/transport.hpp"

namespace oscar {
namespace {

constexpr int kConcurrency = 8;
constexpr int kPollMilliseconds = 50;
constexpr int kPollForScoutsMilliseconds = 2;

/// The page that comes with a redirect or an error may be larger than the file; what takes the bytes counts them, too.
constexpr std::uint64_t kPageBytes = 64 << 10;

using Clock = std::chrono::steady_clock;
/// What is read from a socket at once; libcurl's own 16 KiB mean sixteen times as many reads.
constexpr long kBlockBytes = 256 << 10;

/// One request under way. An exception may not cross libcurl's C frames: it is kept and thrown after.
struct Transfer {
  PieceRequest request;
  CurlHandle handle;
  std::uint64_t to_skip = 0;  // of an answer that begins before what was asked for
  bool begun = false, partial = false;
  bool directly = false;  // to where a redirect is known to lead
  std::exception_ptr failure;

  void take(std::span<const std::byte> bytes) {
    if (!begun) {
      begun = true;
      partial = handle.status() == 206;
      to_skip = partial ? 0 : request.offset;
    }
    const std::size_t skipped = std::min<std::uint64_t>(to_skip, bytes.size());
    to_skip -= skipped;
    if (skipped < bytes.size()) request.sink(bytes.subspan(skipped), partial);
  }
};

std::size_t on_bytes(char* data, std::size_t size, std::size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  try {
    transfer.take(std::as_bytes(std::span(data, size * count)));
    return size * count;
  } catch (...) {
    transfer.failure = std::current_exception();
    return 0;  // fewer than given: libcurl stops
  }
}

class CurlTransport : public Transport {
 public:
  CurlTransport(const ZooLocation& location, const TransferOptions& options)
      : location_(location), options_(options), multi_((init_curl(), curl_multi_init()), &curl_multi_cleanup) {
    OSCAR_CHECK(multi_ != nullptr);
    curl_multi_setopt(multi_.get(), CURLMOPT_MAX_HOST_CONNECTIONS, long{kConcurrency});
  }
  ~CurlTransport() override { drop_all(); }

  void get(const std::string& path, std::uint64_t max_bytes, const ByteSink& sink) override {
    (void)get_page(path, "", max_bytes, sink);
  }

  std::string get_page(const std::string& path, const std::string& query, std::uint64_t max_bytes,
                       const ByteSink& sink) override {
    std::string link;
    bool begun = false, finished = false;
    const auto next = [&]() -> std::optional<PieceRequest> {
      if (std::exchange(begun, true)) return std::nullopt;
      return PieceRequest{path,
                          0,
                          std::nullopt,
                          max_bytes,
                          [&](std::span<const std::byte> bytes, bool) { sink(bytes); },
                          [&](std::exception_ptr failure) {
                            finished = true;
                            if (failure != nullptr) std::rethrow_exception(failure);
                          },
                          query,
                          &link};
    };
    get_pieces({next, [&] { return finished; }});
    return link;
  }

  /// HEAD requests, which go on beside whatever is asked for next.
  void expect(const std::vector<std::string>& paths) override {
    scouts_sent_ = Clock::now();
    for (const std::string& path : paths) {
      Transfer& scout = scouts_.emplace_back();
      scout.request.path = path;
      configure(scout, location_, where(path));
      scout.handle.set(CURLOPT_NOBODY, 1L);
      scout.handle.set(CURLOPT_FOLLOWLOCATION, 0L);
      OSCAR_CHECK(curl_multi_add_handle(multi_.get(), scout.handle.get()) == CURLM_OK);
    }
  }

  void get_pieces(const PieceSource& source) override {
    try {
      while (!source.finished()) {
        const bool waiting = awaits_scouts();
        while (!waiting && transfers_.size() < kConcurrency) {
          auto request = source.next();
          if (!request) break;
          start(std::move(*request));
        }
        int running = 0;
        OSCAR_CHECK(curl_multi_perform(multi_.get(), &running) == CURLM_OK);
        throw_if_interrupted();
        const int milliseconds = waiting ? kPollForScoutsMilliseconds : kPollMilliseconds;
        if (!finish_some()) curl_multi_poll(multi_.get(), nullptr, 0, milliseconds, nullptr);
      }
    } catch (...) {
      drop_all();
      throw;
    }
  }

  [[nodiscard]] int concurrency() const override { return kConcurrency; }
  [[nodiscard]] std::string where(const std::string& path) const override {
    return location_.url + "/" + percent_encoded(path);
  }

 private:
  /// What all requests have; location: whose credentials are sent.
  void configure(Transfer& transfer, const ZooLocation& location, const std::string& url) {
    CurlHandle& handle = transfer.handle;
    handle.configure(location, options_.timeout_seconds);
    handle.set(CURLOPT_URL, url.c_str());
    if (!location.aws_sigv4.empty()) handle.add_header("x-amz-content-sha256: " + sha256_hex(""));
    // Rather a stream of a connection that is there than another one; without TLS there are no streams to wait for.
    handle.set(CURLOPT_PIPEWAIT, url.starts_with("https://") ? 1L : 0L);
    handle.set(CURLOPT_PRIVATE, &transfer);
  }

  void start(PieceRequest request) {
    Transfer& transfer = transfers_.emplace_back();
    transfer.request = std::move(request);
    CurlHandle& handle = transfer.handle;
    const std::string& query = transfer.request.query;
    // Once: where a redirect leads may be true for a short time only.
    if (const auto known = redirects_.extract(transfer.request.path)) {
      transfer.directly = true;
      ZooLocation elsewhere;
      elsewhere.url = known.mapped();
      configure(transfer, elsewhere, known.mapped());
    } else {
      configure(transfer, location_, where(transfer.request.path) + (query.empty() ? "" : "?" + query));
    }
    handle.set(CURLOPT_FAILONERROR, 1L);
    handle.set(CURLOPT_BUFFERSIZE, kBlockBytes);
    handle.set(CURLOPT_WRITEFUNCTION, &on_bytes);
    handle.set(CURLOPT_WRITEDATA, &transfer);
    const std::uint64_t limit = std::clamp<std::uint64_t>(transfer.request.max_bytes, kPageBytes, INT64_MAX);
    handle.set(CURLOPT_MAXFILESIZE_LARGE, static_cast<curl_off_t>(limit));
    const std::uint64_t offset = transfer.request.offset;
    if (offset > 0 || transfer.request.length) {
      const std::string last = transfer.request.length ? std::to_string(offset + *transfer.request.length - 1) : "";
      handle.set(CURLOPT_RANGE, (std::to_string(offset) + "-" + last).c_str());
    }
    OSCAR_CHECK(curl_multi_add_handle(multi_.get(), handle.get()) == CURLM_OK);
  }

  /// Ends the requests that libcurl is done with. False: there was none.
  bool finish_some() {
    bool any = false;
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi_.get(), &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      char* user = nullptr;
      curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &user);
      auto& transfer = *reinterpret_cast<Transfer*>(user);
      const CURLcode code = message->data.result;
      curl_multi_remove_handle(multi_.get(), message->easy_handle);
      if (transfer.request.done == nullptr) {
        learn(transfer);
        continue;
      }
      any = true;
      last_answer_ = Clock::now();
      finish(transfer, code);
    }
    return any;
  }

  /// Scouts left together with requests that are answered by now: a moment more and they are back, too.
  [[nodiscard]] bool awaits_scouts() const {
    if (scouts_.empty() || !transfers_.empty()) return false;
    const auto moment = std::min<Clock::duration>((last_answer_ - scouts_sent_) / 4, std::chrono::milliseconds(100));
    return Clock::now() < last_answer_ + moment;
  }

  /// What a HEAD request found out; TLS is never left.
  void learn(const Transfer& scout) {
    const std::string url = scout.handle.redirect();
    const bool secure = location_.url.starts_with("https://");
    if (url.starts_with("https://") || (!secure && url.starts_with("http://"))) redirects_[scout.request.path] = url;
    scouts_.remove_if([&](const Transfer& other) { return &other == &scout; });
  }

  void finish(Transfer& transfer, CURLcode code) {
    std::exception_ptr failure = transfer.failure;
    if (failure == nullptr) {
      try {
        check(transfer, code);
        if (transfer.request.link != nullptr) *transfer.request.link = transfer.handle.header("link");
      } catch (...) {
        failure = std::current_exception();
      }
    }
    const auto done = std::move(transfer.request.done);
    transfers_.remove_if([&](const Transfer& other) { return &other == &transfer; });
    done(failure);
  }

  void check(const Transfer& transfer, CURLcode code) const {
    const CurlHandle& handle = transfer.handle;
    const std::string& path = transfer.request.path;
    const long status = handle.status();
    const bool ranged = transfer.request.offset > 0 || transfer.request.length;
    if (code == CURLE_OK && (status == 200 || (ranged && status == 206))) return;
    if (code == CURLE_OK || code == CURLE_HTTP_RETURNED_ERROR) {
      const char* remedy = status == 404   ? "check the address of the zoo and the name"
                           : status == 401 ? "check the credentials, and that they may read this"
                           : status == 403
                               ? "check the credentials, and the address: some stores answer so for what is "
                                 "not there"
                               : "check the address, or try again later";
      const std::string what = "the server answered HTTP " + std::to_string(status);
      if (status == 404 && !transfer.directly) throw NotFound(what, where(path), remedy);
      if ((status == 401 || status == 403) && !transfer.directly) throw Denied(what, where(path), remedy);
      fail(what, path, transfer.directly || handle.may_pass(code), remedy, handle.retry_after());
    }
    if (code == CURLE_FILESIZE_EXCEEDED) {
      fail("the server offers more than the " + std::to_string(transfer.request.max_bytes) + " bytes that are expected",
           path, false, "check that the address is a zoo; tell who hosts it", 0);
    }
    fail("the transfer failed: " + handle.reason(code), path, handle.may_pass(code),
         "check the address, the network and the proxy settings, then run again", 0);
  }

  [[noreturn]] void fail(const std::string& what, const std::string& path, bool transient, const std::string& remedy,
                         double retry_after) const {
    if (!transient) throw TransportError(what, where(path), remedy);
    TransientError error(what, where(path), remedy);
    error.retry_after_seconds = retry_after;
    throw error;
  }

  void drop_all() {
    for (auto* list : {&transfers_, &scouts_}) {
      for (Transfer& transfer : *list) curl_multi_remove_handle(multi_.get(), transfer.handle.get());
      list->clear();
    }
  }

  ZooLocation location_;
  TransferOptions options_;
  std::unique_ptr<CURLM, CURLMcode (*)(CURLM*)> multi_;
  std::list<Transfer> transfers_, scouts_;
  Clock::time_point scouts_sent_{}, last_answer_{};
  std::map<std::string, std::string> redirects_;  // path -> where the server sent a HEAD request for it
};

}  // namespace

std::unique_ptr<Transport> make_curl_transport(const ZooLocation& location, const TransferOptions& options) {
  return std::make_unique<CurlTransport>(location, options);
}

}  // namespace oscar
