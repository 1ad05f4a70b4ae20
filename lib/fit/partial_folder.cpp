// SPDX-License-Identifier: MIT
#include "base/errors.hpp"
#include "base/files.hpp"
#include "fit/take.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

constexpr const char* kRecord = "fit.json";
constexpr const char* kRemedy = "remove the folder, or leave --resume out to begin again without it";

/// "fit.json" of ".fit.json.part.1.23", too: half a file, of a process that was killed.
std::string whole_name(const fs::path& file) {
  const std::string name = file.filename().string();
  const std::size_t end = name.rfind(".part.");
  return name.starts_with('.') && end != name.npos ? name.substr(1, end - 1) : name;
}

Json read_record(const fs::path& record) {
  try {
    return read_json(record);
  } catch (const DataError& error) {
    throw DataError("what is left of an earlier fit cannot be used: its record is " + std::string(error.what()),
                    record.string(), kRemedy);
  }
}

}  // namespace

PartialFolder::PartialFolder(std::filesystem::path folder, const Json& of, Status& status)
    : folder_(std::move(folder)), lock_(folder_, [](const fs::path&) {}) {
  const fs::path record = folder_ / kRecord;
  if (fs::exists(record)) {
    const Json found = read_record(record);
    remove_damaged(status);
    require(found, of);
    if (found != of) write_json(record, of);
    return;
  }
  fs::create_directories(folder_);
  for (const fs::path& name : list_files(folder_)) {
    if (whole_name(name) == kRecord) continue;  // of a fit that was killed before it wrote more
    throw DataError("this folder is not of an earlier fit", folder_.string(), "move it away, or choose another output");
  }
  write_json(record, of);
}

void PartialFolder::remove_damaged(Status& status) const {
  for (const fs::path& name : list_files(folder_)) {
    const fs::path file = folder_ / name;
    if (!name.string().starts_with("layer_") || name.extension() != ".safetensors") continue;
    try {
      const SafetensorsFile kept(file);
      if (!kept.has_checksums()) throw DataError("there are no checksums", file.string(), "");
      kept.verify_all();
    } catch (const DataError& error) {
      status.notice(file.string() + ", kept by an earlier run, is made again: " + error.what());
      fs::remove(file);
    }
  }
}

void PartialFolder::require(const Json& found, const Json& of) const {
  Json wanted = of, there = found.is_object() ? found : Json::object();
  const Json layers = wanted.value(kDataOfLayers, Json::object()), earlier = there.value(kDataOfLayers, Json::object());
  wanted.erase(kDataOfLayers);
  there.erase(kDataOfLayers);
  if (there != wanted) {
    throw DataError("what is left of an earlier fit is of another: " + differences(wanted, there) + " differ",
                    folder_.string(), std::string("give that fit's data and options, ") + kRemedy);
  }
  for (const auto& [id, print] : layers.items()) {
    if (!has(std::stoi(id)) || (earlier.contains(id) && earlier[id] == print)) continue;
    throw DataError("layer " + id + " is taken already, of other data than the dump has now", folder_.string(),
                    std::string("give the dump that it was taken of, ") + kRemedy);
  }
}

std::filesystem::path PartialFolder::file_of(int layer_id) const {
  return folder_ / ("layer_" + std::to_string(layer_id) + ".safetensors");
}

bool PartialFolder::has(int layer_id) const { return fs::exists(file_of(layer_id)); }

void PartialFolder::remove() const {
  std::error_code ignored;
  for (const fs::path& name : fs::exists(folder_ / kRecord, ignored) ? list_files(folder_) : std::vector<fs::path>()) {
    const std::string text = whole_name(name);
    const bool kept = text.starts_with("layer_") || text.starts_with("hidden_");
    const bool rest = text == kRecord && name != kRecord;
    if (rest || (kept && text.find(".safetensors") != text.npos)) fs::remove(folder_ / name, ignored);
  }
  fs::remove(folder_ / kRecord, ignored);                               // by which the folder is known
  if (!fs::is_symlink(folder_, ignored)) fs::remove(folder_, ignored);  // unless something else is in it
}

}  // namespace oscar
