// SPDX-License-Identifier: MIT
#include "model/tokenizer/documents.hpp"

#include "base/errors.hpp"
#include "base/json.hpp"
#include "model/tokenizer/text_stream.hpp"

namespace oscar {
namespace {

constexpr const char* kRemedy = R"(write documents like {"text": "..."} or {"messages": [...]}, in .jsonl one a line)";

std::string text_of_content(const Json& content, const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw DataError("a message has no content that is text", where, kRemedy);
  std::string text;
  for (const Json& part : content) {
    const auto own = part.is_object() ? part.find("text") : part.end();
    if (part.is_object() && own != part.end() && own->is_string()) text += own->get<std::string>();
  }
  return text;
}

/// One turn of a chat: no template, but who speaks.
std::string turn(const std::string& role, const std::string& content) { return role + "\n" + content + "\n\n"; }

const std::string& speaker_of(const Json& message, const char* member, const std::string& where) {
  const auto found = message.is_object() ? message.find(member) : message.end();
  if (message.is_object() && found != message.end() && found->is_string()) return found->get_ref<const std::string&>();
  throw DataError(std::string("a message has no \"") + member + "\"", where, kRemedy);
}

std::string text_of_chat(const Json& messages, const std::string& where) {
  std::string text;
  for (const Json& message : messages) {
    const std::string& role = speaker_of(message, "role", where);
    if (!message.contains("content") || message["content"].is_null()) continue;  // a call of a tool
    text += turn(role, text_of_content(message["content"], where));
  }
  return text;
}

/// The same chat as "messages": who is called otherwise there has the usual name.
std::string text_of_conversations(const Json& messages, const std::string& where) {
  std::string text;
  for (const Json& message : messages) {
    const std::string& from = speaker_of(message, "from", where);
    if (!message.contains("value") || message["value"].is_null()) continue;
    const std::string role = from == "human" ? "user" : from == "gpt" ? "assistant" : from;
    text += turn(role, text_of_content(message["value"], where));
  }
  return text;
}

std::string text_of_document(const Json& document, const std::string& where) {
  if (document.is_string()) return document.get<std::string>();
  const auto has = [&](const char* name) { return document.is_object() && document.contains(name); };
  if (has("text") && document["text"].is_string()) return document["text"].get<std::string>();
  if (has("messages") && document["messages"].is_array()) return text_of_chat(document["messages"], where);
  if (has("conversations") && document["conversations"].is_array()) {
    return text_of_conversations(document["conversations"], where);
  }
  throw DataError(R"(the document has no "text", "messages" or "conversations")", where, kRemedy);
}

/// A list cannot be taken apart before it was read.
std::string whole_text(const std::filesystem::path& path) {
  constexpr std::size_t kMost = std::size_t{256} << 20;
  TextStream stream(path);
  std::string text;
  if (!stream.fill(text, kMost)) return text;
  throw DataError("the file is longer than 256 MiB, and a list in JSON is read whole", path.string(),
                  "write it as .jsonl, a document a line");
}

}  // namespace

bool has_documents(const std::filesystem::path& path) {
  return path.extension() == ".jsonl" || path.extension() == ".json";
}

void read_documents(const std::filesystem::path& path,
                    const std::function<bool(const std::string& text, const std::string& where)>& document) {
  if (path.extension() == ".jsonl") {
    return for_each_line(path, [&](std::string_view line, const std::string& where) {
      return document(text_of_document(parse_json(line, where), where), where);
    });
  }
  const Json list = parse_json(whole_text(path), path.string());
  if (!list.is_array()) {
    throw DataError("the file is not a list of documents", path.string(),
                    "write a list of strings or objects, or a document a line into a .jsonl file");
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string where = path.string() + ", document " + std::to_string(i + 1);
    if (!document(text_of_document(list[i], where), where)) return;
  }
}

}  // namespace oscar
