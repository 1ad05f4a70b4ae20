// SPDX-License-Identifier: MIT
#include "remote/hub_server.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "remote/curl_call.hpp"

namespace oscar {
namespace {

constexpr char kWeightsSuffix[] = ".safetensors";

StoreLocation files_of(StoreLocation hub, const HubAddress& pinned) {
  hub.url += "/" + hub_files(pinned);
  return hub;
}

std::optional<std::vector<std::string>> files_in(const Json& answer) {
  const Json siblings = answer.value("siblings", Json());
  if (!siblings.is_array()) return std::nullopt;
  std::vector<std::string> files;
  for (const Json& sibling : siblings) {
    const Json name = sibling.is_object() ? sibling.value("rfilename", Json()) : Json();
    if (name.is_string()) files.push_back(name);
  }
  return files;
}

/// Hubs answer so for what is not there, too, where nobody has said who asks.
[[noreturn]] void refuse_denied(const std::string& answer, const HubAddress& address, bool has_token) {
  const std::string licence = "accept the licence on its page at the hub if it asks for that";
  throw DataError(answer + ": the repository is private or gated, or there is none", address.text(),
                  has_token
                      ? "check the name, that the token of HF_TOKEN or `hf auth login` may read it, and " + licence
                      : "check the name, set HF_TOKEN to a token that may read it, and " + licence);
}

/// What the hub says at `path` below it; nothing where that is not there. The path is sent as it is.
class HubQuestions {
 public:
  HubQuestions(const HubAddress& address, const TransferOptions& options, Status& status)
      : hub_(hub_endpoint()), address_(address), options_(options), status_(status) {}

  [[nodiscard]] std::optional<std::string> ask(const std::string& path) const {
    const HttpAnswer answer = call_http(hub_, {"GET", where(path), {}, "", {}}, options_, status_);
    if (answer.status == 200) return answer.body;
    if (answer.status == 404) return std::nullopt;
    const std::string what = "the server answered HTTP " + std::to_string(answer.status);
    if (answer.status == 401 || answer.status == 403) refuse_denied(what, address_, !hub_.bearer_token.empty());
    throw TransportError(what, where(path), "check HF_ENDPOINT, or try again later");
  }
  [[nodiscard]] std::string where(const std::string& path) const { return hub_.url + "/" + path; }
  [[nodiscard]] const StoreLocation& hub() const noexcept { return hub_; }

 private:
  const StoreLocation hub_;
  const HubAddress& address_;
  const TransferOptions& options_;
  Status& status_;
};

}  // namespace

HubServer::HubServer(const StoreLocation& hub, const HubAddress& pinned, std::optional<std::vector<std::string>> files,
                     const TransferOptions& options, Status& status)
    : Server(files_of(hub, pinned), options, status),
      pinned_(pinned),
      files_(std::move(files)),
      has_token_(!hub.bearer_token.empty()) {}

DataError HubServer::missing(const std::string& where) {
  const auto is_weights = [](const std::string& file) { return file.ends_with(kWeightsSuffix); };
  if (is_weights(where) && files_ && std::ranges::none_of(*files_, is_weights)) {
    return DataError("the repository has no weights in safetensors format", pinned_.text(),
                     "name one that has, or save the checkpoint in that format, with save_pretrained of transformers");
  }
  return DataError("the repository has no such file", where, "check the name, and what the repository holds");
}

void HubServer::explain_denied(const Denied& error) const { refuse_denied(error.what(), pinned_, has_token_); }

std::unique_ptr<HubServer> open_repository(const HubAddress& address, const TransferOptions& options, Status& status) {
  const HubQuestions questions(address, options, status);
  const std::string repository = hub_api(address), path = repository + "/revision/" + as_one_name(address.revision);
  if (const std::optional<std::string> answer = questions.ask(path)) {
    const Json about = parse_json(*answer, questions.where(path));
    HubAddress pinned = address;
    pinned.revision = commit_in(about, questions.where(path));
    return std::make_unique<HubServer>(questions.hub(), pinned, files_in(about), options, status);
  }
  if (!questions.ask(repository)) {
    throw DataError("the hub has no such repository", address.text(),
                    "check ORG/NAME; of a private one, set HF_TOKEN to a token that may read it");
  }
  throw DataError("the repository has no revision \"" + address.revision + "\"", address.text(),
                  "give a branch, a tag or a whole commit that its page at the hub lists");
}

}  // namespace oscar
