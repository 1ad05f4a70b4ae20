// SPDX-License-Identifier: MIT
// What lies in a bucket: ListObjectsV2 of the S3 interface, a page at a time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace oscar {

struct ListingPage {
  std::vector<std::string> keys;  // of files, and of "folders" with a '/' at the end
  std::string next;               // token of the page after this one; empty: there is none
};

/// Returns the query for all that begins with `prefix` and has no '/' behind it, or is a "folder". token:
/// ListingPage::next of the page before. In the order, and the encoding, that signatures are computed over.
[[nodiscard]] std::string listing_query(const std::string& prefix, const std::string& token);
/// Throws DataError for a text that is no such listing.
[[nodiscard]] ListingPage parse_listing(std::string_view xml, const std::string& where);

}  // namespace oscar
