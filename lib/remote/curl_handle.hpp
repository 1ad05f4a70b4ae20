// SPDX-License-Identifier: MIT
// One libcurl transfer with the settings that all of ours share: certificates checked, redirects few and never from TLS
// to plain text, proxies from the environment, passwords from ~/.netrc, stalls noticed, Ctrl-C heard. For the files
// that fetch and that upload.
#pragma once

#include <curl/curl.h>

#include <memory>
#include <string>

#include "base/errors.hpp"
#include "remote/transport.hpp"

namespace oscar {

/// Initialises libcurl for the process; harmless to call again.
void init_curl();

class CurlHandle {
 public:
  CurlHandle();
  CurlHandle(const CurlHandle&) = delete;
  CurlHandle& operator=(const CurlHandle&) = delete;

  template <class Value>
  void set(CURLoption option, Value value) {
    OSCAR_CHECK(curl_easy_setopt(handle_.get(), option, value) == CURLE_OK);
  }
  /// Sets what all transfers share. authorize: with the password or token of the location, which goes to its own host
  /// only, not where it redirects.
  void configure(const StoreLocation& location, double timeout_seconds, bool authorize = true);
  void add_header(const std::string& line);

  [[nodiscard]] CURL* get() const noexcept { return handle_.get(); }
  /// HTTP status of the answer; 0: none yet.
  [[nodiscard]] long status() const;
  /// Returns a header of the (last) answer; empty: it has none.
  [[nodiscard]] std::string header(const char* name) const;
  /// Whether a transfer that ended with `code` failed in a way that may go away by itself.
  [[nodiscard]] bool may_pass(CURLcode code) const;
  /// Says that the server refused, or why a transfer ended with `code`.
  [[nodiscard]] std::string failure(CURLcode code) const;
  /// Throws TransientError if may_pass(), else TransportError. remedy: for answers of a server.
  [[noreturn]] void fail(CURLcode code, const std::string& where, const char* remedy) const;

 private:
  // libcurl uses the first two until the handle is gone.
  std::unique_ptr<char[]> reason_ = std::make_unique<char[]>(CURL_ERROR_SIZE);
  std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers_;
  std::unique_ptr<CURL, void (*)(CURL*)> handle_;
};

}  // namespace oscar
