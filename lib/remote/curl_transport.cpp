// SPDX-License-Identifier: MIT
// Files on a web server. Everything goes through one multi handle, so that the index, the manifest and the files share
// connections: over HTTP/2 all of them one.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <limits>
#include <list>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/status.hpp"
#include "base/text.hpp"
#include "remote/curl_handle.hpp"
#include "remote/fetch.hpp"
#include "remote/transport.hpp"

namespace oscar {
namespace {

constexpr int kConcurrency = 8;
constexpr int kPollMilliseconds = 50;
/// The page that comes with a redirect or an error may be larger than the file; what takes the bytes counts them, too.
constexpr std::uint64_t kPageBytes = 64 << 10;
/// What is read from a socket at once; libcurl's own 16 KiB mean sixteen times as many reads.
constexpr long kReceiveBytes = 256 << 10;

AnswerHeader header_of(const CurlHandle& handle) {
  AnswerHeader answer;
  answer.partial = handle.status() == 206;
  answer.version = handle.header("etag");
  if (answer.version.empty()) answer.version = handle.header("last-modified");
  if (!answer.partial) {
    answer.size = parse_number<std::uint64_t>(handle.header("content-length"));
    return answer;
  }
  // RFC 9110: "bytes 5-9/100"; a star in place of a size that the server does not know.
  const std::string range = handle.header("content-range");
  const auto blank = range.find(' '), dash = range.find('-'), slash = range.find('/');
  const bool sound = blank < dash && dash < slash && slash != std::string::npos;
  const auto number = [&](std::size_t begin, std::size_t end) {
    return sound ? parse_number<std::uint64_t>(std::string_view(range).substr(begin, end - begin)) : std::nullopt;
  };
  // A piece from nowhere is nobody's.
  answer.offset = number(blank + 1, dash).value_or(std::numeric_limits<std::uint64_t>::max());
  answer.size = number(slash + 1, range.size());
  return answer;
}

/// One request under way. An exception may not cross libcurl's C frames: it is kept and thrown after.
struct CurlTransfer {
  Request request;
  CurlHandle handle;
  std::uint64_t to_skip = 0;  // of an answer that begins before what was asked for
  bool begun = false;
  std::exception_ptr failure;

  /// Called once, before the first byte of the answer or at its end.
  void begin() {
    if (std::exchange(begun, true)) return;
    to_skip = handle.status() == 206 ? 0 : request.offset;
    if (request.begin) request.begin(header_of(handle));
  }

  void take(std::span<const std::byte> bytes) {
    if (handle.status() >= 300) return;  // the page of a redirect that is not followed: check() says it
    begin();
    const std::size_t skipped = std::min<std::uint64_t>(to_skip, bytes.size());
    to_skip -= skipped;
    if (skipped < bytes.size()) request.sink(bytes.subspan(skipped));
  }

