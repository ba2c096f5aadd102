#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace ftrun {

/// Computes the 64-bit XXH3 of `size` bytes.
uint64_t xxh3(const void* data, size_t size);

/// Xxh3Stream computes the XXH3 of data that arrives in pieces.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(const Xxh3Stream&) = delete;
  Xxh3Stream& operator=(const Xxh3Stream&) = delete;
  void update(const void* data, size_t size);
  uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Formats `value` as 16 lower-case hexadecimal digits.
std::string hex64(uint64_t value);

/// Computes the CRC-32C (Castagnoli), as TensorBoard's record format uses it.
uint32_t crc32c(const void* data, size_t size);

}  // namespace ftrun
