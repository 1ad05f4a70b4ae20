// SPDX-License-Identifier: MIT
#include "remote/listing.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "remote/curl_handle.hpp"
#include "remote/location.hpp"

namespace oscar {
namespace {

/// What stands between <name> and </name>, from `position` on, which moves behind it; false: no more.
bool next_element(std::string_view xml, std::string_view name, std::size_t& position, std::string_view& content) {
  const std::string open = "<" + std::string(name) + ">", close = "</" + std::string(name) + ">";
  const std::size_t begin = xml.find(open, position);
  const std::size_t end = begin == std::string_view::npos ? begin : xml.find(close, begin);
  if (end == std::string_view::npos) return false;
  content = xml.substr(begin + open.size(), end - begin - open.size());
  position = end + close.size();
  return true;
}

std::string element(std::string_view xml, std::string_view name) {
  std::size_t position = 0;
  std::string_view content;
  return next_element(xml, name, position, content) ? std::string(content) : "";
}

/// Keys come percent-encoded, as asked for, where some stores write '+' for a blank.
std::string decoded(std::string_view key) {
  std::string text(key);
  std::replace(text.begin(), text.end(), '+', ' ');
  return percent_decoded(text, {"", "use another store: its listing is not encoded as asked for"});
}

std::string encoded(const std::string& text) {
  std::string result;
  for (const char c : percent_encoded(text)) c == '/' ? result += "%2F" : result += c;
  return result;
}

/// Tokens are base64 as a rule, but any character of XML's may stand in them.
std::string unescaped(std::string text) {
  for (const auto& [name, c] : {std::pair("&quot;", "\""), {"&lt;", "<"}, {"&gt;", ">"}, {"&amp;", "&"}}) {
    for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
      text.replace(at, std::string_view(name).size(), c);
    }
  }
  return text;
}

}  // namespace

std::string listing_query(const std::string& prefix, const std::string& token) {
  return (token.empty() ? "" : "continuation-token=" + encoded(token) + "&") +
         "delimiter=%2F&encoding-type=url&list-type=2&prefix=" + encoded(prefix);
}

ListingPage parse_listing(std::string_view xml, const std::string& where) {
  if (xml.find("<ListBucketResult") == std::string_view::npos) {
    throw DataError("the answer is no listing of a bucket", where, "check that the address is that of an S3 store");
  }
  ListingPage page;
  std::size_t position = 0;
  std::string_view content;
  while (next_element(xml, "Contents", position, content)) page.keys.push_back(decoded(element(content, "Key")));
  position = 0;
  while (next_element(xml, "CommonPrefixes", position, content)) {
    page.keys.push_back(decoded(element(content, "Prefix")));
  }
  if (element(xml, "IsTruncated") == "true") page.next = unescaped(element(xml, "NextContinuationToken"));
  return page;
}

}  // namespace oscar
