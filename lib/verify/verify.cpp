// SPDX-License-Identifier: MIT
#include "verify/verify.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <ranges>
#include <set>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "dump/live_source.hpp"
#include "measure/peers/baselines.hpp"
#include "model/tokenizer/tokens.hpp"
#include "verify/measure_source.hpp"
#include "verify/structure/subject.hpp"
#include "verify/verdict/verdict.hpp"

namespace oscar::verify {
namespace {

/// Numbers that both know.
bool other_number(int a, int b) { return a > 0 && b > 0 && a != b; }

bool other_heads(const ModelIdentity& a, const ModelIdentity& b) {
  const auto value_dim = [](const ModelIdentity& model) {
    return model.value_dim > 0 ? model.value_dim : model.head_dim;
  };
  return other_number(a.num_attention_heads, b.num_attention_heads) ||
         other_number(a.num_key_value_heads, b.num_key_value_heads) || other_number(a.head_dim, b.head_dim) ||
         other_number(value_dim(a), value_dim(b));
}

bool other_shape(const ModelIdentity& a, const ModelIdentity& b) {
  return other_number(a.num_layers, b.num_layers) || other_heads(a, b);
}

/// Data that do not name their model may be of some of its layers, but have its heads.
void require_same(const ModelIdentity& data, const char* what, const char* option, const Expectation& expected) {
  const std::string &theirs = data.config_sha256, &measured = expected.model.config_sha256;
  const bool named = !theirs.empty() && !measured.empty();
  if (named ? theirs == measured : !other_heads(data, expected.model)) return;
  throw DataError(
      std::string(what) + " of another model (" + (named ? data.id : "by its heads") + ") than " + expected.origin,
      option, "give data of the same model, or verify with it alone");
}

bool failed(const std::vector<Check>& checks, const char* name) {
  return std::any_of(checks.begin(), checks.end(),
                     [&](const Check& check) { return check.name == name && check.ok == false; });
}

/// The best that is known about the model: its own config, then the data's manifest, then the set's.
Expectation expectation(const SetUnderTest& set, const VerifyInputs& inputs) {
  Expectation expected;
  expected.from_outside = inputs.runner != nullptr || inputs.source != nullptr || inputs.statistics.has_value();
  if (inputs.runner != nullptr) {
    expected.model = inputs.runner->config().identity;
    expected.origin = "the model";
    const std::vector<BlockSpec>& blocks = inputs.runner->config().blocks;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      expected.dims[static_cast<int>(i)] = {blocks[i].mixer.head_dim, blocks[i].mixer.value_dim};
    }
  } else if (inputs.source != nullptr && inputs.source->model().num_layers > 0) {
    expected.model = inputs.source->model();
    expected.origin = "the data's manifest";
  } else if (inputs.statistics) {
    expected.model = inputs.statistics->model;
    expected.origin = "the statistics' manifest";
  } else {
    expected.model = set.model;
    expected.model.config_sha256.clear();  // a set cannot vouch for itself
    expected.model.revision.clear();
    expected.model.weights_sha256.clear();
    expected.origin = "the set itself";
  }
  if (inputs.source != nullptr) {
    expected.data_layers = inputs.source->layer_ids();
  } else if (inputs.statistics) {
    for (const LayerStatistics& layer : inputs.statistics->layers) expected.data_layers.push_back(layer.layer_id);
  }
  return expected;
}

/// Throws DataError for a dump or statistics of another model than the one that the set is measured with: they would
/// be compared with it in vain.
void require_same_model(const VerifyInputs& inputs, const Expectation& expected) {
  if (inputs.statistics) require_same(inputs.statistics->model, "the statistics are", "--stats", expected);
  if (inputs.source != nullptr) require_same(inputs.source->model(), "the dump is", "--dump", expected);
}

/// Whether the set says that it is of another model than what it is held against: by the architecture, or by the number
/// or size of heads or layers. Of a set that does not say, the checks of its shapes tell. False where nothing but the
/// set itself is known.
bool is_of_other_model(const ModelIdentity& own, const Expectation& expected, const std::vector<Check>& checks) {
  if (!expected.from_outside) return false;
  if (failed(checks, "model_identity") || other_shape(own, expected.model)) return true;
  return own.config_sha256.empty() && (failed(checks, "shape") || failed(checks, "layer_coverage"));
}

/// Methods that are measured another way than their authors run them.
void warn_of_missing_rope(VerifyReport& report, const std::vector<KvMethod>& methods, bool has_model) {
  const auto lacks_rope = [](const KvMethod& method) {
    return method.before_rope &&
           std::ranges::any_of(method.layers, [](const auto& layer) { return !layer.second.rotary; });
  };
  const std::string names = joined(methods | std::views::filter(lacks_rope), ", ", &KvMethod::name);
  if (names.empty()) return;
  report.warnings.push_back(
      (has_model ? "the model turns keys in a way that is not undone: " : "nothing tells the model's rope_theta: ") +
      names + " quantise keys before RoPE, but are measured after it" + (has_model ? "" : " (--model tells)"));
}

/// How the keys of a layer turn, by the model, or where there is none by what is known of it; nothing where that does
/// not tell.
std::optional<Rotary> rotary_in(const LayerShape& layer, const ModelIdentity& model, const ModelRunner* runner) {
  if (runner == nullptr) {
    return model.rope_theta > 0 ? std::optional(plain_rotary(model.rope_theta, layer.head_dim)) : std::nullopt;
  }
  const MixerSpec& mixer = runner->config().block(layer.layer_id).mixer;
  if (!runner->config().why_irreplaceable().empty() || !why_not_before_rope(mixer).empty()) return std::nullopt;
  const Rotary still{rotary_pairs(layer.head_dim, 0, false),
                     std::vector<float>(static_cast<std::size_t>(layer.head_dim / 2))};
  return rotary_of(mixer).value_or(still);
}

/// One part, and what its structure and data tell of it.
struct PartFindings {
  const Subject& subject;
  std::vector<Check> checks;
};

/// What stands side by side: parts that can be measured, and their methods behind those of others.
struct Measured {
  std::vector<PartFindings*> parts;
  std::vector<KvMethod> methods;
};

void add_attention(VerifyReport& report, const Measurements& found) {
  for (std::size_t m = 0; m < found.methods.size(); ++m) {
    const MethodMeasurements& method = found.methods[m];
    AttentionSums pooled;
    for (std::size_t i = 0; i < method.layers.size(); ++i) {
      report.methods[m].layers.push_back({found.layers[i], method.layers[i].metrics(), method.heads[i]});
      pooled.add(method.layers[i]);
    }
    if (found.layers.empty()) continue;
    report.methods[m].attention = pooled.metrics();
    report.methods[m].attention_intervals = intervals_of(method.sequences);
  }
}

/// Attention metrics and moments, from the dump if there is one, else from the model on its texts. Returns what is
/// behind the model's last layer if that will be asked for; null if it was not computed.
std::unique_ptr<FinalStates> measure_layers(VerifyReport& report, const CalibrationData& fitted,
                                            const Measured& measured, const VerifyInputs& inputs,
                                            const VerifyOptions& options, Backend& backend, Status& status) {
  const std::vector<KvMethod>& methods = measured.methods;
  const bool live = inputs.source == nullptr && inputs.runner != nullptr && !inputs.model_data.texts.empty();
  if (inputs.source == nullptr && !live) return nullptr;
  const bool to_the_end = live && !methods.empty() && runs_texts_together(*inputs.runner, inputs.model_data, methods);
  std::unique_ptr<LiveSource> live_source;
  if (live) {
    live_source =
        open_live(*inputs.runner, inputs.model_data.texts, {.layers = inputs.layers, .to_the_end = to_the_end}, status);
  }
  QkvSource& source = live ? *live_source : *inputs.source;
  const CalibrationData data = source.calibration();
  const bool same = !data.data_sha256.empty() && data.data_sha256 == fitted.data_sha256;
  const auto take_moments = [&](int layer, LayerStream& stream, std::int64_t tokens) {
    DataMoments moments;
    for (const PartFindings* part : measured.parts) {
      part->subject.take(layer, stream, same, tokens, backend, moments);
    }
    return moments;
  };
  const MeasurePlan plan{methods, take_moments, inputs.layers, options.max_queries, options.precision, report.windows};
  const Measurements found = measure_source(source, plan, backend, status);
  for (PartFindings* part : measured.parts) part->subject.check_on(found.moments, part->checks);
  add_attention(report, found);
  if (const std::size_t all = methods.empty() ? 0 : methods.back().layers.size(); found.layers.size() < all) {
    report.layers_left_out = true;
    report.warnings.push_back("attention is measured in " + std::to_string(found.layers.size()) + " of " +
                              plural(all, "layer"));
  }
  report.data["attention"] = {{"source", live ? "model" : "dump"},
                              {"data_sha256", data.data_sha256},
                              {"tokens_per_layer", found.tokens},
                              {"queries_per_layer", found.queries},
                              {"layers", found.layers.size()}};
  if (!methods.empty()) report.data["attention"].update(to_json(found.keys));
  const auto seen = live ? sequences_fitted_on(fitted, inputs.model_data.texts) : sequences_fitted_on(fitted, data);
  judge_held_out(report, "attention", seen, data.sequences, options.require_held_out);
  return to_the_end ? live_source->final_states() : nullptr;
}

/// exact: what measure_layers() returns.
void measure_model_metrics(VerifyReport& report, const CalibrationData& fitted, const std::vector<KvMethod>& methods,
                           const VerifyInputs& inputs, const VerifyOptions& options, Backend& backend, Status& status,
                           const FinalStates* exact) {
  const ModelData& data = inputs.model_data;
  std::vector<TokenSequence> rows;  // all that the model reads
  for (const auto* of : {&data.texts, &data.needles, &data.quotes}) rows.insert(rows.end(), of->begin(), of->end());
  if (inputs.runner == nullptr || rows.empty() || methods.empty()) return;
  const auto metrics = measure_model(*inputs.runner, data, methods, options.precision, backend, status, exact);
  for (std::size_t m = 0; m < metrics.size(); ++m) report.methods[m].model = metrics[m];
  const CalibrationData texts = describe(data.texts);
  const std::size_t longest = std::ranges::max(rows | std::views::transform(std::ranges::size));
  report.data["model"] = {
      {"data_sha256", texts.data_sha256}, {"tokens", texts.tokens},       {"computed_on", inputs.runner->description()},
      {"needles", data.needles.size()},   {"quotes", data.quotes.size()}, {"longest", longest}};
  if (!data.needles.empty()) {
    report.data["model"]["needles_quantised_share"] = keys_of_needles(data, report.windows).share();
  }
  if (!data.quotes.empty()) {
    report.data["model"]["quotes_quantised_share"] = keys_of_quotes(data, report.windows).share();
  }
  if (!data.texts.empty()) report.data["model"].update(to_json(keys_of_texts(data, report.windows)));
  judge_held_out(report, "model", sequences_fitted_on(fitted, rows), std::ssize(rows), options.require_held_out);
}

/// What sinks and soft caps of the model change: nothing that a dump holds tells of them.
void warn_of_score_rules(VerifyReport& report, const std::vector<KvMethod>& methods, const ModelRunner& runner) {
  const std::vector<int> layers = runner.config().cache_layers();
  const auto rule_differs = [&](int layer) { return !runner.score_rule(layer).ignores_shifts(); };
  if (std::none_of(layers.begin(), layers.end(), rule_differs)) return;
  report.warnings.push_back("attention metrics leave out the model's sinks and soft caps; its own figures know them");
  const auto centred = [](const auto& layer) {
    const auto& key = layer.second.key.transform;
    return key != nullptr && std::ranges::any_of(key->mean, [](double each) { return each != 0; });  // kept ones are 0
  };
  if (std::ranges::none_of(methods, [&](const KvMethod& m) { return std::ranges::any_of(m.layers, centred); })) return;
  report.warnings.push_back("keys are centred, which shifts all scores of a query: sinks and soft caps feel that");
}

/// The methods that the options name, and bf16 beside needles, which those that it finds are a share of; then the parts
/// of the set, in its windows or their own. model: what is known of it. group_size: of the set's row codec; 0: the
/// whole row. Throws UsageError for an unknown name.
std::vector<KvMethod> methods_beside(std::vector<KvMethod> parts, const VerifyOptions& options, bool has_needles,
                                     const ModelIdentity& model, const ModelRunner* runner, int group_size) {
  std::vector<std::string> names = options.compare;
  if (names == std::vector<std::string>{"none"}) names.clear();
  if (names == std::vector<std::string>{"all"}) {
    names.clear();
    std::ranges::transform(peers(), std::back_inserter(names), &Peer::name);
  }
  if (has_needles && std::ranges::find(names, "bf16") == names.end()) names.insert(names.begin(), "bf16");
  std::vector<LayerShape> shapes;
  for (const auto& [id, layer] : parts.front().layers) {
    shapes.push_back({id, layer.head_dim, std::max(layer.num_kv_heads, model.num_key_value_heads), layer.value_dim});
    shapes.back().rotary = rotary_in(shapes.back(), model, runner);
  }
  std::vector<KvMethod> methods;
  for (const std::string& name : names) {
    const Windows windows = options.own_windows ? peer_named(name).windows : parts.front().windows;
    methods.push_back(make_baseline(name, shapes, windows, group_size));
  }
  std::ranges::move(parts, std::back_inserter(methods));
  return methods;
}

/// Measures the parts side by side, and beside other methods; of one that is there with one side only, its moments.
void measure(VerifyReport& report, const SetUnderTest& set, std::vector<PartFindings>& parts, ModelIdentity model,
             const VerifyInputs& inputs, const VerifyOptions& options, Backend& backend, Status& status) {
  Measured measured;
  std::vector<KvMethod> own;
  int group_size = 0;
  for (PartFindings& part : parts) {
    if (!measurable(part.checks)) continue;
    measured.parts.push_back(&part);
    auto method = part.subject.method(report.windows);
    if (!method) continue;
    method->name = part.subject.name;
    own.push_back(std::move(*method));
    group_size = std::max(group_size, part.subject.group_size());
    report.warnings.insert(report.warnings.end(), part.subject.caveats.begin(), part.subject.caveats.end());
  }
  if (measured.parts.empty()) return;
  if (!own.empty()) {
    require_quantised_texts(inputs.model_data, report.windows);
    if (model.num_key_value_heads == 0) model.num_key_value_heads = set.model.num_key_value_heads;
    if (model.rope_theta == 0) model.rope_theta = set.model.rope_theta;
    measured.methods =
        methods_beside(std::move(own), options, !inputs.model_data.needles.empty(), model, inputs.runner, group_size);
    constexpr std::int64_t kContext = 131072;          // tokens that bits per element are of
    for (const KvMethod& method : measured.methods) {  // figures come later
      const BitsPerElement bits = bits_per_element(method, kContext);
      report.methods.push_back({method.name, method.kind, method.description, method.windows, bits, {}, {}, {}});
    }
    warn_of_missing_rope(report, measured.methods, inputs.runner != nullptr);
  }
  if (inputs.statistics) {
    DataMoments found;
    for (PartFindings* part : measured.parts) part->subject.take(*inputs.statistics, found, part->checks);
    for (PartFindings* part : measured.parts) part->subject.check_on(found, part->checks);
    report.data["statistics"] = description_of(*inputs.statistics);
  }
  if (inputs.runner != nullptr) {
    for (PartFindings* part : measured.parts) part->subject.check_model(inputs.runner->config(), part->checks);
  }
  if (inputs.runner != nullptr && !measured.methods.empty()) {
    warn_of_score_rules(report, measured.methods, *inputs.runner);
  }
  const auto exact = measure_layers(report, set.calibration, measured, inputs, options, backend, status);
  measure_model_metrics(report, set.calibration, measured.methods, inputs, options, backend, status, exact.get());
}

/// The set, unless its files are not those that it lists, or hold what no set can: a failed check then says so.
std::optional<SetUnderTest> open_sound(const std::filesystem::path& path, std::vector<Check>& checks) {
  check_file_hashes(path, checks);
  if (checks.back().ok == false) return std::nullopt;
  try {
    return open_set(path);
  } catch (const DataError& error) {
    if (!std::filesystem::exists(path / "manifest.json")) throw;
    const std::string where = error.where().empty() ? "" : error.where() + ": ";
    checks.push_back({.name = "file_contents", .ok = false, .message = where + error.what() + "; " + error.remedy()});
  }
  return std::nullopt;
}

/// Who reads which part, and nothing further: the files hold not what was fitted.
SetUnderTest as_the_manifest_says(const std::filesystem::path& folder) {
  SetUnderTest set;
  set.manifest = read_json(folder / "manifest.json");
  for (const auto& [reader, part] : set.manifest["readers"].items()) set.readers[reader] = part;
  return set;
}

/// Leaves only what these readers read. Throws UsageError for one that has no part.
void keep_parts_of(const std::vector<std::string>& readers, SetUnderTest& set) {
  std::set<std::string> kept;
  for (const std::string& name : readers) {
    const auto part = set.readers.find(name);
    if (part == set.readers.end()) {
      const std::string have = joined(std::views::keys(set.readers));
      throw UsageError("the set has no part for " + name, "--for",
                       have.empty() ? "leave the option out" : "it has parts for " + have);
    }
    kept.insert(part->second);
  }
  std::erase_if(set.parts, [&](const auto& part) { return !kept.contains(part->name); });
  std::erase_if(set.readers, [&](const auto& reader) { return !kept.contains(reader.second); });
}

/// Says what is looked at.
void describe(const SetUnderTest& set, VerifyReport& report) {
  report.readers = set.readers;
  report.set["format"] = set.manifest.is_null() ? "foreign" : kSetSchema;
  report.set["windows"] = {{"sink", set.windows.sink}, {"recent", set.windows.recent}};
  if (!set.manifest.is_null()) {
    report.set["model"] = to_json(set.model);
    report.set["calibration"] = to_json(set.calibration);
    report.set["calibration"].erase("blocks");
  }
  for (const auto& part : set.parts) part->describe(report.parts.emplace_back(PartReport{.name = part->name}), report);
  if (!report.parts.empty()) return;
  std::set<std::string> unopened;  // of a set that only its manifest speaks for
  for (const auto& [reader, part] : set.readers) unopened.insert(part);
  for (const std::string& part : unopened) report.parts.push_back({.name = part});
}

/// What the files say differently.
void check_contradictions(const SetUnderTest& set, std::vector<Check>& checks) {
  if (set.manifest.is_null()) return;
  checks.push_back({.name = "derived_files",
                    .value = static_cast<double>(set.contradictions.size()),
                    .limit = 0,
                    .ok = set.contradictions.empty(),
                    .message = joined(set.contradictions, "; ")});
}

/// The set by itself, against what is known of its model, and on data.
void examine(VerifyReport& report, const SetUnderTest& set, const VerifyInputs& inputs, const VerifyOptions& options,
             Backend& backend, Status& status) {
  report.windows = {options.sink.value_or(set.windows.sink), options.recent.value_or(set.windows.recent)};
  const Expectation expected = expectation(set, inputs);
  require_same_model(inputs, expected);
  check_provenance(set, expected, report.checks);
  std::vector<PartFindings> parts;
  for (const auto& subject : set.parts) {
    PartFindings& part = parts.emplace_back(PartFindings{*subject, {}});
    check_shared(*subject, expected, part.checks);
    subject->check_own(part.checks);
  }
  measure(report, set, parts, expected.model, inputs, options, backend, status);
  for (PartFindings& part : parts) {
    for (Check& check : part.checks) check.part = part.subject.name;
    std::ranges::move(part.checks, std::back_inserter(report.checks));
  }
  report.other_model = is_of_other_model(set.model, expected, report.checks);
  if (options.require_held_out && !report.data.contains("attention") && !report.data.contains("model")) {
    report.reasons.push_back("nothing was measured on held-out text: give --model or --dump (--require-held-out)");
  }
}

}  // namespace
}  // namespace oscar::verify

namespace oscar {

VerifyReport verify_set(const std::filesystem::path& path, const VerifyInputs& inputs, const VerifyOptions& options,
                        Backend& backend, Status& status) {
  for (const std::string& reader : options.readers) (void)reader_from_name(reader, "--for");
  VerifyReport report;
  report.precision = options.precision;
  report.set = {{"path", path.string()}};
  report.chosen_readers = !options.readers.empty();
  auto opened = verify::open_sound(path, report.checks);
  verify::SetUnderTest set = opened ? std::move(*opened) : verify::as_the_manifest_says(path);
  const std::size_t all = set.readers.size();
  if (report.chosen_readers) verify::keep_parts_of(options.readers, set);
  report.all_parts = set.readers.size() == all;
  report.manifest = set.manifest;
  verify::describe(set, report);
  verify::check_contradictions(set, report.checks);
  // Where files hold not what was fitted, or contradict each other, there is nothing further to find out.
  if (structure_ok(report)) verify::examine(report, set, inputs, options, backend, status);
  verify::judge(report, options.thresholds, options.default_limits);
  return report;
}

}  // namespace oscar
