// SPDX-License-Identifier: MIT
#include "moments/statistics.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "base/errors.hpp"
#include "base/sha256.hpp"
#include "base/status.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "dump/dump_index.hpp"
#include "moments/statistics_file.hpp"

namespace oscar {
namespace {

/// What one file, or the files of several tensor-parallel ranks together, say of themselves; sums are read layer by
/// layer.
struct Part {
  std::vector<StatisticsFile> files;  // by ascending heads
  Statistics manifest;

  /// "a.safetensors", or "a.safetensors, b.safetensors"
  [[nodiscard]] std::string name() const { return joined(files, ", ", &StatisticsFile::path); }
};

[[noreturn]] void refuse(const std::string& what, const Part& a, const Part& b, const char* advice) {
  throw DataError(what, a.name() + " and " + b.name(), advice);
}

// Moments that the tensor-parallel ranks of a server kept, each of its KV heads of the same data, as if they were one.

constexpr const char* kOneModel = "merge statistics of one model only";
constexpr const char* kDamageTokens = "damage_tokens";  // of the recipe: how many tokens a model was asked about
constexpr const char* kOfEachRank = "give one file of each tensor-parallel rank";

/// Ranks of one run: the same data of the same heads in all.
bool same_run(const Part& a, const Part& b) {
  const HeadRange &own = a.manifest.heads, &other = b.manifest.heads;
  return !own.whole() && !other.whole() && a.manifest.data == b.manifest.data && own.total == other.total;
}

void append(std::vector<double>& to, const std::vector<double>& from) { to.insert(to.end(), from.begin(), from.end()); }

void append(MatrixStack& to, const MatrixStack& from) {
  to.count += from.count;
  append(to.data, from.data);
}

void append(MomentSums& to, const MomentSums& from) {
  append(to.sums, from.sums);
  append(to.total, from.total);
}

/// The next heads of the same layer.
void append(LayerStatistics& to, const LayerStatistics& from, const std::string& where) {
  const auto require = [&](bool same, const char* what) {
    if (!same) throw DataError(what, where, kOfEachRank);
  };
  require(to.layer_id == from.layer_id && to.key_dim == from.key_dim && to.value_dim == from.value_dim,
          "another layer, or another head dimension, than in the rank before");
  require(to.first.sums.size() == from.first.sums.size() && to.sst.has_value() == from.sst.has_value() &&
              to.first.keys.has_value() == from.first.keys.has_value(),
          "other sums than in the rank before");
  for (auto& [moment, sums] : to.first.sums) {
    require(from.first.sums.contains(moment), "other sums than in the rank before");
    append(sums, from.first.sums.at(moment));
  }
  if (to.first.keys) {
    require(to.first.keys->tokens == from.first.keys->tokens, "another number of tokens than in the rank before");
    append(to.first.keys->sums, from.first.keys->sums);
  }
  if (to.sst) append(*to.sst, *from.sst);
}

/// Whether the two are the same as far as both tell: weights may have been at hand for one alone.
bool of_one_model(ModelIdentity x, const ModelIdentity& y) {
  if (x.weights_sha256.empty() || y.weights_sha256.empty()) x.weights_sha256 = y.weights_sha256;
  return x == y;
}

void join(Part& part, Part next) {
  HeadRange &heads = part.manifest.heads, &more = next.manifest.heads;
  if (more.first < heads.first + heads.count) refuse("two ranks with the same KV heads", part, next, kOfEachRank);
  if (more.first > heads.first + heads.count) {
    refuse("KV heads " + std::to_string(heads.first + heads.count) + " to " + std::to_string(more.first - 1) +
               " are missing between",
           part, next, kOfEachRank);
  }
  if (part.manifest.layers.size() != next.manifest.layers.size())
    refuse("ranks with different layers", part, next, kOfEachRank);
  const auto &a = part.manifest, &b = next.manifest;
  if (!of_one_model(a.model, b.model)) refuse("ranks of different models", part, next, kOfEachRank);
  heads.count += more.count;
  part.files.push_back(std::move(next.files.front()));
}

/// Puts shards of the same data together, which may leave heads out at either end (Statistics::heads). Throws DataError
/// that names the files: two ranks with the same heads, a gap between them, other layers or sums.
std::vector<Part> join_shards(std::vector<Part> files) {
  std::ranges::stable_sort(files, {}, [](const Part& part) { return part.manifest.heads.first; });
  std::vector<Part> parts;
  for (Part& file : files) {
    const auto found = std::find_if(parts.begin(), parts.end(), [&](const auto& part) { return same_run(part, file); });
    found == parts.end() ? parts.push_back(std::move(file)) : join(*found, std::move(file));
  }
  for (Part& part : parts) {
    if (part.manifest.heads.whole()) part.manifest.heads = {};
  }
  return parts;
}

/// Layer number `i` of the part, heads of all files in order.
LayerStatistics read_layer(const std::vector<StatisticsFile>& files, std::size_t i) {
  LayerStatistics layer = files.front().read(files.front().manifest().layers[i]);
  for (std::size_t f = 1; f < files.size(); ++f) {
    const LayerStatistics more = files[f].read(files[f].manifest().layers[i]);
    append(layer, more, files[f].path() + ", layer " + std::to_string(layer.layer_id));
  }
  return layer;
}

// Parts of the data, or layers, added up.

void require_same_origin(const Part& a, const Part& b) {
  const ModelIdentity &x = a.manifest.model, &y = b.manifest.model;
  if (x.id != y.id) refuse("statistics of different models (\"" + x.id + "\", \"" + y.id + "\")", a, b, kOneModel);
  if (x.revision != y.revision || x.config_sha256 != y.config_sha256) {
    refuse("statistics of different revisions of a model, or of different architectures under one name", a, b,
           kOneModel);
  }
  if (!of_one_model(x, y)) refuse("statistics of models of different shape or weights", a, b, kOneModel);
  if (!(a.manifest.windows == b.manifest.windows)) {
    refuse("statistics with different windows", a, b, "take them with the same --sink and --recent");
  }
  const HeadRange &g = a.manifest.heads, &h = b.manifest.heads;
  if (g.first != h.first || g.count != h.count) {
    refuse("statistics of different KV heads that are not of the same data", a, b, "join the ranks of each run first");
  }
  Json how = a.manifest.recipe, other = b.manifest.recipe;
  for (Json* each : {&how, &other}) each->erase(kDamageTokens);
  if (how != other) {
    refuse("statistics that were taken in other ways: " + differences(how, other) + " differ", a, b,
           "take all parts with the same options, and all of a model or all of dumps");
  }
  if (a.manifest.clip != b.manifest.clip) {
    refuse("statistics with other samples for clip ratios", a, b, "take all parts with the same --clip and --seed");
  }
}

/// "fisher keys qqt"
std::string names_of(const LayerStatistics& layer) {
  std::string names;
  const auto add = [&](bool there, const std::string& name) {
    if (there) names += (names.empty() ? "" : " ") + name;
  };
  add(layer.first.fisher.has_value(), "fisher");
  add(layer.first.fisher && layer.first.fisher->value.count > 0, "fisher.value");
  add(layer.first.keys.has_value(), "keys");
  for (const auto& [moment, sums] : layer.first.sums) add(true, std::string(name_of(moment)));
  add(layer.cost.has_value(), "cost"), add(layer.damage.has_value(), "damage");
  add(!layer.key_rows.empty(), "rows"), add(!layer.centred, "uncentred");
  add(layer.rotary.has_value(), "rows before RoPE");
  return names;
}

void add_data(const std::vector<std::size_t>& more, std::vector<std::size_t>& data, const std::string& where) {
  for (const std::size_t each : more) {
    if (std::find(data.begin(), data.end(), each) == data.end()) continue;
    throw DataError("the same data twice", where, "give each part of the data once");
  }
  data.insert(data.end(), more.begin(), more.end());
  std::sort(data.begin(), data.end());
}

/// `count` of the rows of each head, spread evenly.
void thin(std::vector<std::vector<float>>& heads, std::int64_t rows, std::int64_t count) {
  for (std::vector<float>& own : heads) {
    const auto dim = std::ssize(own) / rows;
    std::vector<float> kept;
    kept.reserve(static_cast<std::size_t>(count * dim));
    for (std::int64_t i = 0; i < count; ++i) {
      const auto row = own.begin() + (2 * i + 1) * rows / (2 * count) * dim;
      kept.insert(kept.end(), row, row + dim);
    }
    own = std::move(kept);
  }
}

void scale_by(double share, LayerStatistics& layer) {
  if (layer.cost) {
    for (MatrixStack* cost : {&layer.cost->key, &layer.cost->value}) {
      for (double& entry : cost->data) entry *= share;
    }
  }
  if (layer.damage) layer.damage = {share * layer.damage->key, share * layer.damage->value};
}

void add_matrices(MatrixStack& sum, const MatrixStack& more, const std::string& where) {
  if (sum.count != more.count || sum.dim != more.dim) {
    throw DataError("another number of heads than elsewhere", where, kOneModel);
  }
  for (std::size_t i = 0; i < sum.data.size(); ++i) sum.data[i] += more.data[i];
}

/// where: of `from`. Costs and damage are scaled already, and rows thinned. Samples are joined elsewhere.
void merge(LayerStatistics& to, LayerStatistics from, const std::string& where) {
  if (to.key_dim != from.key_dim || to.value_dim != from.value_dim) {
    throw DataError("heads of another size than elsewhere", where, kOneModel);
  }
  if (names_of(to) != names_of(from)) {
    throw DataError("sums of " + names_of(from) + ", elsewhere of " + names_of(to), where,
                    "take all parts with the same options");
  }
  add_data(from.first_data, to.first_data, where);
  to.first.merge(from.first);
  if (to.cost) {
    add_matrices(to.cost->key, from.cost->key, where), add_matrices(to.cost->value, from.cost->value, where);
  }
  if (to.damage) to.damage = {to.damage->key + from.damage->key, to.damage->value + from.damage->value};
  if (to.rotary != from.rotary) throw DataError("keys turn otherwise by position than elsewhere", where, kOneModel);
  for (const auto rows :
       {&LayerStatistics::key_rows, &LayerStatistics::value_rows, &LayerStatistics::keys_before_rope}) {
    const std::size_t heads = (to.*rows).size();
    if ((from.*rows).size() != heads) throw DataError("another number of heads than elsewhere", where, kOneModel);
    for (std::size_t head = 0; head < heads; ++head) {
      std::vector<float>&own = (to.*rows)[head], &more = (from.*rows)[head];
      own.insert(own.end(), more.begin(), more.end());
    }
  }
}

/// Whether half of the texts of either or more are among those of the other. What repeats in one of them, whose texts
/// begin alike and end within a block, tells nothing.
bool share_texts(const CalibrationData& a, const CalibrationData& b) {
  std::map<std::string_view, std::array<int, 2>> counts;
  for (const std::string& text : a.blocks) ++counts[text][0];
  for (const std::string& text : b.blocks) ++counts[text][1];
  const auto shared = std::ranges::count(counts, std::array{1, 1}, &decltype(counts)::value_type::second);
  return shared > 0 && 2 * shared >= std::min(std::ssize(a.blocks), std::ssize(b.blocks));
}

/// Where the part's data are in `all`, to which new ones are added.
std::vector<std::size_t> places_of(const Part& part, std::vector<CalibrationData>& all) {
  std::vector<std::size_t> places;
  for (const CalibrationData& each : part.manifest.data) {
    const auto found = std::find(all.begin(), all.end(), each);
    places.push_back(static_cast<std::size_t>(found - all.begin()));
    if (found != all.end()) continue;
    if (std::ranges::any_of(all, [&](const CalibrationData& other) { return share_texts(other, each); })) {
      throw DataError("the same texts twice", part.name(), "give parts of the data that do not overlap");
    }
    all.push_back(each);
  }
  return places;
}

/// The file itself; of a folder, the moments of all ranks of a server in it.
std::vector<std::filesystem::path> files_in(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::filesystem::path> files;
  for (const int rank : numbered_entries(path, kMomentsOfRank, ".pt")) {
    files.push_back(path / (kMomentsOfRank + std::to_string(rank) + ".pt"));
  }
  if (!files.empty()) return files;
  throw DataError("the folder has no moments of a server (oscar_moments_rank<r>.pt)", path.string(),
                  "name files of statistics; a folder with rows is a dump: --dump FOLDER");
}

/// In the order of what they were taken of.
std::vector<Part> parts_of(const std::vector<std::filesystem::path>& paths) {
  std::vector<Part> parts;
  for (const auto& path : paths) {
    for (const auto& file : files_in(path)) {
      Part& part = parts.emplace_back();
      part.manifest = part.files.emplace_back(file).manifest();
    }
  }
  parts = join_shards(std::move(parts));
  const auto key = [](const Part& part) {
    std::string text;
    for (const CalibrationData& each : part.manifest.data) text += each.data_sha256;
    return text;
  };
  std::ranges::stable_sort(parts, {}, key);
  return parts;
}

/// A layer in a part.
struct LayerOfPart {
  const Part* part = nullptr;
  std::size_t number = 0;           // in the part's files
  std::vector<std::size_t> places;  // of its data in those of all parts
};

/// Adds up a layer of all parts that have it. Of the rows of each part as many stay as its tokens deserve: about
/// `wanted_rows` in all, or what the part with the fewest rows a token allows.
LayerStatistics sum_of(const std::vector<LayerOfPart>& parts, std::int64_t wanted_rows, const Statistics& about) {
  std::vector<StatisticsFile::Size> sizes;
  double tokens = 0;
  for (const LayerOfPart& each : parts) {
    const StatisticsFile& file = each.part->files.front();
    tokens += sizes.emplace_back(file.size_of(file.manifest().layers[each.number])).tokens;
  }
  double density = static_cast<double>(wanted_rows) / tokens;
  for (const auto& size : sizes) density = std::min(density, static_cast<double>(size.rows) / size.tokens);
  LayerStatistics sum;
  std::vector<std::vector<SampledSequence>> samples;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& [part, number, places] = parts[i];
    LayerStatistics own = read_layer(part->files, number);
    for (std::size_t& each : own.first_data) each = places[each];
    std::ranges::sort(own.first_data);
    if (parts.size() == 1) return own;
    if (!own.key_rows.empty()) {
      const double share = density * sizes[i].tokens;  // no number if a file lies about its tokens
      const std::int64_t count = share >= 1 ? std::min<std::int64_t>(std::llround(share), sizes[i].rows) : 1;
      thin(own.key_rows, sizes[i].rows, count), thin(own.value_rows, sizes[i].rows, count);
      if (own.rotary) {
        const std::int64_t there = std::ssize(own.keys_before_rope.front()) / own.key_dim;
        thin(own.keys_before_rope, there, std::max<std::int64_t>(1, count * there / sizes[i].rows));
      }
    }
    scale_by(sizes[i].tokens / tokens, own);
    samples.push_back(std::move(own.sample));
    if (i == 0) {
      sum = std::move(own);
    } else {
      const std::string where = parts.front().part->name() + " and " + part->name();
      merge(sum, std::move(own), where + ", layer " + std::to_string(sum.layer_id));
    }
  }
  sum.sst.reset();  // it was weighed by the query moments of a part
  sum.sample = join_samples(std::move(samples), about.clip.value_or(SampleOptions{}));
  return sum;
}

}  // namespace

