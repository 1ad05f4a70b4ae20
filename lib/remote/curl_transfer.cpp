// SPDX-License-Identifier: MIT
#include "remote/curl_transfer.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>

#include "base/text.hpp"

namespace oscar {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& where, bool transient, const std::string& remedy,
                       double retry_after) {
  if (!transient) throw TransportError(what, where, remedy);
  TransientError error(what, where, remedy);
  error.retry_after_seconds = retry_after;
  throw error;
}

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

PieceAnswer answer_of(const CurlHandle& handle) {
  PieceAnswer answer;
  answer.partial = handle.status() == 206;
  answer.version = handle.header("etag");
  if (answer.version.empty()) answer.version = handle.header("last-modified");
  if (!answer.partial) {
    answer.size = number(handle.header("content-length"));
    return answer;
  }
  // RFC 9110: "bytes 5-9/100"; a star in place of a size that the server does not know.
  const std::string range = handle.header("content-range");
  const auto blank = range.find(' '), dash = range.find('-'), slash = range.find('/');
  const bool sound = blank < dash && dash < slash && slash != std::string::npos;
  const auto first = sound ? number(std::string_view(range).substr(blank + 1, dash - blank - 1)) : std::nullopt;
  // A piece from nowhere is nobody's.
  answer.offset = first.value_or(std::numeric_limits<std::uint64_t>::max());
  if (sound) answer.size = number(std::string_view(range).substr(slash + 1));
  return answer;
}

}  // namespace

void CurlTransfer::begin() {
  if (begun) return;
  begun = true;
  partial = handle.status() == 206;
  to_skip = partial ? 0 : request.offset;
  if (request.begin) request.begin(answer_of(handle));
}

void CurlTransfer::take(std::span<const std::byte> bytes) {
  if (handle.status() >= 300) return;  // the page of a redirect that is not followed: check() says it
  begin();
  const std::size_t skipped = std::min<std::uint64_t>(to_skip, bytes.size());
  to_skip -= skipped;
  if (skipped < bytes.size()) request.sink(bytes.subspan(skipped), partial);
}

void CurlTransfer::check(CURLcode code, const std::string& where) const {
  const long status = handle.status();
  const bool ranged = request.offset > 0 || request.length;
  if (code == CURLE_OK && (status == 200 || (ranged && status == 206))) return;
  if (code == CURLE_OK || code == CURLE_HTTP_RETURNED_ERROR) {
    const char* remedy = status == 404   ? "check the address and the name"
                         : status == 416 ? "the file is shorter than what is asked of it: upload it again"
                         : status == 401 ? "check the credentials, and that they may read this"
                         : status == 403
                             ? "check the credentials, and the address: some stores answer so for what is not there"
                             : "check the address, or try again later";
    const std::string what = "the server answered HTTP " + std::to_string(status);
    if (status == 404) throw NotFound(what, where, remedy);
    if (status == 412) throw Changed(where);
    if (status == 401 || status == 403) throw Denied(what, where, remedy);
    fail(what, where, handle.may_pass(code), remedy, handle.retry_after());
  }
  if (code == CURLE_FILESIZE_EXCEEDED) {
    fail("the server offers more than the " + plural(static_cast<std::int64_t>(request.max_bytes), "byte") +
             " that are expected",
         where, false, "check that the address is the right one; tell who hosts it", 0);
  }
  fail("the transfer failed: " + handle.reason(code), where, handle.may_pass(code),
       "check the address, the network and the proxy settings, then run again", 0);
}

std::size_t on_transfer_bytes(char* data, std::size_t size, std::size_t count, void* user) {
  auto& transfer = *static_cast<CurlTransfer*>(user);
  try {
    transfer.take(std::as_bytes(std::span(data, size * count)));
    return size * count;
  } catch (...) {
    transfer.failure = std::current_exception();
    return 0;  // fewer than given: libcurl stops
  }
}

std::exception_ptr unsaid(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const TransportError& error) {
    TransientError again(error.what(), error.where(), error.remedy());
    again.unsaid = true;
    return std::make_exception_ptr(again);
  } catch (...) {
    return failure;
  }
}

}  // namespace oscar
