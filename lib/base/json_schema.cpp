// SPDX-License-Identifier: MIT
#include <string>

#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validation_results.hpp>
#include <valijson/validator.hpp>

#include "base/errors.hpp"
#include "base/json.hpp"
#include "base/text.hpp"

namespace oscar {

void validate_json(const Json& document, const std::string& schema, const std::string& where) {
  const Json found = document.is_object() ? document.value("schema", Json()) : Json();
  if (found != schema) {
    const std::string other = found.is_string() ? ", but of " + printable_line(found.get<std::string>()) : "";
    throw DataError("not a document of schema " + schema + other, where, "check that this is the right file");
  }
  const std::string_view source = schema_source(schema);
  OSCAR_CHECK(!source.empty());
  // valijson's adapter takes plain nlohmann::json.
  const nlohmann::json schema_document = nlohmann::json::parse(source);
  const nlohmann::json target = nlohmann::json::parse(json_text(document));
  valijson::Schema parsed;
  valijson::SchemaParser().populateSchema(valijson::adapters::NlohmannJsonAdapter(schema_document), parsed);
  valijson::ValidationResults results;
  valijson::Validator validator;
  if (validator.validate(parsed, valijson::adapters::NlohmannJsonAdapter(target), &results)) return;
  valijson::ValidationResults::Error error;  // the first is the innermost: the member that does not fit
  std::string path, reason = "unknown reason";
  if (results.popError(error)) {
    reason = error.description;
    for (const std::string& part : error.context) path += part;
  }
  throw DataError("does not fit schema " + schema + " at " + path + ": " + reason, where,
                  "write or fetch the file again with this version of oscar");
}

}  // namespace oscar
