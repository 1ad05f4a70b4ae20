// SPDX-License-Identifier: MIT
#include "base/places.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/errors.hpp"
#include "base/files.hpp"

namespace oscar {
namespace {

RemotePlaces* registered = nullptr;

class FileOnDisk : public PlacedFile {
 public:
  explicit FileOnDisk(const fs::path& path) : file_(path) {}

  [[nodiscard]] std::span<const std::byte> bytes() const override { return file_.bytes(); }
  void load_front(std::uint64_t) override {}
  void read(std::uint64_t offset, std::span<std::byte> to) const override { read_at(file_.descriptor(), offset, to); }
  [[nodiscard]] int descriptor() const override { return file_.descriptor(); }
  [[nodiscard]] std::string version() const override { return ""; }
  [[nodiscard]] int readers() const override { return 0; }

 private:
  MappedFile file_;
};

}  // namespace

void set_remote_places(RemotePlaces* places) { registered = places; }

RemotePlaces& remote_places() {
  if (registered != nullptr) return *registered;
  throw BackendUnavailable("this program reads no addresses", "", "name a file or folder on disk");
}

bool is_remote(const fs::path& place) {
  const std::string& text = place.native();
  constexpr std::array<std::string_view, 3> kSchemes{"hf://", "http://", "https://"};
  return std::ranges::any_of(kSchemes, [&](std::string_view scheme) { return text.starts_with(scheme); });
}

bool place_exists(const fs::path& file) { return is_remote(file) ? remote_places().exists(file) : fs::exists(file); }

std::string place_text(const fs::path& file) { return is_remote(file) ? remote_places().text(file) : read_text(file); }

std::optional<std::string> optional_text(const fs::path& file) {
  if (is_remote(file)) return remote_places().optional_text(file);
  return fs::exists(file) ? std::optional(read_text(file)) : std::nullopt;
}

std::optional<Publication> publication_of(const fs::path& folder) {
  return is_remote(folder) ? remote_places().publication(folder) : std::nullopt;
}

std::unique_ptr<PlacedFile> open_place(const fs::path& file) {
  if (is_remote(file)) return remote_places().open(file);
  return std::make_unique<FileOnDisk>(file);
}

}  // namespace oscar
