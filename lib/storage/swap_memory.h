#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ftrun {

/// SwapMemory is memory for the requests of a swap file. It is aligned to 2 MiB and uses huge pages
/// if possible, so that a block is contiguous in physical memory instead of 256 scattered pages;
/// this is up to twice as fast. Its size is a multiple of the sector size, and it is initially
/// zero.
class SwapMemory {
 public:
  SwapMemory() = default;
  /// Allocates the memory. Throws Error(kEnvironment) when the machine does not have enough.
  explicit SwapMemory(int64_t bytes);
  ~SwapMemory();
  SwapMemory(SwapMemory&& other) noexcept;
  SwapMemory& operator=(SwapMemory&& other) noexcept;
  SwapMemory(const SwapMemory&) = delete;
  SwapMemory& operator=(const SwapMemory&) = delete;

  std::byte* data() const { return data_; }
  int64_t size() const { return bytes_; }
  std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(bytes_)}; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace ftrun
