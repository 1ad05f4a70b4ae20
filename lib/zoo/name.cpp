// SPDX-License-Identifier: MIT
#include "zoo/name.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "base/text.hpp"

namespace oscar {
namespace {

constexpr std::string_view kDigestMark = "@sha256:";

}  // namespace

std::string SetName::text() const {
  return manifest_sha256.empty() ? model + ":" + tag : model + std::string(kDigestMark) + manifest_sha256;
}

bool is_model_name(std::string_view text) {
  const auto slash = text.find('/');
  // A folder called index.json would sit where the zoo keeps its index.
  return slash != std::string_view::npos && is_plain_name(text.substr(0, slash)) &&
         is_plain_name(text.substr(slash + 1)) && text.substr(0, slash) != "index.json";
}

bool is_tag(std::string_view text) { return is_plain_name(text); }

bool is_sha256(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string published_path(const SetName& name) { return name.model + "/" + name.tag; }

SetName parse_set_name(const std::string& text) {
  SetName name;
  const auto mark = text.find(kDigestMark);
  const auto colon = text.find(':');
  name.model = text.substr(0, std::min(mark, colon));
  if (mark != std::string::npos && mark < colon) {
    name.manifest_sha256 = text.substr(mark + kDigestMark.size());
  } else {
    name.tag = colon == std::string::npos ? kDefaultTag : text.substr(colon + 1);
  }
  const bool pinned = !name.manifest_sha256.empty();
  if (!is_model_name(name.model) || !(pinned ? is_sha256(name.manifest_sha256) : is_tag(name.tag))) {
    throw UsageError("\"" + text + "\" is not a name of a set", "NAME",
                     "write ORG/MODEL, ORG/MODEL:TAG or ORG/MODEL@sha256:HEX, with letters, digits, '.', '_' and '-'");
  }
  return name;
}

}  // namespace oscar
