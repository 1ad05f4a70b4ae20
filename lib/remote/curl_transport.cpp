// SPDX-License-Identifier: MIT
// Files on a web server: the only file that knows libcurl's way of fetching. Everything goes through one multi handle,
// so that the index, the manifest and the files share connections: over HTTP/2 all of them one.
#include <algorithm>
#include <chrono>
#include <exception>
#include <list>
#include <map>
#include <utility>

#include "base/check.hpp"
#include "base/status.hpp"
#include "remote/curl_transfer.hpp"
#include "remote/transport.hpp"

namespace oscar {
namespace {

constexpr int kConcurrency = 8;
constexpr int kPollMilliseconds = 50;
constexpr int kPollForScoutsMilliseconds = 2;

/// The page that comes with a redirect or an error may be larger than the file; what takes the bytes counts them, too.
constexpr std::uint64_t kPageBytes = 64 << 10;

using Clock = std::chrono::steady_clock;
/// What is read from a socket at once; libcurl's own 16 KiB mean sixteen times as many reads.
constexpr long kReceiveBytes = 256 << 10;

class CurlTransport : public Transport {
 public:
  CurlTransport(const StoreLocation& location, const TransferOptions& options)
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
    PieceRequest request{path, 0, std::nullopt, max_bytes};
    request.sink = [&](std::span<const std::byte> bytes, bool) { sink(bytes); };
    request.query = query;
    request.link = &link;
    get_one(std::move(request));
    return link;
  }

  /// HEAD requests, which go on beside whatever is asked for next.
  void expect(const std::vector<std::string>& paths) override {
    scouts_sent_ = Clock::now();
    suspects_ += static_cast<int>(paths.size());
    for (const std::string& path : paths) {
      CurlTransfer& scout = scouts_.emplace_back();
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
  void configure(CurlTransfer& transfer, const StoreLocation& location, const std::string& url) {
    CurlHandle& handle = transfer.handle;
    handle.configure(location, options_.timeout_seconds);
    handle.set(CURLOPT_URL, url.c_str());
    // Rather a stream of a connection that is there than another one; without TLS there are no streams to wait for.
    handle.set(CURLOPT_PIPEWAIT, url.starts_with("https://") ? 1L : 0L);
    handle.set(CURLOPT_PRIVATE, &transfer);
  }

  void start(PieceRequest request) {
    CurlTransfer& transfer = transfers_.emplace_back();
    transfer.request = std::move(request);
    CurlHandle& handle = transfer.handle;
    const std::string& query = transfer.request.query;
    // Once: where a redirect leads may be true for a short time only.
    if (const auto known = redirects_.extract(transfer.request.path)) {
      transfer.directly = true;
      StoreLocation elsewhere;
      elsewhere.url = known.mapped();
      configure(transfer, elsewhere, known.mapped());
    } else {
      configure(transfer, location_, where(transfer.request.path) + (query.empty() ? "" : "?" + query));
    }
    handle.set(CURLOPT_FAILONERROR, 1L);
    handle.set(CURLOPT_BUFFERSIZE, kReceiveBytes);
    handle.set(CURLOPT_WRITEFUNCTION, &on_transfer_bytes);
    handle.set(CURLOPT_WRITEDATA, &transfer);
    const std::uint64_t limit = std::clamp<std::uint64_t>(transfer.request.max_bytes, kPageBytes, INT64_MAX);
    handle.set(CURLOPT_MAXFILESIZE_LARGE, static_cast<curl_off_t>(limit));
    const std::uint64_t offset = transfer.request.offset;
    if (offset > 0 || transfer.request.length) {
      const std::string last = transfer.request.length ? std::to_string(offset + *transfer.request.length - 1) : "";
      handle.set(CURLOPT_RANGE, (std::to_string(offset) + "-" + last).c_str());
    }
    if (!transfer.request.if_match.empty()) handle.add_header("If-Match: " + transfer.request.if_match);
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
      auto& transfer = *reinterpret_cast<CurlTransfer*>(user);
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

  /// What a HEAD request found out; TLS is never left. Redirects within the location's own scheme and host are of no
  /// use: requests there need the credentials, which are never sent to an address that a server named.
  void learn(const CurlTransfer& scout) {
    const std::string url = scout.handle.redirect();
    const bool secure = location_.url.starts_with("https://");
    const bool elsewhere = origin_of(url) != origin_of(location_.url);
    if (elsewhere && (url.starts_with("https://") || (!secure && url.starts_with("http://")))) {
      redirects_[scout.request.path] = url;
    }
    scouts_.remove_if([&](const CurlTransfer& other) { return &other == &scout; });
  }

  void finish(CurlTransfer& transfer, CURLcode code) {
    std::exception_ptr failure = transfer.failure;
    if (failure == nullptr) {
      try {
        transfer.check(code, where(transfer.request.path));
        transfer.begin();
        if (transfer.request.link != nullptr) *transfer.request.link = transfer.handle.header("link");
      } catch (...) {
        failure = std::current_exception();
      }
    }
    if (failure != nullptr && is_scouts_fault(transfer, code)) failure = unsaid(failure);
    const auto done = std::move(transfer.request.done);
    transfers_.remove_if([&](const CurlTransfer& other) { return &other == &transfer; });
    done(failure);
  }

  /// Whether asking again, without what the scouts found, may do. Bodies that a server sent with answers to HEAD look
  /// like answers of another protocol to whoever gets the connection next: that happens once for a scout at most.
  bool is_scouts_fault(const CurlTransfer& transfer, CURLcode code) {
    if (transfer.directly) return true;
    const bool stray = code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_WEIRD_SERVER_REPLY;
    return stray && transfer.handle.status() == 0 && suspects_-- > 0;  // with a status: a redirect to a file
  }

  void drop_all() {
    for (auto* list : {&transfers_, &scouts_}) {
      for (CurlTransfer& transfer : *list) curl_multi_remove_handle(multi_.get(), transfer.handle.get());
      list->clear();
    }
  }

  StoreLocation location_;
  TransferOptions options_;
  std::unique_ptr<CURLM, CURLMcode (*)(CURLM*)> multi_;
  std::list<CurlTransfer> transfers_, scouts_;
  int suspects_ = 0;  // scouts whose connections may still carry what should not be there
  Clock::time_point scouts_sent_{}, last_answer_{};
  std::map<std::string, std::string> redirects_;  // path -> where the server sent a HEAD request for it
};

}  // namespace

std::unique_ptr<Transport> make_curl_transport(const StoreLocation& location, const TransferOptions& options) {
  return std::make_unique<CurlTransport>(location, options);
}

}  // namespace oscar
