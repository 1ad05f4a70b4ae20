// SPDX-License-Identifier: MIT
#include "zoo/render.hpp"

#include <cstdio>
#include <optional>

#include "rotation/verdict.hpp"

namespace oscar {
namespace {

constexpr char kStyle[] =
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 "
    "1rem}"
    "h2{margin-top:2.5rem;border-bottom:1px solid #8886}table{border-collapse:collapse;display:block;overflow-x:auto}"
    "th,td{padding:.2rem .8rem;text-align:right;border-bottom:1px solid #8884;white-space:nowrap}"
    "th:first-child,td:first-child{text-align:left}tr.this{font-weight:600}"
    "pre{background:#8882;padding:.6rem .8rem;overflow-x:auto}.tag{font-size:.85em;padding:.1em "
    ".5em;border-radius:.6em;"
    "background:#8883}.good{background:#2a82}.bad{background:#c332}";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

/// A member of nested objects; null if one of them is missing.
Json at(const Json& json, std::initializer_list<const char*> names) {
  Json value = json;
  for (const char* name : names) value = value.is_object() ? value.value(name, Json()) : Json();
  return value;
}

std::string number(const Json& value, const char* format) {
  if (!value.is_number()) return "–";
  char text[64];
  (void)std::snprintf(text, sizeof text, format, value.get<double>());
  return text;
}

std::string text(const Json& value) { return value.is_string() ? escaped(value.get<std::string>()) : "–"; }

std::string cell(const std::string& content) { return "<td>" + content + "</td>"; }

std::string badge(const std::string& content, const char* kind = "") {
  return std::string("<span class=\"tag ") + kind + "\">" + escaped(content) + "</span> ";
}

std::string megabytes(std::uint64_t bytes) {
  char text[64];
  (void)std::snprintf(text, sizeof text, "%.1f MB", static_cast<double>(bytes) / 1e6);
  return text;
}

std::string layers_of(const Json& count) { return count == 1 ? "1 layer" : number(count, "%.0f") + " layers"; }

std::string needles(const Json& model) {
  const Json hits = at(model, {"needle_hits"}), all = at(model, {"needles"});
  return hits.is_number() && all.is_number() ? number(hits, "%.0f") + "/" + number(all, "%.0f") : "–";
}

std::string method_row(const std::string& name, const Json& method) {
  const bool is_this = at(method, {"kind"}) == "this";
  return std::string("<tr") + (is_this ? " class=\"this\">" : ">") +
         cell(escaped(name) + (is_this ? " (this set)" : "")) +
         cell(number(at(method, {"bits_per_element", "at_context"}), "%.2f")) +
         cell(number(at(method, {"attention", "output_rel_error"}), "%.4f")) +
         cell(number(at(method, {"attention", "softmax_kl"}), "%.4f")) +
         cell(number(at(method, {"model", "ppl"}), "%.3f")) + cell(number(at(method, {"model", "kld_mean"}), "%.4f")) +
         cell(number(at(method, {"model", "same_top"}), "%.3f")) + cell(needles(at(method, {"model"}))) + "</tr>\n";
}

std::string methods_table(const Json& verification) {
  const Json methods = at(verification, {"methods"});
  if (!methods.is_object() || methods.empty()) return "<p>No figures: verify has not measured this set.</p>\n";
  std::string rows;
  for (const auto& [name, method] : methods.items()) rows += method_row(name, method);
  return "<table><thead><tr><th>method</th><th>bits</th><th>attention error</th><th>softmax KL</th><th>ppl</th>"
         "<th>KLD</th><th>same top</th><th>needles</th></tr></thead><tbody>\n" +
         rows + "</tbody></table>\n";
}

std::string badges(const ZooEntry& entry) {
  const std::optional<Verdict> verdict = recorded_verdict(entry.summary);
  std::string out = badge(claim_of(verdict), verdict == Verdict::kAccepted ? "good" : "bad");
  if (entry.forced) out += badge("published by force", "bad");
  if (!entry.signed_by.empty()) out += badge("signed");
  if (!entry.deprecated.empty()) out += badge("deprecated: " + entry.deprecated, "bad");
  return out;
}

std::string section(const ZooEntry& entry, const std::string& zoo) {
  const std::string name = entry.model + ":" + entry.tag;
  const Json& summary = entry.summary;
  const std::string command = "oscar pull " + name + (zoo.empty() ? "" : " --zoo " + zoo);
  return "<h2 id=\"" + escaped(name) + "\">" + escaped(name) + "</h2>\n<p>" + badges(entry) + "</p>\n<p>Model " +
         text(at(summary, {"model"})) + ", recipe " + text(at(summary, {"recipe"})) + ", codec " +
         text(at(summary, {"codec"})) + ", " + number(at(summary, {"bits", "key"}), "%g") + " bits for keys and " +
         number(at(summary, {"bits", "value"}), "%g") + " for values, " + layers_of(at(summary, {"num_layers"})) +
         ", " + megabytes(entry.total_size) + ", " + escaped(entry.created) + "</p>\n<pre>" + escaped(command) +
         "\noscar pull " + escaped(entry.model + "@sha256:" + entry.manifest_sha256) +
         (zoo.empty() ? "" : " --zoo " + escaped(zoo)) + "</pre>\n" + methods_table(at(summary, {"verification"}));
}

}  // namespace

std::string render_zoo(const ZooIndex& index, const std::string& zoo) {
  std::string contents, sections;
  for (const ZooEntry& entry : index.entries()) {
    const std::string name = escaped(entry.model + ":" + entry.tag);
    const Json own = at(entry.summary, {"verification", "methods"});
    Json figures;
    if (own.is_object()) {
      for (const auto& [method, values] : own.items()) {
        if (at(values, {"kind"}) == "this") figures = values;
      }
    }
    contents += "<tr>" + cell("<a href=\"#" + name + "\">" + name + "</a>") +
                cell(text(at(entry.summary, {"recipe"}))) + cell(text(at(entry.summary, {"codec"}))) +
                cell(number(at(figures, {"bits_per_element", "at_context"}), "%.2f")) +
                cell(number(at(figures, {"attention", "output_rel_error"}), "%.4f")) +
                cell(number(at(figures, {"model", "kld_mean"}), "%.4f")) + cell(needles(at(figures, {"model"}))) +
                cell(megabytes(entry.total_size)) + "</tr>\n";
    sections += section(entry, zoo);
  }
  return std::string("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">") +
         "<meta name=\"viewport\" content=\"width=device-width\"><title>Rotation zoo</title><style>" + kStyle +
         "</style></head><body>\n<h1>Rotation zoo</h1>\n<p>Transforms for 2-bit KV caches. Bits are those at a context "
         "of "
         "128K tokens, windows included; errors are what the maker of each set measured, as its manifest tells.</p>\n"
         "<table><thead><tr><th>set</th><th>recipe</th><th>codec</th><th>bits</th><th>attention error</th><th>KLD</th>"
         "<th>needles</th><th>size</th></tr></thead><tbody>\n" +
         contents + "</tbody></table>\n" + sections + "</body></html>\n";
}

}  // namespace oscar
