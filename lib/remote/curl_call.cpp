// SPDX-License-Identifier: MIT
#include "remote/curl_call.hpp"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/files.hpp"
#include "remote/curl_handle.hpp"
#include "remote/retries.hpp"

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

Body open_body(const HttpCall& call) {
  Body body;
  body.text = &call.text;
  if (call.file.empty()) return body;
  body.file.reset(std::fopen(call.file.c_str(), "rbe"));
  if (body.file == nullptr) throw IoError("cannot open for reading", call.file.string(), "check the permissions");
  return body;
}

void configure(CurlHandle& handle, const StoreLocation& location, const HttpCall& call, const TransferOptions& options,
               Body& body) {
  StoreLocation anonymous;
  anonymous.url = location.url;
  handle.configure(call.authorize ? location : anonymous, options.timeout_seconds);
  handle.set(CURLOPT_URL, call.url.c_str());
  const bool sends = call.method == "PUT" || call.method == "POST";
  if (call.method != "GET") handle.set(CURLOPT_FOLLOWLOCATION, 0L);
  if (sends) {
    const std::uint64_t size = call.file.empty() ? call.text.size() : regular_file_size(call.file);
    handle.set(CURLOPT_UPLOAD, 1L);
    handle.set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(size));
    handle.set(CURLOPT_READFUNCTION, &on_send);
    handle.set(CURLOPT_READDATA, &body);
    handle.set(CURLOPT_SEEKFUNCTION, &on_seek);
    handle.set(CURLOPT_SEEKDATA, &body);
    handle.add_header("Expect:");
  }
  handle.set(CURLOPT_CUSTOMREQUEST, call.method.c_str());
  for (const std::string& line : call.headers) handle.add_header(line);
}

/// Of one request; redirect: where its answer sends one that may go on there with the same method.
HttpAnswer request_once(const StoreLocation& location, const HttpCall& call, const TransferOptions& options,
                        std::string& redirect) {
  CurlHandle handle;
  Body body = open_body(call);
  HttpAnswer answer;
  configure(handle, location, call, options, body);
  handle.set(CURLOPT_WRITEFUNCTION, &on_answer);
  handle.set(CURLOPT_WRITEDATA, &answer.body);
  const CURLcode code = curl_easy_perform(handle.get());
  throw_if_interrupted();
  answer.status = handle.status();
  if (answer.status == 307 || answer.status == 308) redirect = handle.redirect();
  if (handle.may_pass(code)) {
    TransientError error(code == CURLE_OK ? "the server answered HTTP " + std::to_string(answer.status)
                                          : "the transfer failed: " + handle.reason(code),
                         call.url, "try again later");
    error.retry_after_seconds = handle.retry_after();
    throw error;
  }
  if (code != CURLE_OK) {
    throw TransportError("the transfer failed: " + handle.reason(code), call.url,
                         "check the address, the network and the proxy settings, then run again");
  }
  return answer;
}

/// Of a call that goes on to another host.
void leave_out_credentials(HttpCall& call) {
  call.authorize = false;
  std::erase_if(call.headers, [](const std::string& line) {
    std::string name = line.substr(0, line.find(':'));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    return name == "authorization" || name == "cookie" || name == "proxy-authorization";
  });
}

/// libcurl would repeat a PUT without its body after a 303, and so empty the file that the answer names.
HttpAnswer call_once(const StoreLocation& location, HttpCall call, const TransferOptions& options) {
  HttpAnswer answer;
  for (int hops = 0; hops <= kMaxRedirects; ++hops) {
    std::string next;
    answer = request_once(location, call, options, next);
    const bool secure = call.url.starts_with("https://"), to_secure = next.starts_with("https://");
    if (next.empty() || (!to_secure && (secure || !next.starts_with("http://")))) break;
    if (origin_of(next) != origin_of(call.url)) leave_out_credentials(call);
    call.url = next;
  }
  return answer;
}

}  // namespace

HttpAnswer call_http(const StoreLocation& location, const HttpCall& call, const TransferOptions& options,
                     Status& status) {
  HttpAnswer answer;
  with_retries(options, status, [&] { answer = call_once(location, call, options); });
  return answer;
}

}  // namespace oscar
