// SPDX-License-Identifier: MIT
#include "commands/verdict_options.hpp"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "numbers.hpp"
#include "verify/verdict/verdict.hpp"

namespace oscar {
namespace {

/// "output error 0.1, softmax KL …"
std::string limits_in_words(const VerifyThresholds& limits) {
  return fmt::format("output error {:.3g}, softmax KL {:.3g}, KLD {:.3g}, perplexity {:.3g}", *limits.max_output_error,
                     *limits.max_softmax_kl, *limits.max_kld, *limits.max_ppl_increase);
}

/// "at 2 bits output error 0.1, …": one line per width would not fit a help text.
std::string default_limits_text() {
  std::string text;
  for (const int bits : {2, 3, 4}) {
    text +=
        fmt::format("{}at {} bits {}", bits == 2 ? "" : "; ", bits, limits_in_words(verify::default_thresholds(bits)));
  }
  return text + fmt::format(
                    ", measured on {}. Coded sets at 2.25 bits a value {}, four times that for each bit less and a "
                    "quarter for each bit more, but never above the limits at 2 bits; measured on {}",
                    verify::kDefaultLimitsMeasuredOn, limits_in_words(verify::coded_thresholds(2.25)),
                    verify::kCodedLimitsMeasuredOn);
}

}  // namespace

void add_verdict_options(CLI::App& command, VerifyOptions& options) {
  VerifyThresholds& limits = options.thresholds;
  const auto add_limit = [&](const char* name, std::optional<double>& limit, const char* words) {
    command.add_option(name, limit, words)->check(kNonNegative)->group("Verdict");
  };
  add_limit("--max-output-error", limits.max_output_error, "Reject above this relative error of attention outputs");
  add_limit("--max-softmax-kl", limits.max_softmax_kl, "Reject above this mean KL of attention probabilities");
  add_limit("--max-kld", limits.max_kld, "Reject above this mean KL of the model's predictions");
  add_limit("--max-ppl-increase", limits.max_ppl_increase, "Reject above this relative increase of perplexity");
  command
      .add_flag(
          "--default-limits,!--no-default-limits", options.default_limits,
          fmt::format("Hold what was measured to default limits where none is given [on]: {}", default_limits_text()))
      ->group("Verdict");
  command
      .add_flag("--require-held-out", options.require_held_out,
                "Reject unless the figures are known to come from text that the set was not fitted on")
      ->group("Verdict");
}

}  // namespace oscar
