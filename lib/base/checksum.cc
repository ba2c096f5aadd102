#include "base/checksum.h"

#include <array>

#include "base/checksum_avx2.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ftrun {
namespace {

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}

}  // namespace

uint64_t xxh3(const void* data, size_t size) {
  return has_avx2() ? xxh3_avx2(data, size) : XXH3_64bits(data, size);
}

struct Xxh3Stream::State {
  XXH3_state_t state;
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->state);
}
Xxh3Stream::~Xxh3Stream() = default;
void Xxh3Stream::update(const void* data, size_t size) {
  if (has_avx2())
    update_xxh3_avx2(&state_->state, data, size);
  else
    XXH3_64bits_update(&state_->state, data, size);
}
uint64_t Xxh3Stream::digest() const {
  return XXH3_64bits_digest(&state_->state);
}

std::string hex64(uint64_t value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, value >>= 4) text[static_cast<size_t>(i)] = kDigits[value & 15];
  return text;
}

uint32_t crc32c(const void* data, size_t size) {
  static const std::array<uint32_t, 256> kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78U : 0U);
      table[i] = crc;
    }
    return table;
  }();
  const auto* bytes = static_cast<const unsigned char*>(data);
  uint32_t crc = ~0U;
  for (size_t i = 0; i < size; ++i) crc = (crc >> 8) ^ kTable[(crc ^ bytes[i]) & 0xFF];
  return ~crc;
}

}  // namespace ftrun
