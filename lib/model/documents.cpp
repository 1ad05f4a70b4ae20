// SPDX-License-Identifier: MIT
#include "model/documents.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "base/json.hpp"
#include "base/places.hpp"

namespace oscar {
namespace {

constexpr const char* kRemedy = R"(write one object like {"text": "..."} or {"messages": [...]} a line)";

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

/// "role\ncontent\n\n" of each message: no template, but turns and who speaks.
std::string text_of_chat(const Json& messages, const std::string& where) {
  std::string text;
  for (const Json& message : messages) {
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      throw DataError("a message has no role", where, kRemedy);
    }
    if (!message.contains("content") || message["content"].is_null()) continue;  // a call of a tool
    text += message["role"].get<std::string>() + "\n" + text_of_content(message["content"], where) + "\n\n";
  }
  return text;
}

std::string text_of_line(const Json& line, const std::string& where) {
  if (line.is_object() && line.contains("text") && line["text"].is_string()) return line["text"].get<std::string>();
  if (line.is_object() && line.contains("messages") && line["messages"].is_array()) {
    return text_of_chat(line["messages"], where);
  }
  throw DataError(R"(the line has neither "text" nor "messages")", where, kRemedy);
}

}  // namespace

void for_each_line(std::string_view text, const std::string& where,
                   const std::function<bool(std::string_view, const std::string&)>& line) {
  int number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view own = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (own.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (!line(own, where + ", line " + std::to_string(number))) return;
  }
}

bool has_documents(const std::filesystem::path& path) { return path.extension() == ".jsonl"; }

void read_documents(const std::filesystem::path& path,
                    const std::function<bool(const std::string& text, const std::string& where)>& document) {
  const std::string content = place_text(path);
  if (!has_documents(path)) {
    (void)document(content, path.string());
    return;
  }
  for_each_line(content, path.string(), [&](std::string_view line, const std::string& where) {
    return document(text_of_line(parse_json(line, where), where), where);
  });
}

}  // namespace oscar
