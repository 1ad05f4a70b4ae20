// SPDX-License-Identifier: MIT
// The plug-in around SentencePiece's library, and its only user.
#include <sentencepiece_processor.h>

#include "base/errors.hpp"
#include "model/tokenizer/tokenizer_file.hpp"

namespace oscar {
namespace {

/// A field that follows others in a message of protocol buffers replaces them: normalizer_spec {add_dummy_prefix:
/// false}.
constexpr std::string_view kNoSpaceBefore = {"\x1a\x02\x18\x00", 4};

class Model final : public PieceModel {
 public:
  Model(const std::string& content, bool space_before, const std::string& where) : where_(where) {
    const std::string all = space_before ? content : content + std::string(kNoSpaceBefore);
    // Some versions of the library accept what they cannot read, with no pieces.
    const auto status = processor_.LoadFromSerializedProto(all);
    if (!status.ok() || !processor_.status().ok() || processor_.GetPieceSize() < 1) {
      throw DataError("this is no model of SentencePiece, or a damaged one", where, "fetch the tokenizer again");
    }
  }

  [[nodiscard]] std::vector<Piece> pieces() const override {
    std::vector<Piece> all;
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      all.push_back({processor_.IdToPiece(id), processor_.IsControl(id) || processor_.IsUnknown(id)});
    }
    return all;
  }

  [[nodiscard]] std::int32_t begin_id() const override { return processor_.bos_id(); }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    std::vector<int> own;
    const auto status = processor_.Encode(text, &own);
    if (!status.ok()) {
      throw DataError("SentencePiece cannot encode a text: " + status.ToString(), where_, "fetch the tokenizer again");
    }
    ids.insert(ids.end(), own.begin(), own.end());
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
  std::string where_;
};

}  // namespace
}  // namespace oscar

extern "C" const oscar::PieceModel* oscar_open_piece_model(const std::string& content, bool space_before,
                                                           const std::string& where) {
  return new oscar::Model(content, space_before, where);
}
