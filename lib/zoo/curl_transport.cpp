// SPDX-License-Identifier: MIT
// A zoo on a web server: the only file that knows libcurl, which is initialised when the first transport is made.
#include <curl/curl.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <mutex>

#include "base/check.hpp"
#include "base/status.hpp"
#include "base/version.hpp"
#include "zoo/transport.hpp"

namespace oscar {
namespace {

constexpr long kMaxRedirects = 5;
constexpr long kMaxConnectSeconds = 15;

/// Everything but RFC 3986's unreserved characters and '/' as %XX: a path from an index cannot grow a query or a host.
std::string percent_encoded(const std::string& path) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string text;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '.' || c == '_' || c == '~' || c == '/';
    if (plain) {
      text += c;
    } else {
      text += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return text;
}

/// What the callbacks of one transfer share. An exception may not cross libcurl's C frames: it is kept and thrown
/// after.
struct Transfer {
  const ByteSink& sink;
  std::exception_ptr failure;
};

std::size_t on_bytes(char* data, std::size_t size, std::size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  try {
    transfer.sink(std::as_bytes(std::span(data, size * count)));
    return size * count;
  } catch (...) {
    transfer.failure = std::current_exception();
    return 0;  // fewer than given: libcurl stops
  }
}

int on_progress(void*, curl_off_t, curl_off_t, curl_off_t, curl_off_t) { return interrupt_requested() ? 1 : 0; }

bool is_transient_status(long status) {
  return status == 408 || status == 429 || status == 500 || (status >= 502 && status <= 504);
}

bool is_transient(CURLcode code, bool connected) {
  switch (code) {
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      return true;
    case CURLE_OPERATION_TIMEDOUT:
      return connected;
    default:
      return false;
  }
}

class CurlTransport : public Transport {
 public:
  CurlTransport(const ZooLocation& location, const TransferOptions& options) : url_(location.url) {
    static std::once_flag once;
    std::call_once(once, [] { OSCAR_CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK); });
    handle_ = curl_easy_init();
    OSCAR_CHECK(handle_ != nullptr);
    configure(location, options);
  }
  ~CurlTransport() override { curl_easy_cleanup(handle_); }
  CurlTransport(const CurlTransport&) = delete;
  CurlTransport& operator=(const CurlTransport&) = delete;

  void get(const std::string& path, std::uint64_t max_bytes, const ByteSink& sink) override {
    Transfer transfer{sink, nullptr};
    char reason[CURL_ERROR_SIZE] = "";
    set(CURLOPT_URL, where(path).c_str());
    set(CURLOPT_WRITEDATA, &transfer);
    set(CURLOPT_ERRORBUFFER, reason);
    set(CURLOPT_MAXFILESIZE_LARGE, static_cast<curl_off_t>(std::min<std::uint64_t>(max_bytes, INT64_MAX)));
    const CURLcode code = curl_easy_perform(handle_);
    set(CURLOPT_ERRORBUFFER, static_cast<char*>(nullptr));
    if (transfer.failure != nullptr) std::rethrow_exception(transfer.failure);
    throw_if_interrupted();
    finish(code, *reason != '\0' ? reason : curl_easy_strerror(code), path, max_bytes);
  }

  [[nodiscard]] std::string where(const std::string& path) const override { return url_ + "/" + percent_encoded(path); }

 private:
  template <class Value>
  void set(CURLoption option, Value value) {
    OSCAR_CHECK(curl_easy_setopt(handle_, option, value) == CURLE_OK);
  }

  void configure(const ZooLocation& location, const TransferOptions& options) {
    const bool secure = url_.starts_with("https://");
    const long stall = std::max(1L, static_cast<long>(options.timeout_seconds));
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_REDIR_PROTOCOLS_STR, secure ? "https" : "http,https");  // never from TLS to plain text
    set(CURLOPT_FOLLOWLOCATION, 1L);
    set(CURLOPT_MAXREDIRS, kMaxRedirects);
    set(CURLOPT_FAILONERROR, 1L);
    set(CURLOPT_CONNECTTIMEOUT, std::min(kMaxConnectSeconds, stall));
    set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    set(CURLOPT_LOW_SPEED_TIME, stall);
    set(CURLOPT_SSL_VERIFYPEER, 1L);
    set(CURLOPT_SSL_VERIFYHOST, 2L);
    set(CURLOPT_USERAGENT, (std::string("oscar/") + kVersion).c_str());
    set(CURLOPT_WRITEFUNCTION, &on_bytes);
    set(CURLOPT_XFERINFOFUNCTION, &on_progress);
    set(CURLOPT_NOPROGRESS, 0L);
    // OpenSSL's own variable, which libcurl does not read: private servers with private certificates.
    if (const char* bundle = std::getenv("SSL_CERT_FILE"); bundle != nullptr && *bundle != '\0') {
      set(CURLOPT_CAINFO, bundle);
    }
    if (!location.credentials.empty()) set(CURLOPT_USERPWD, location.credentials.c_str());
  }

  void finish(CURLcode code, const std::string& reason, const std::string& path, std::uint64_t max_bytes) {
    long status = 0;
    curl_off_t connect_time = 0, retry_after = 0;
    curl_easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(handle_, CURLINFO_CONNECT_TIME_T, &connect_time);
    curl_easy_getinfo(handle_, CURLINFO_RETRY_AFTER, &retry_after);
    if (code == CURLE_OK && status == 200) return;
    if (code == CURLE_OK || code == CURLE_HTTP_RETURNED_ERROR) {
      fail("the server answered HTTP " + std::to_string(status), path, is_transient_status(status),
           status == 404 ? "check the address of the zoo and the name" : "check the address, or try again later",
           static_cast<double>(retry_after));
    }
    if (code == CURLE_FILESIZE_EXCEEDED) {
      fail("the server offers more than the " + std::to_string(max_bytes) + " bytes that are expected", path, false,
           "check that the address is a zoo; tell who hosts it", 0);
    }
    fail("the transfer failed: " + reason, path, is_transient(code, connect_time > 0),
         "check the address, the network and the proxy settings, then run again", 0);
  }

  [[noreturn]] void fail(const std::string& what, const std::string& path, bool transient, const std::string& remedy,
                         double retry_after) {
    if (!transient) throw TransportError(what, where(path), remedy);
    TransientError error(what, where(path), remedy);
    error.retry_after_seconds = retry_after;
    throw error;
  }

  std::string url_;
  CURL* handle_ = nullptr;
};

}  // namespace

std::unique_ptr<Transport> make_curl_transport(const ZooLocation& location, const TransferOptions& options) {
  return std::make_unique<CurlTransport>(location, options);
}

}  // namespace oscar