  /// Ends without a word if libcurl's `code` and the answer mean that all went well.
  void check(CURLcode code, const std::string& where) const {
    const long status = handle.status();
    const bool ranged = request.offset > 0 || request.length;
    if (code == CURLE_OK && (status == 200 || (ranged && status == 206))) return;
    if (code == CURLE_FILESIZE_EXCEEDED) {
      throw TransportError(
          "the server offers more than the " + plural(request.max_bytes, "byte") + " that are expected", where,
          "check that the address is the right one; tell who hosts it");
    }
    const bool answered = code == CURLE_OK || code == CURLE_HTTP_RETURNED_ERROR;
    const std::string what = handle.failure(code);
    if (answered && status == 404) throw NotFound(what, where, "check the address and the name");
    if (answered && status == 412) throw Changed(where);
    if (answered && status == 401) {
      throw Denied(what, where, "check the password in ~/.netrc or the token, and that it may read this");
    }
    if (answered && status == 403) {
      throw Denied(what, where,
                   "check the address, and that you may read this: some servers answer so for what is "
                   "not there");
    }
    handle.fail(code, where,
                status == 416 ? "the file is shorter than what is asked of it: upload it again"
                              : "check the address, or try again later");
  }
};

/// CURLOPT_WRITEFUNCTION; user: the CurlTransfer.
std::size_t on_bytes(char* data, std::size_t size, std::size_t count, void* user) {
  auto& transfer = *static_cast<CurlTransfer*>(user);
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
  CurlTransport(const StoreLocation& location, const TransferOptions& options)
      : location_(location), options_(options), multi_((init_curl(), curl_multi_init()), &curl_multi_cleanup) {
    OSCAR_CHECK(multi_ != nullptr);
    curl_multi_setopt(multi_.get(), CURLMOPT_MAX_HOST_CONNECTIONS, long{kConcurrency});
  }
  ~CurlTransport() override { drop_all(); }

  void run(const RequestSource& source) override {
    try {
      while (!source.finished()) {
        while (transfers_.size() < kConcurrency) {
          auto request = source.next();
          if (!request) break;
          start(std::move(*request));
        }
        int running = 0;
        OSCAR_CHECK(curl_multi_perform(multi_.get(), &running) == CURLM_OK);
        throw_if_interrupted();
        if (!finish_some()) curl_multi_poll(multi_.get(), nullptr, 0, kPollMilliseconds, nullptr);
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
  void start(Request request) {
    CurlTransfer& transfer = transfers_.emplace_back();
    transfer.request = std::move(request);
    const Request& asked = transfer.request;
    CurlHandle& handle = transfer.handle;
    handle.configure(location_, options_.timeout_seconds);
    handle.set(CURLOPT_URL, where(asked.path).c_str());
    // Rather a stream of a connection that is there than another one; without TLS there are no streams to wait for.
    handle.set(CURLOPT_PIPEWAIT, location_.url.starts_with("https://") ? 1L : 0L);
    handle.set(CURLOPT_PRIVATE, &transfer);
    handle.set(CURLOPT_FAILONERROR, 1L);
    handle.set(CURLOPT_BUFFERSIZE, kReceiveBytes);
    handle.set(CURLOPT_WRITEFUNCTION, &on_bytes);
    handle.set(CURLOPT_WRITEDATA, &transfer);
    const std::uint64_t limit = std::clamp<std::uint64_t>(asked.max_bytes, kPageBytes, INT64_MAX);
    handle.set(CURLOPT_MAXFILESIZE_LARGE, static_cast<curl_off_t>(limit));
    if (asked.offset > 0 || asked.length) {
      const std::string last = asked.length ? std::to_string(asked.offset + *asked.length - 1) : "";
      handle.set(CURLOPT_RANGE, (std::to_string(asked.offset) + "-" + last).c_str());
    }
    if (!asked.if_match.empty()) handle.add_header("If-Match: " + asked.if_match);
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
      const CURLcode code = message->data.result;
      curl_multi_remove_handle(multi_.get(), message->easy_handle);
      finish(*reinterpret_cast<CurlTransfer*>(user), code);
      any = true;
    }
    return any;
  }

  void finish(CurlTransfer& transfer, CURLcode code) {
    std::exception_ptr failure = transfer.failure;
    if (failure == nullptr) {
      try {
        transfer.check(code, where(transfer.request.path));
        transfer.begin();
      } catch (...) {
        failure = std::current_exception();
      }
    }
    const auto done = std::move(transfer.request.done);
    transfers_.remove_if([&](const CurlTransfer& other) { return &other == &transfer; });
    done(failure);
  }

  void drop_all() {
    for (CurlTransfer& transfer : transfers_) curl_multi_remove_handle(multi_.get(), transfer.handle.get());
    transfers_.clear();
  }

  StoreLocation location_;
  TransferOptions options_;
  std::unique_ptr<CURLM, CURLMcode (*)(CURLM*)> multi_;
  std::list<CurlTransfer> transfers_;
};

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

std::size_t on_answer(char* data, std::size_t size, std::size_t count, void* user) {
  auto& text = *static_cast<std::string*>(user);
  if (text.size() + size * count > kMaxDocumentBytes) return 0;
  text.append(data, size * count);
  return size * count;
}

/// A PUT sends a file, in which libcurl itself seeks where it must begin again; others send a text.
void send_body(CurlHandle& handle, const HttpCall& call, File& file) {
  handle.add_header("Expect:");
  if (call.method != "PUT") {
    handle.set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call.text.size()));
    handle.set(CURLOPT_POSTFIELDS, call.text.c_str());
    return;
  }
  const std::uint64_t size = regular_file_size(call.file);
  file.reset(std::fopen(call.file.c_str(), "rbe"));
  if (file == nullptr) throw IoError("cannot open for reading", call.file.string(), "check the permissions");
  handle.set(CURLOPT_UPLOAD, 1L);
  handle.set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(size));
  handle.set(CURLOPT_READDATA, file.get());
}

HttpAnswer call_once(const StoreLocation& location, const HttpCall& call, const TransferOptions& options) {
  CurlHandle handle;
  File file{nullptr, &std::fclose};
  HttpAnswer answer;
  handle.configure(location, options.timeout_seconds, call.authorize);
  handle.set(CURLOPT_URL, call.url.c_str());
  if (call.method != "GET") send_body(handle, call, file);
  for (const std::string& line : call.headers) handle.add_header(line);
  handle.set(CURLOPT_WRITEFUNCTION, &on_answer);
  handle.set(CURLOPT_WRITEDATA, &answer.body);
  const CURLcode code = curl_easy_perform(handle.get());
  throw_if_interrupted();
  if (file && std::ferror(file.get()) != 0) throw IoError("cannot read", call.file.string(), "check the disk");
  if (code == CURLE_WRITE_ERROR) {
    throw TransportError("the answer has more than " + plural(kMaxDocumentBytes, "byte"), call.url,
                         "check the address");
  }
  answer.status = handle.status();
  if (code != CURLE_OK || handle.may_pass(code)) handle.fail(code, call.url, "try again later");
  const char* method = nullptr;
  curl_easy_getinfo(handle.get(), CURLINFO_EFFECTIVE_METHOD, &method);
  if (method == nullptr || call.method == method) return answer;
  throw TransportError("the server answers a " + call.method + " with another page", call.url, "check the address");
}

}  // namespace

std::unique_ptr<Transport> make_curl_transport(const StoreLocation& location, const TransferOptions& options) {
  return std::make_unique<CurlTransport>(location, options);
}

HttpAnswer call_http(const StoreLocation& location, const HttpCall& call, const TransferOptions& options,
                     Status& status) {
  HttpAnswer answer;
  with_retries(options, status, [&] { answer = call_once(location, call, options); });
  return answer;
}

}  // namespace oscar
