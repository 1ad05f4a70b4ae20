// SPDX-License-Identifier: MIT
// Zoos on servers that take PUT: WebDAV, nginx, S3 and what speaks its protocol.
#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "zoo/curl_call.hpp"
#include "zoo/curl_handle.hpp"
#include "zoo/store.hpp"

namespace oscar {
namespace {

class HttpStore : public ZooStore {
 public:
  HttpStore(const ZooLocation& location, const TransferOptions& options, Status& status)
      : location_(location), options_(options), status_(status) {}

  StoredDocument read(const std::string& path) override {
    const HttpAnswer answer = call({"GET", where(path), signed_headers(sha256_hex("")), "", {}});
    if (answer.status == 404) return {};
    if (answer.status != 200) refuse(answer, path);
    return {answer.body, answer.etag.empty() ? "*" : answer.etag};
  }

  void put(const std::string& path, const fs::path& file, const FileDigest& digest) override {
    HttpCall upload{"PUT", where(path), signed_headers(digest.sha256), "", file};
    HttpAnswer answer = call(upload);
    if (answer.status == 409 || answer.status == 404) {  // WebDAV: the folder has to be there
      make_folders(path);
      answer = call(upload);
    }
    if (!is_success(answer)) refuse(answer, path);
  }

  bool replace(const std::string& path, const std::string& text, const std::string& version) override {
    HttpCall upload{"PUT", where(path), signed_headers(sha256_hex(text)), text, {}};
    upload.headers.emplace_back("Content-Type: application/json");
    if (version.empty()) upload.headers.emplace_back("If-None-Match: *");
    if (!version.empty() && version != "*") upload.headers.push_back("If-Match: " + version);
    const HttpAnswer answer = call(upload);
    if (answer.status == 412 || answer.status == 409) return false;
    if (!is_success(answer)) refuse(answer, path);
    return true;
  }

  bool checks_versions(const std::string& path, const std::string& text) override {
    HttpCall upload{"PUT", where(path), signed_headers(sha256_hex(text)), text, {}};
    upload.headers.emplace_back("If-Match: \"no version has this name\"");
    const int status = static_cast<int>(call(upload).status);
    return status == 412 || status == 409;  // anything else says nothing about conditions
  }

  [[nodiscard]] std::string where(const std::string& path) const override {
    return location_.url + "/" + percent_encoded(path);
  }

 private:
  static bool is_success(const HttpAnswer& answer) { return answer.status >= 200 && answer.status < 300; }

  HttpAnswer call(const HttpCall& call) { return call_http(location_, call, options_, status_); }

  /// S3 signs the hash of the body.
  [[nodiscard]] std::vector<std::string> signed_headers(const std::string& sha256) const {
    if (location_.aws_sigv4.empty()) return {};
    return {"x-amz-content-sha256: " + sha256};
  }

  void make_folders(const std::string& path) {
    for (auto slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
      (void)call({"MKCOL", where(path.substr(0, slash)) + "/", {}, "", {}});  // 405: it is there
    }
  }

  [[noreturn]] void refuse(const HttpAnswer& answer, const std::string& path) const {
    const bool denied = answer.status == 401 || answer.status == 403;
    throw TransportError("the server answered HTTP " + std::to_string(answer.status), where(path),
                         denied                 ? "check the credentials, and that they may write there"
                         : answer.status == 405 ? "this server takes no uploads: publish to a folder and copy it there"
                                                : "check the address of the zoo");
  }

  ZooLocation location_;
  TransferOptions options_;
  Status& status_;
};

}  // namespace

std::unique_ptr<ZooStore> make_http_store(const ZooLocation& location, const TransferOptions& options, Status& status) {
  return std::make_unique<HttpStore>(location, options, status);
}

}  // namespace oscar
