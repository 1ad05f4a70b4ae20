// SPDX-License-Identifier: MIT
// One piece on its way through libcurl: what takes its bytes, and what its end means.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <string>

#include "remote/curl_handle.hpp"
#include "remote/transport.hpp"

namespace oscar {

/// One request under way. An exception may not cross libcurl's C frames: it is kept and thrown after.
struct CurlTransfer {
  PieceRequest request;
  CurlHandle handle;
  std::uint64_t to_skip = 0;  // of an answer that begins before what was asked for
  bool begun = false, partial = false;
  bool directly = false;  // to where a redirect is known to lead
  std::exception_ptr failure;

  /// Called once, before the first byte of the answer or at its end.
  void begin();
  /// Passes bytes of the answer on to the request's sink.
  void take(std::span<const std::byte> bytes);
  /// Ends without a word if libcurl's `code` and the answer mean that all went well. where: names the resource. Throws
  /// TransportError, TransientError, NotFound, Denied.
  void check(CURLcode code, const std::string& where) const;
};

/// Receives bytes of the answer, as CURLOPT_WRITEFUNCTION; user: the CurlTransfer.
std::size_t on_transfer_bytes(char* data, std::size_t size, std::size_t count, void* user);

/// The failure of a transfer as one that costs no try; others (a full disk) stay what they are.
[[nodiscard]] std::exception_ptr unsaid(const std::exception_ptr& failure);

}  // namespace oscar
