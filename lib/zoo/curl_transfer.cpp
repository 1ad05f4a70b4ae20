// SPDX-License-Identifier: MIT
#include "zoo/curl_transfer.hpp"

#include <algorithm>

namespace oscar {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& where, bool transient, const std::string& remedy,
                       double retry_after) {
  if (!transient) throw TransportError(what, where, remedy);
  TransientError error(what, where, remedy);
  error.retry_after_seconds = retry_after;
  throw error;
}

}  // namespace

void CurlTransfer::take(std::span<const std::byte> bytes) {
  if (!begun) {
    begun = true;
    partial = handle.status() == 206;
    to_skip = partial ? 0 : request.offset;
  }
  const std::size_t skipped = std::min<std::uint64_t>(to_skip, bytes.size());
  to_skip -= skipped;
  if (skipped < bytes.size()) request.sink(bytes.subspan(skipped), partial);
}

void CurlTransfer::check(CURLcode code, const std::string& where) const {
  const long status = handle.status();
  const bool ranged = request.offset > 0 || request.length;
  if (code == CURLE_OK && (status == 200 || (ranged && status == 206))) return;
  if (code == CURLE_OK || code == CURLE_HTTP_RETURNED_ERROR) {
    const char* remedy = status == 404   ? "check the address of the zoo and the name"
                         : status == 401 ? "check the credentials, and that they may read this"
                         : status == 403
                             ? "check the credentials, and the address: some stores answer so for what is not there"
                             : "check the address, or try again later";
    const std::string what = "the server answered HTTP " + std::to_string(status);
    if (status == 404) throw NotFound(what, where, remedy);
    if (status == 401 || status == 403) throw Denied(what, where, remedy);
    fail(what, where, handle.may_pass(code), remedy, handle.retry_after());
  }
  if (code == CURLE_FILESIZE_EXCEEDED) {
    fail("the server offers more than the " + std::to_string(request.max_bytes) + " bytes that are expected", where,
         false, "check that the address is a zoo; tell who hosts it", 0);
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
