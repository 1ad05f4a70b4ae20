// SPDX-License-Identifier: MIT
// One libcurl transfer with the settings that all of ours share: certificates checked, redirects few and never from TLS
// to plain text, proxies from the environment, stalls noticed, Ctrl-C heard. For the files that fetch and that upload.
#pragma once

#include <curl/curl.h>

#include <memory>
#include <string>
#include <string_view>

#include "base/check.hpp"
#include "remote/location.hpp"

namespace oscar {

/// Initialises libcurl for the process; harmless to call again.
void init_curl();

/// Everything but RFC 3986's unreserved characters and '/' as %XX: a path from an index cannot grow a query or a host.
[[nodiscard]] std::string percent_encoded(const std::string& path);

/// "https://host:port" of a URL.
[[nodiscard]] std::string_view origin_of(std::string_view url);

/// How many redirects are followed.
inline constexpr long kMaxRedirects = 5;

class CurlHandle {
 public:
  CurlHandle();
  CurlHandle(const CurlHandle&) = delete;
  CurlHandle& operator=(const CurlHandle&) = delete;

  template <class Value>
  void set(CURLoption option, Value value) {
    OSCAR_CHECK(curl_easy_setopt(handle_.get(), option, value) == CURLE_OK);
  }
  /// Sets what all transfers share. Credentials and tokens go to the location's own host only, not where it redirects.
  void configure(const StoreLocation& location, double timeout_seconds);
  void add_header(const std::string& line);

  [[nodiscard]] CURL* get() const noexcept { return handle_.get(); }
  /// HTTP status of the answer; 0: none yet.
  [[nodiscard]] long status() const;
  /// Returns a header of the (last) answer; empty: it has none.
  [[nodiscard]] std::string header(const char* name) const;
  /// Returns where the answer redirects to, in full; empty: it does not, or it was followed.
  [[nodiscard]] std::string redirect() const;
  /// Returns how many seconds the server asked to wait; 0: none.
  [[nodiscard]] double retry_after() const;
  /// Whether a transfer that ended with `code` failed in a way that may go away by itself.
  [[nodiscard]] bool may_pass(CURLcode code) const;
  /// Why a transfer ended with `code`.
  [[nodiscard]] std::string reason(CURLcode code) const;

 private:
  /// True if a connection was made.
  [[nodiscard]] bool connected() const;
  // libcurl uses the first two until the handle is gone.
  std::unique_ptr<char[]> reason_ = std::make_unique<char[]>(CURL_ERROR_SIZE);
  std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers_;
  std::unique_ptr<CURL, void (*)(CURL*)> handle_;
};

}  // namespace oscar
