// SPDX-License-Identifier: MIT
// Zoos on servers that take PUT: WebDAV, nginx, S3 and what speaks its protocol.
#include <chrono>
#include <random>
#include <thread>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "remote/curl_call.hpp"
#include "remote/curl_handle.hpp"
#include "zoo/store.hpp"

namespace oscar {
namespace {

class HttpStore : public ZooStore {
 public:
  HttpStore(const StoreLocation& location, const TransferOptions& options, Status& status)
      : location_(location), options_(options), status_(status) {}

  StoredDocument read(const std::string& path) override {
    const HttpAnswer answer = call({"GET", where(path), signed_headers(sha256_hex("")), "", {}});
    if (answer.status == 404) return {};
    if (answer.status == 403 && answer.advice.empty()) {
      // To take it for a zoo that is still empty could end in overwriting one that may not be read.
      throw TransportError(
          "the server answered HTTP 403", where(path),
          "check the credentials, and that they may read here; a store that answers so for what is not there "
          "has to let them list it, too (s3:ListBucket)");
    }
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

  /// A folder: of those who make one at the same time, one succeeds (RFC 4918, MKCOL).
  std::shared_ptr<void> lock(const std::string& path) override {
    if (!location_.aws_sigv4.empty()) return nullptr;
    const std::string url = where(path) + "/";
    const auto patience = Clock::now() + std::chrono::duration<double>(options_.timeout_seconds);
    for (bool first = true; !make_folder(url); first = false) {
      if (first && !makes_folders(url)) return nullptr;
      if (Clock::now() > patience) {
        throw TransportError("another process holds the zoo's lock", url,
                             "wait for it; if none is publishing, one was killed: remove this folder at the server");
      }
      throw_if_interrupted();
      std::this_thread::sleep_for(std::chrono::milliseconds(20 + std::random_device{}() % 80));
    }
    const std::shared_ptr<void> held(this, [this, url](void*) { unlock(url); });
    throw_if_interrupted();
    return held;
  }

  [[nodiscard]] std::string where(const std::string& path) const override {
    return location_.url + "/" + percent_encoded(path);
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// Ctrl-C is heard by the caller, who knows then whether there is a folder to remove.
  bool make_folder(const std::string& url) {
    HttpCall make{"MKCOL", url, {}, "", {}};
    make.to_the_end = true;
    return is_success(call(make));
  }

  bool remove_folder(const std::string& url) noexcept {
    try {
      HttpCall remove{"DELETE", url, {}, "", {}};
      remove.to_the_end = true;
      return is_success(call(remove));
    } catch (const Error&) {
      return false;
    }
  }

  /// Whether a folder that cannot be made is there already, or is none that the server would make: tries another one.
  bool makes_folders(const std::string& url) {
    const std::string other = url.substr(0, url.size() - 1) + "." + std::to_string(std::random_device{}()) + "/";
    if (!make_folder(other)) return false;
    if (remove_folder(other)) return true;
    status_.warning("this server makes folders and does not remove them: remove this one there: " + other);
    return false;
  }

  void unlock(const std::string& url) noexcept {
    if (remove_folder(url)) return;
    status_.warning("could not remove the zoo's lock: remove this folder at the server: " + url);
  }

  static bool is_success(const HttpAnswer& answer) { return answer.status >= 200 && answer.status < 300; }

  HttpAnswer call(const HttpCall& call) { return call_http(location_, call, options_, status_); }

  /// S3 signs the hash of the body.
  [[nodiscard]] std::vector<std::string> signed_headers(const std::string& sha256) const {
    if (location_.aws_sigv4.empty()) return {};
    return {"x-amz-content-sha256: " + sha256};
  }

  void make_folders(const std::string& path) {
    for (auto slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
      (void)make_folder(where(path.substr(0, slash)) + "/");  // 405: it is there
    }
  }

  [[noreturn]] void refuse(const HttpAnswer& answer, const std::string& path) const {
    const bool denied = answer.status == 401 || answer.status == 403;
    throw TransportError("the server answered HTTP " + std::to_string(answer.status), where(path),
                         !answer.advice.empty() ? answer.advice
                         : denied               ? "check the credentials, and that they may write there"
                         : answer.status == 405 ? "this server takes no uploads: publish to a folder and copy it there"
                                                : "check the address of the zoo");
  }

  StoreLocation location_;
  TransferOptions options_;
  Status& status_;
};

}  // namespace

std::unique_ptr<ZooStore> make_http_store(const StoreLocation& location, const TransferOptions& options,
                                          Status& status) {
  return std::make_unique<HttpStore>(location, options, status);
}

}  // namespace oscar
