#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ftrun {

/// LossMask specifies which tokens are trained on, one bit a token: bit i says whether token i
/// counts as the label of the token before it. Bits are packed from the least significant end of
/// each byte. It is a view: the bytes belong to the file or index that made it.
class LossMask {
 public:
  /// Makes a mask in which every token counts.
  LossMask() = default;
  explicit LossMask(std::span<const std::byte> bits) : bits_(bits), all_(false) {}

  bool all_trained() const { return all_; }
  bool is_trained(int64_t token) const {
    if (all_) return true;
    const auto byte = std::to_integer<unsigned>(bits_[static_cast<size_t>(token >> 3)]);
    return ((byte >> (token & 7)) & 1U) != 0;
  }
  /// Returns the number of tokens in [first, first + count) that count as labels.
  int64_t count_trained(int64_t first, int64_t count) const;

 private:
  std::span<const std::byte> bits_;
  bool all_ = true;
};

/// The size in bytes of a mask file's header (docs/data.md has the grammar; on disk: do not
/// change).
constexpr int64_t kMaskHeaderBytes = 24;
constexpr char kMaskMagic[] = "FTRMASK";  // with its NUL: 8 bytes

/// Checks the header, size and padding of a mask file against the token file it belongs to and
/// returns its bits. Throws Error(kBadInput) naming `path` and the offset of the error.
LossMask read_loss_mask(const std::string& path, std::span<const std::byte> file, int64_t tokens);

}  // namespace ftrun
