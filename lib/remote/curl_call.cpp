// SPDX-License-Identifier: MIT
#include "remote/curl_call.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/files.hpp"
#include "base/text.hpp"
#include "remote/curl_handle.hpp"
#include "remote/fetch.hpp"

namespace oscar {
namespace {

/// What is sent: a text or a file, from the start or from wherever libcurl wants to begin again.
struct Body {
  const std::string* text = nullptr;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{nullptr, &std::fclose};
  std::size_t position = 0;
};

std::size_t on_send(char* out, std::size_t size, std::size_t count, void* user) {
  auto& body = *static_cast<Body*>(user);
  if (body.file != nullptr) {
    const std::size_t read = std::fread(out, 1, size * count, body.file.get());
    return std::ferror(body.file.get()) != 0 ? CURL_READFUNC_ABORT : read;
  }
  const std::size_t taken = std::min(size * count, body.text->size() - body.position);
  std::memcpy(out, body.text->data() + body.position, taken);
  body.position += taken;
  return taken;
}

int on_seek(void* user, curl_off_t offset, int) {
  auto& body = *static_cast<Body*>(user);
  body.position = static_cast<std::size_t>(offset);
  if (body.file == nullptr) return CURL_SEEKFUNC_OK;
  return std::fseek(body.file.get(), static_cast<long>(offset), SEEK_SET) == 0 ? CURL_SEEKFUNC_OK : CURL_SEEKFUNC_FAIL;
}

std::size_t on_answer(char* data, std::size_t size, std::size_t count, void* user) {
  auto& text = *static_cast<std::string*>(user);
  if (text.size() + size * count > kMaxDocumentBytes) return 0;
  text.append(data, size * count);
  return size * count;
}

void send_body(CurlHandle& handle, const HttpCall& call, Body& body) {
  body.text = &call.text;
  const std::uint64_t size = call.file.empty() ? call.text.size() : regular_file_size(call.file);
  if (!call.file.empty()) {
    body.file.reset(std::fopen(call.file.c_str(), "rbe"));
    if (body.file == nullptr) throw IoError("cannot open for reading", call.file.string(), "check the permissions");
  }
  const bool post = call.method == "POST";
  handle.set(post ? CURLOPT_POST : CURLOPT_UPLOAD, 1L);
  handle.set(post ? CURLOPT_POSTFIELDSIZE_LARGE : CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(size));
  handle.set(CURLOPT_READFUNCTION, &on_send);
  handle.set(CURLOPT_READDATA, &body);
  handle.set(CURLOPT_SEEKFUNCTION, &on_seek);
  handle.set(CURLOPT_SEEKDATA, &body);
  handle.add_header("Expect:");
}

HttpAnswer call_once(const StoreLocation& location, const HttpCall& call, const TransferOptions& options) {
  CurlHandle handle;
  Body body;
  HttpAnswer answer;
  handle.configure(location, options.timeout_seconds, call.authorize);
  handle.set(CURLOPT_URL, call.url.c_str());
  if (call.method != "GET") send_body(handle, call, body);
  for (const std::string& line : call.headers) handle.add_header(line);
  handle.set(CURLOPT_WRITEFUNCTION, &on_answer);
  handle.set(CURLOPT_WRITEDATA, &answer.body);
  const CURLcode code = curl_easy_perform(handle.get());
  throw_if_interrupted();
  if (code == CURLE_WRITE_ERROR) {
    throw TransportError("the answer has more than " + plural(kMaxDocumentBytes, "byte"), call.url,
                         "check the address");
  }
  answer.status = handle.status();
  if (code != CURLE_OK || handle.may_pass(code)) handle.fail(code, call.url, "try again later");
  const char* method = nullptr;
  curl_easy_getinfo(handle.get(), CURLINFO_EFFECTIVE_METHOD, &method);
  if (method == nullptr || call.method == method) return answer;
  throw TransportError("the server answers a " + call.method + " with another page", call.url, "check the address");
}

}  // namespace

HttpAnswer call_http(const StoreLocation& location, const HttpCall& call, const TransferOptions& options,
                     Status& status) {
  HttpAnswer answer;
  with_retries(options, status, [&] { answer = call_once(location, call, options); });
  return answer;
}

}  // namespace oscar
