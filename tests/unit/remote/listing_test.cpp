// SPDX-License-Identifier: MIT
#include "remote/listing.hpp"

#include <doctest/doctest.h>

#include "base/errors.hpp"
#include "support/support.hpp"

namespace oscar {

TEST_CASE("a listing's query is sorted and encoded as signatures want it") {
  CHECK(listing_query("a b/c+d/", "") == "delimiter=%2F&encoding-type=url&list-type=2&prefix=a%20b%2Fc%2Bd%2F");
  CHECK(listing_query("", "x/=").starts_with("continuation-token=x%2F%3D&delimiter="));
}

TEST_CASE("a page of a listing: keys, folders, the token of the next page") {
  const ListingPage page = parse_listing(
      "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3\"><Name>b</Name><Prefix>p</Prefix>"
      "<IsTruncated>true</IsTruncated><Contents><Key>p/a+b%2Bc</Key><Size>3</Size></Contents>"
      "<CommonPrefixes><Prefix>p/layer_1/</Prefix></CommonPrefixes>"
      "<NextContinuationToken>1&amp;lt;=</NextContinuationToken></ListBucketResult>",
      "here");
  CHECK(page.keys == std::vector<std::string>{"p/a b+c", "p/layer_1/"});
  CHECK(page.next == "1&lt;=");
  CHECK(parse_listing("<ListBucketResult/>", "here").keys.empty());
  CHECK_ERROR(parse_listing("<html>hello</html>", "here"), DataError, "no listing");
}

}  // namespace oscar
