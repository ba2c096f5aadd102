#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "program/program.h"

namespace ftrun {

/// Zeroed host memory straight from the kernel: pages come when first touched and go back when
/// freed.
class HostBlock {
 public:
  HostBlock() = default;
  /// Error(kEnvironment) saying that there is no memory for `what`.
  HostBlock(int64_t bytes, std::string_view what);
  ~HostBlock();
  HostBlock(HostBlock&& other) noexcept;
  HostBlock& operator=(HostBlock&& other) noexcept;
  HostBlock(const HostBlock&) = delete;
  HostBlock& operator=(const HostBlock&) = delete;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// The memory of a rank's programs: one block for each persistent buffer, shared by name between
/// the programs, and one arena as large as the largest program's.
class RankMemory {
 public:
  /// Buffers that peers may see are allocated by `group`.
  explicit RankMemory(Communicator& group) : group_(group) {}
  RankMemory(const RankMemory&) = delete;
  RankMemory& operator=(const RankMemory&) = delete;

  /// Allocates what `program` needs and is not there yet. Call for every program before any runs.
  /// Error(kEnvironment) naming the buffer and the bytes; kBug when a shared buffer's size differs.
  void allocate(const Program& program);

  /// Address of a range of one of the programs.
  std::byte* at(const Program& program, const Range& range) const;
  /// A persistent buffer by its name.
  std::byte* persistent(const std::string& name) const;

  int64_t arena_bytes() const { return arena_.bytes(); }

  /// Bytes allocated, by category name.
  std::map<std::string, int64_t> allocated() const;

 private:
  struct Block {
    std::byte* data = nullptr;
    int64_t bytes = 0;
    Category category = Category::kBuffers;
  };
  void allocate_persistent(const Buffer& buffer);

  Communicator& group_;
  std::map<std::string, Block> blocks_;
  std::vector<HostBlock> owned_;
  std::vector<CommBuffer> shared_;
  HostBlock arena_;
};

}  // namespace ftrun
