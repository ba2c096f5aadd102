#include "data/loss_mask.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace ftrun {
namespace {

uint64_t u64_at(std::span<const std::byte> bytes, size_t offset) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

[[noreturn]] void refuse_mask(const std::string& path, const std::string& what) {
  throw Error(ExitCode::kBadInput, cat(path, ": ", what),
              "write the mask again with scripts/prepare_data.py, or remove it to train on every "
              "token");
}

}  // namespace

int64_t LossMask::count_trained(int64_t first, int64_t count) const {
  if (all_ || count <= 0) return std::max<int64_t>(count, 0);
  int64_t total = 0;
  const int64_t end = first + count;
  int64_t at_bit = first;
  for (; at_bit < end && (at_bit & 7) != 0; ++at_bit) total += is_trained(at_bit) ? 1 : 0;
  for (; end - at_bit >= 64; at_bit += 64)
    total += std::popcount(u64_at(bits_, static_cast<size_t>(at_bit >> 3)));
  for (; at_bit < end; ++at_bit) total += is_trained(at_bit) ? 1 : 0;
  return total;
}

LossMask read_loss_mask(const std::string& path, std::span<const std::byte> file, int64_t tokens) {
  const auto size = static_cast<int64_t>(file.size());
  if (size < kMaskHeaderBytes)
    refuse_mask(path, cat("a mask file begins with a header of ", kMaskHeaderBytes,
                          " bytes, this file has ", size));
  if (std::memcmp(file.data(), kMaskMagic, sizeof kMaskMagic) != 0)
    refuse_mask(path, "is not a mask file (offset 0: expected the letters FTRMASK)");
  if (const uint64_t version = u64_at(file, 8); version != 1)
    refuse_mask(path, cat("offset 8: mask version ", version, ", but this build reads version 1"));
  if (const uint64_t count = u64_at(file, 16); count != static_cast<uint64_t>(tokens))
    refuse_mask(path,
                cat("offset 16: the mask is for ", count, " tokens, the token file has ", tokens));
  const int64_t expected = kMaskHeaderBytes + (tokens + 7) / 8;
  if (size != expected)
    refuse_mask(path,
                cat("the file has ", size, " bytes, but ", tokens, " tokens need ", expected));
  if (tokens % 8 != 0) {
    const auto last = std::to_integer<unsigned>(file.back());
    if ((last >> (tokens % 8)) != 0)
      refuse_mask(path, cat("offset ", size - 1, ": bits after the last token are set"));
  }
  return LossMask(file.subspan(static_cast<size_t>(kMaskHeaderBytes)));
}

}  // namespace ftrun
