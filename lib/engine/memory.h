#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "engine/gpu.h"
#include "engine/touched_pages.h"
#include "program/program.h"
#include "storage/shadow_map.h"
#include "storage/swap_file.h"

namespace ftrun {

/// HostBlock is zeroed host memory. The kernel allocates a page of it when the page is first
/// touched, and frees it with the block.
class HostBlock {
 public:
  HostBlock() = default;
  /// Allocates `bytes`. Throws Error(kEnvironment) if there is not enough memory; its message names
  /// `what`.
  HostBlock(int64_t bytes, std::string_view what);
  ~HostBlock();
  HostBlock(HostBlock&& other) noexcept;
  HostBlock& operator=(HostBlock&& other) noexcept;
  HostBlock(const HostBlock&) = delete;
  HostBlock& operator=(const HostBlock&) = delete;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  /// Returns the bytes that the kernel mapped for the block: whole pages.
  int64_t mapped_bytes() const { return mapped_bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t mapped_bytes_ = 0;
};

/// TierBlock is memory of a tier, whichever allocator it is from.
struct TierBlock {
  HostBlock host;
  CommBuffer shared;
  GpuBlock gpu;

  /// The pages of main memory that touched() found in use; a GPU does not report any. They describe
  /// the block and are not part of its content.
  mutable TouchedPages pages;

  std::byte* data() const;
  int64_t bytes() const { return host.bytes() + shared.bytes() + gpu.bytes(); }
  /// Returns the bytes that the block's allocator provided.
  int64_t allocated_bytes() const {
    return host.mapped_bytes() + round_up_to_pages(shared.bytes()) + gpu.bytes();
  }
  bool reports_pages() const { return gpu.data() == nullptr; }
};

/// MemoryRemedy returns the remedy for an allocation that fails because a tier lacks
/// `lacking_bytes` bytes (0: unknown): changes of the config that make a run need less memory of
/// that tier.
using MemoryRemedy = std::function<std::string(Tier, int64_t lacking)>;

/// RankMemory is the memory of a rank's programs: one block for each persistent buffer, shared
/// between the programs by kind and tier, arenas as large as the largest program's, and a swap file
/// for the disk tier.
class RankMemory {
 public:
  /// Allocates buffers that peers may see from `group`. `swap` says where the disk tier is; its
  /// size is that of the first program with a disk tier. With a GPU the device tier is the GPU's
  /// memory, which peers do not read, and the host tier is pinned memory (GpuOptions::pin_memory).
  explicit RankMemory(Communicator& group, SwapOptions swap = {}, MemoryRemedy remedy = nullptr,
                      Gpu* gpu = nullptr);
  RankMemory(const RankMemory&) = delete;
  RankMemory& operator=(const RankMemory&) = delete;

  /// Allocates the memory that `program` needs beyond that of earlier programs. Call it for every
  /// program before any of them runs; the first program must have everything that lies on disk.
  /// Throws Error(kEnvironment) with category, buffer or instruction, bytes wanted and bytes
  /// available, and Error(kBug) when the size of a shared buffer differs.
  void allocate(const Program& program);

  /// Returns the address of a range of one of the programs, in memory.
  std::byte* at(const Program& program, const BufferRange& range) const;
  bool is_on_disk(const Program& program, const BufferRange& range) const;

  /// Returns the GPU whose memory is the device tier; null on a CPU.
  Gpu* gpu() const { return gpu_; }
  /// Returns whether host code may read and write the range in place, because it is in main memory.
  bool is_in_main_memory(const Program& program, const BufferRange& range) const;
  /// Copies a range in memory to main memory; write() copies back. Must not be called while lanes
  /// run.
  void read(const Program& program, const BufferRange& range, void* out) const;
  void write(const Program& program, const BufferRange& range, const void* data) const;

  /// Makes the kernel allocate the pages of a persistent buffer in main memory; the buffer's
  /// content is unchanged.
  void allocate_pages(const Program& program, BufferId buffer) const;

  /// Moves a range between the disk and memory at `data` (a multiple of 4096, as the range is).
  void read_disk(const Program& program, const BufferRange& range, void* data) const;
  void write_disk(const Program& program, const BufferRange& range, const void* data) const;
  /// Starts to read or write a range on disk, and returns the ticket for swap().wait().
  SwapFile::Ticket start_disk_request(const Program& program, const BufferRange& range, void* data,
                                      bool write) const;
  /// Returns the swap file; null when nothing lies on disk.
  SwapFile* swap() const { return swap_.get(); }

  /// Preserves the present content of the disk tier until end_disk_snapshot().
  /// read_disk_snapshot() reads it, even if newer content was written meanwhile. Must not be called
  /// while lanes run.
  void begin_disk_snapshot();
  void end_disk_snapshot();
  /// Reads the content that begin_disk_snapshot() has preserved, as read_disk() does. Any thread
  /// may call it.
  void read_disk_snapshot(const Program& program, const BufferRange& range, void* data) const;

  /// TierBytes holds the bytes of a tier: persistent ones by category, and arenas.
  struct TierBytes {
    std::array<int64_t, kCategoryCount> persistent{};
    int64_t arenas = 0;
    int64_t total = 0;
  };
  /// Returns the bytes that allocators provided: whole pages of memory, and for the disk the space
  /// that the file system reserved (its total; categories are the file's parts).
  TierBytes allocated_bytes(Tier tier) const;
  /// Returns the maximum of these bytes that this and earlier calls found in use, in whole pages.
  /// Returns 0 for the disk and for memory from a GPU, whose pages the kernel does not report.
  TierBytes touched_bytes(Tier tier) const;

 private:
  /// OwnedBlock is the memory, or the range of the swap file, of one persistent buffer.
  struct OwnedBlock {
    TierBlock owned;
    int64_t bytes = 0;
    Category category = Category::kSums;
    Tier tier = Tier::kDevice;
    /// The location of the block in the swap file. A write after begin_disk_snapshot() may change
    /// it.
    mutable ShadowMap disk;
  };
  template <typename Measure>
  TierBytes sum_tier(Tier tier, Measure measure) const;
  template <typename Allocate>
  auto allocate_or_explain(int64_t bytes, Tier tier, const std::function<std::string()>& what,
                           Allocate allocate) const;
  TierBlock allocate_block(int64_t bytes, Tier tier, bool shared, const std::string& name,
                           const std::function<std::string()>& what) const;
  std::string refusal_text(int64_t bytes, Tier tier, const std::string& what,
                           const Error& error) const;
  void allocate_persistent(const Buffer& buffer);
  void allocate_arenas(const Program& program);
  void open_swap(const Program& program);
  const OwnedBlock& block(const Buffer& buffer) const;

  Communicator& group_;
  SwapOptions swap_options_;
  MemoryRemedy remedy_;
  int64_t disk_used_ = 0;
  /// The offset in the swap file of the region for second copies of buffers
  /// (Buffer::shadow_offset).
  int64_t shadow_region_offset_ = 0;
  /// The blocks that live from step to step.
  std::map<std::pair<PersistentKind, Tier>, OwnedBlock> blocks_;
  Gpu* gpu_;
  TierBlock device_arena_;
  TierBlock host_arena_;
  TierBlock shared_arena_;
  /// The swap file. It is destroyed first, because the disk may still be moving data of the other
  /// members.
  std::unique_ptr<SwapFile> swap_;
};

}  // namespace ftrun