CalibrationData calibration_of(std::vector<CalibrationData> parts) {
  if (parts.size() == 1) return parts.front();
  std::ranges::sort(parts, {}, &CalibrationData::data_sha256);  // whoever merged which of them first
  CalibrationData sum;
  std::string hashes;
  for (const CalibrationData& part : parts) {
    sum.tokens += part.tokens, sum.sequences += part.sequences, sum.image_tokens += part.image_tokens;
    sum.blocks.insert(sum.blocks.end(), part.blocks.begin(), part.blocks.end());
    hashes += part.data_sha256;
  }
  // What is not known of one part is not known of the whole.
  if (std::ranges::any_of(parts, [](const CalibrationData& part) { return part.blocks.empty(); })) sum.blocks.clear();
  sum.data_sha256 = sha256_hex(hashes);
  return sum;
}

Statistics read_statistics(const std::vector<std::filesystem::path>& paths) {
  const std::vector<Part> parts = parts_of(paths);
  const Statistics& about = parts.front().manifest;
  Statistics out{.model = about.model, .data = {}, .windows = about.windows, .layers = {}, .heads = about.heads};
  out.recipe = about.recipe, out.clip = about.clip;
  std::map<int, std::vector<LayerOfPart>> layers;
  for (const Part& part : parts) {
    for (const Part& other : parts) require_same_origin(part, other);
    const std::size_t known = out.data.size();
    const std::vector<std::size_t> places = places_of(part, out.data);
    for (std::size_t i = 0; i < part.manifest.layers.size(); ++i) {
      layers[part.manifest.layers[i].layer_id].push_back({&part, i, places});
    }
    if (known == 0 || known == out.data.size() || !out.recipe.contains(kDamageTokens)) continue;
    out.recipe[kDamageTokens] =
        out.recipe[kDamageTokens].get<std::int64_t>() + part.manifest.recipe.value(kDamageTokens, std::int64_t{0});
  }
  std::vector<const std::vector<LayerOfPart>*> ordered;
  for (const auto& [id, of] : layers) ordered.push_back(&of);
  out.layers.resize(ordered.size());
  const std::int64_t wanted_rows = out.recipe.value("sample_rows", std::int64_t{0});
  const std::string where = parts.size() == 1 ? parts.front().name() : parts.front().name() + " and others";
  parallel_for(ordered.size(), [&](std::size_t i) {
    throw_if_interrupted();
    out.layers[i] = sum_of(*ordered[i], wanted_rows, out);
    require_semidefinite(out.layers[i], where);
  });
  return out;
}

void require_all_heads(const HeadRange& heads) {
  if (heads.whole()) return;
  throw DataError("of " + std::to_string(heads.total) + " KV heads only " + std::to_string(heads.first) + " to " +
                      std::to_string(heads.first + heads.count - 1) + " are here",
                  "--stats", "give one file of each tensor-parallel rank");
}

}  // namespace oscar
