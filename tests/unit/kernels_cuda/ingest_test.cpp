// SPDX-License-Identifier: MIT
// Rows on their way from files to the GPU: what arrives is what the file holds, wherever it lies and however much it
// is.
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/files.hpp"
#include "unit/kernels_cuda/gpu.hpp"

namespace oscar {
namespace {

using namespace test;

/// A tensor in a file after `offset` other bytes, as a dump holds it.
class FileRows {
 public:
  FileRows(const std::filesystem::path& path, const Tensor& tensor, std::size_t offset) {
    {
      std::ofstream file(path, std::ios::binary);
      file << std::string(offset, '\x7f');
      file.write(reinterpret_cast<const char*>(tensor.data.data()), static_cast<std::streamsize>(tensor.data.size()));
      file << "the end";
      REQUIRE(file.flush());
    }
    mapped_.emplace(path);
    view_ = heads_view(tensor, "x");
    view_.data = mapped_->bytes().data() + offset;
    view_.file = {mapped_->descriptor(), offset};
  }
  [[nodiscard]] const HeadsView& view() const { return view_; }

 private:
  std::optional<MappedFile> mapped_;
  HeadsView view_;
};

MatrixStack grams(Backend& backend, const HeadsView& x, int count) {
  MatrixStack sums(count, x.head_dim);
  backend.accumulate_grams(std::array{x}, sums);
  return sums;
}

}  // namespace

TEST_CASE("rows from a file are the rows of memory, at any offset") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const TemporaryFolder folder;
  for (const std::size_t offset : {0, 1, 37, 4096}) {
    const Tensor x = activations({DType::kBF16, 80, 51}, 2, 50);
    const FileRows file(folder / "x", x, offset);
    CHECK(grams(*gpu, file.view(), 2).data == grams(*gpu, heads_view(x, "x"), 2).data);
    // A part of it, whose place is the sum of two offsets.
    CHECK(grams(*gpu, file.view().tokens(7, 29), 2).data == grams(*gpu, heads_view(x, "x").tokens(7, 29), 2).data);
  }
}

TEST_CASE("more rows than the readers hold at a time arrive in order") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const TemporaryFolder folder;
  // 160 MB. Random bits, but no NaN and nothing huge: drawing numbers would take longer than all the rest.
  Tensor x(DType::kBF16, {78'127, 8, 128});
  std::uint32_t state = 12345;
  for (std::size_t i = 0; i < x.data.size(); i += 2) {
    state = state * 1664525U + 1013904223U;
    const auto bits = static_cast<std::uint16_t>((state >> 16 & 0x807fU) | 0x3f80U);
    std::memcpy(&x.data[i], &bits, 2);
  }
  const FileRows file(folder / "x", x, 1001);
  const MatrixStack got = grams(*gpu, file.view(), 8);
  CHECK(got.data == grams(*gpu, heads_view(x, "x"), 8).data);
  const MatrixStack expected = grams(*make_cpu_backend(), heads_view(x, "x"), 8);
  check_error("grams, from a file", {DType::kBF16, 128, 78'127}, relative_error(got, expected), 1e-12);
}

TEST_CASE("a file that becomes shorter while it is read is an error, and the GPU stays usable") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const TemporaryFolder folder;
  const Tensor x = activations({DType::kF32, 128, 9000}, 2, 51);
  const FileRows file(folder / "x", x, 11);
  std::filesystem::resize_file(folder / "x", 5'000'000);
  CHECK_ERROR(grams(*gpu, file.view(), 2), DataError, "the file ends before its data does");
  CHECK_ERROR(grams(*gpu, file.view(), 2), DataError, (folder / "x").string());
  const MatrixStack expected = grams(*make_cpu_backend(), heads_view(x, "x"), 2);
  CHECK(relative_error(grams(*gpu, heads_view(x, "x"), 2), expected) <= 1e-12);
}

}  // namespace oscar
