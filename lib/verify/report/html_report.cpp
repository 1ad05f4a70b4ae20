// SPDX-License-Identifier: MIT
#include <string_view>

#include "base/errors.hpp"
#include "verify/report/report.hpp"

namespace oscar {
namespace {

/// `text` with every `from` replaced.
std::string replaced(std::string_view text, char from, std::string_view to) {
  std::string out;
  for (const char c : text) {
    if (c == from) {
      out += to;
    } else {
      out += c;
    }
  }
  return out;
}

/// Nothing in a string of the report ends the element that holds it.
std::string embedded(const Json& json) {
  return replaced(json.dump(-1, ' ', false, Json::error_handler_t::replace), '<', "\\u003c");
}

/// The report, with what only people look at.
Json page_data(const VerifyReport& report, const ReportOrigin& origin) {
  Json json = to_json(report);
  json["spectra"] = Json::array();
  for (const Spectra& each : report.spectra) {
    json["spectra"].push_back(
        {{"part", each.part}, {"layer", each.layer}, {"target", each.target}, {"values", each.values}});
  }
  json["clips"] = Json::array();
  for (const LayerClips& each : report.clips) {
    json["clips"].push_back({{"part", each.part}, {"layer", each.layer}, {"key", each.key}, {"value", each.value}});
  }
  json["plan"] = Json::array();
  for (const HeadPlan& each : report.plan) {
    json["plan"].push_back(
        {{"layer", each.layer}, {"target", each.target}, {"head", each.head}, {"channels", each.channels}});
  }
  json["command"] = origin.command;
  json["date"] = origin.date;
  return json;
}

std::string escaped(std::string_view text) { return replaced(replaced(text, '&', "&amp;"), '<', "&lt;"); }

}  // namespace

void require_html_report() {
  if (page_parts().contains("library")) return;
  throw UsageError("this build has no plotting library, so that it writes no HTML", "--report",
                   "install libjs-chart.js (scripts/setup.sh does) and build again, or use --json");
}

std::string html_report(const VerifyReport& report, const ReportOrigin& origin) {
  require_html_report();
  std::string_view page = page_parts().at("html");
  std::string out;
  for (auto open = page.find("{{"); open != std::string_view::npos; open = page.find("{{")) {
    const auto close = page.find("}}");
    const std::string_view part = page.substr(open + 2, close - open - 2);
    out += page.substr(0, open);
    if (part == "report") {
      out += embedded(page_data(report, origin));
    } else if (part == "licence") {
      out += escaped(page_parts().find(part)->second);
    } else {
      out += page_parts().find(part)->second;
    }
    page.remove_prefix(close + 2);
  }
  return out += page;
}

}  // namespace oscar
