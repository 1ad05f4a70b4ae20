// SPDX-License-Identifier: MIT
// One HTTP call with an answer to look at: what uploads and programming interfaces need. Any status is an answer; lost
// connections and busy servers are tried again as downloads are.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "remote/transport.hpp"

namespace oscar {

/// Redirects of a GET are followed; of a call that changes something only those that keep its method (307, 308).
struct HttpCall {
  std::string method, url;  // GET, PUT or POST; the url in full
  std::vector<std::string> headers;
  std::string text;            // the body, or
  std::filesystem::path file;  // a file that is the body; its size may not change
  bool authorize = true;       // send what the location's host may know
};

struct HttpAnswer {
  long status = 0;
  std::string body;  // up to kMaxDocumentBytes
};

/// Throws TransportError, IoError, Interrupted.
[[nodiscard]] HttpAnswer call_http(const StoreLocation& location, const HttpCall& call, const TransferOptions& options,
                                   Status& status);

}  // namespace oscar
