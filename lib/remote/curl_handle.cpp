// SPDX-License-Identifier: MIT
#include "remote/curl_handle.hpp"

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <regex>

#include "base/status.hpp"
#include "base/version.hpp"
#include "remote/transport.hpp"

namespace oscar {
namespace {

constexpr long kMaxConnectSeconds = 15, kMaxRedirects = 5;
/// Whoever sends less than this for as long as a silent server is waited for has stalled, or holds us up on purpose.
constexpr long kMinBytesPerSecond = 100;

/// The file of authorities to trust; empty: the one that libcurl was built to read. OpenSSL's own variable, which
/// libcurl does not read, is for private servers; the other places are those of systems that libcurl was not built for.
std::string certificates() {
  if (std::string given = environment("SSL_CERT_FILE"); !given.empty()) return given;
  for (const char* place : {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                            "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}) {
    if (std::filesystem::exists(place)) return place;
  }
  return "";
}

/// Whether a server said how a transfer ended.
bool is_answer(CURLcode code) { return code == CURLE_OK || code == CURLE_HTTP_RETURNED_ERROR; }

int on_progress(void*, curl_off_t, curl_off_t, curl_off_t, curl_off_t) { return interrupt_requested() ? 1 : 0; }

}  // namespace

void init_curl() {
  static std::once_flag once;
  std::call_once(once, [] { OSCAR_CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK); });
}

std::string percent_encoded(const std::string& path, bool slashes_stay) {
  const std::unique_ptr<char, void (*)(void*)> text(curl_easy_escape(nullptr, path.c_str(), 0), &curl_free);
  OSCAR_CHECK(text != nullptr);
  return slashes_stay ? std::regex_replace(text.get(), std::regex("%2F"), "/") : text.get();
}

CurlHandle::CurlHandle()
    : headers_(nullptr, &curl_slist_free_all), handle_((init_curl(), curl_easy_init()), &curl_easy_cleanup) {
  OSCAR_CHECK(handle_ != nullptr);
}

void CurlHandle::configure(const StoreLocation& location, double timeout_seconds, bool authorize) {
  const bool secure = location.url.starts_with("https://");
  const long stall = std::max(1L, static_cast<long>(timeout_seconds));
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_REDIR_PROTOCOLS_STR, secure ? "https" : "http,https");  // never from TLS to plain text
  set(CURLOPT_FOLLOWLOCATION, 1L);                                    // libcurl keeps credentials from other hosts
  set(CURLOPT_MAXREDIRS, kMaxRedirects);
  set(CURLOPT_CONNECTTIMEOUT, std::min(kMaxConnectSeconds, stall));
  set(CURLOPT_LOW_SPEED_LIMIT, kMinBytesPerSecond);
  set(CURLOPT_LOW_SPEED_TIME, stall);
  set(CURLOPT_SSL_VERIFYPEER, 1L);
  set(CURLOPT_SSL_VERIFYHOST, 2L);
  set(CURLOPT_USERAGENT, (std::string("oscar/") + kVersion).c_str());
  set(CURLOPT_XFERINFOFUNCTION, &on_progress);
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_ERRORBUFFER, reason_.get());
  if (const std::string bundle = certificates(); !bundle.empty()) set(CURLOPT_CAINFO, bundle.c_str());
  if (!authorize) return;
  if (!location.bearer_token.empty()) {
    set(CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    set(CURLOPT_XOAUTH2_BEARER, location.bearer_token.c_str());
  } else if (may_see_secrets(location.url)) {
    set(CURLOPT_NETRC, long{CURL_NETRC_OPTIONAL});
  }
}

void CurlHandle::add_header(const std::string& line) {
  curl_slist* longer = curl_slist_append(headers_.get(), line.c_str());
  OSCAR_CHECK(longer != nullptr);
  (void)headers_.release();
  headers_.reset(longer);
  set(CURLOPT_HTTPHEADER, headers_.get());
}

long CurlHandle::status() const {
  long status = 0;
  curl_easy_getinfo(handle_.get(), CURLINFO_RESPONSE_CODE, &status);
  return status;
}

std::string CurlHandle::header(const char* name) const {
  curl_header* found = nullptr;
  const CURLHcode code = curl_easy_header(handle_.get(), name, 0, CURLH_HEADER, -1, &found);
  return code == CURLHE_OK ? found->value : "";
}

bool CurlHandle::may_pass(CURLcode code) const {
  const long answer = status();
  switch (code) {
    case CURLE_OK:
    case CURLE_HTTP_RETURNED_ERROR:
      return answer == 408 || answer == 429 || answer >= 500;
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      return true;
    case CURLE_OPERATION_TIMEDOUT: {
      long sent = 0;  // bytes of requests: the time to connect is 0 on a connection that was kept
      curl_easy_getinfo(handle_.get(), CURLINFO_REQUEST_SIZE, &sent);
      return sent > 0;
    }
    default:
      return false;
  }
}

std::string CurlHandle::failure(CURLcode code) const {
  if (is_answer(code)) return "the server answered HTTP " + std::to_string(status());
  return std::string("the transfer failed: ") + (reason_[0] != '\0' ? reason_.get() : curl_easy_strerror(code));
}

void CurlHandle::fail(CURLcode code, const std::string& where, const char* remedy) const {
  if (!is_answer(code)) remedy = "check the address, the network and the proxy settings, then run again";
  if (!may_pass(code)) throw TransportError(failure(code), where, remedy);
  curl_off_t seconds = 0;
  curl_easy_getinfo(handle_.get(), CURLINFO_RETRY_AFTER, &seconds);
  TransientError error(failure(code), where, remedy);
  error.retry_after_seconds = static_cast<double>(seconds);
  throw error;
}

}  // namespace oscar
