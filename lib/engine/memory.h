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

/// HostBlock is zeroed host memory from the kernel: pages come when first touched and go back when
/// freed.
class HostBlock {
 public:
  HostBlock() = default;
  /// Allocates `bytes`. Error(kEnvironment) says that there is not enough memory for `what`.
  HostBlock(int64_t bytes, std::string_view what);
  ~HostBlock();
  HostBlock(HostBlock&& other) noexcept;
  HostBlock& operator=(HostBlock&& other) noexcept;
  HostBlock(const HostBlock&) = delete;
  HostBlock& operator=(const HostBlock&) = delete;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  /// Returns the bytes that the kernel mapped for it: whole pages.
  int64_t mapped() const { return mapped_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t mapped_ = 0;
};

/// TierBlock is memory of a tier, from any allocator.
struct TierBlock {
  HostBlock host;
  CommBuffer shared;
  GpuBlock gpu;

  /// Pages of main memory that look() found in use; a GPU does not report any. They are knowledge
  /// about the block, not its content.
  mutable TouchedPages pages;

  std::byte* data() const;
  int64_t bytes() const { return host.bytes() + shared.bytes() + gpu.bytes(); }
  /// Returns the bytes that its allocator gave.
  int64_t obtained() const { return host.mapped() + whole_pages(shared.bytes()) + gpu.bytes(); }
  bool shows_pages() const { return gpu.data() == nullptr; }
};

/// MemoryAdvice says what would need less of a tier: the remedy of an allocation that fails for
/// lack of `lacking` bytes (0: unknown).
using MemoryAdvice = std::function<std::string(Tier, int64_t lacking)>;

/// RankMemory is the memory of a rank's programs: one block for each persistent buffer, shared by
/// name between the programs, arenas as large as the largest program's, and a swap file for the
/// disk tier.
class RankMemory {
 public:
  /// Allocates buffers that peers may see from `group`. `swap` says where the disk tier is; its
  /// size is found from the first program that has one. With a GPU the device tier is its memory,
  /// which peers do not read, and the host tier is pinned for it (GpuOptions::pin_memory).
  explicit RankMemory(Communicator& group, SwapOptions swap = {}, MemoryAdvice advice = nullptr,
                      Gpu* gpu = nullptr);
  RankMemory(const RankMemory&) = delete;
  RankMemory& operator=(const RankMemory&) = delete;

  /// Allocates what `program` needs and earlier programs did not. Call it for every program before
  /// any runs; the first one has everything that lies on disk. Error(kEnvironment) naming category,
  /// buffer or instruction, bytes wanted and bytes available; kBug when a shared buffer's size
  /// differs.
  void allocate(const Program& program);

  /// Returns the address of a range of one of the programs, in memory.
  std::byte* at(const Program& program, const Range& range) const;
  bool on_disk(const Program& program, const Range& range) const;

  /// Returns the GPU whose memory the device tier is; null on a processor.
  Gpu* gpu() const { return gpu_; }
  /// Says whether host code may read and write the range in place: in main memory.
  bool in_reach(const Program& program, const Range& range) const;
  /// Copies a range in memory to main memory; write() copies back. Not beside lanes that run.
  void read(const Program& program, const Range& range, void* out) const;
  void write(const Program& program, const Range& range, const void* data) const;

  /// Makes the kernel give the pages of a persistent buffer in main memory, whose content stays.
  void populate(const Program& program, BufferId buffer) const;

  /// Moves a range between the disk and memory at `data` (a multiple of 4096, as the range is).
  void read_disk(const Program& program, const Range& range, void* data) const;
  void write_disk(const Program& program, const Range& range, const void* data) const;
  /// Starts to read or write a range on disk; swap().wait() takes the ticket.
  SwapFile::Ticket start_disk(const Program& program, const Range& range, void* data,
                              bool write) const;
  /// Returns the swap file; null when nothing lies on disk.
  SwapFile* swap() const { return swap_.get(); }

  /// Keeps the present content of the disk tier until release_disk(): read_kept() reads it,
  /// whatever is written meanwhile. Not beside lanes that run.
  void keep_disk();
  void release_disk();
  /// Reads, as read_disk does, the content that keep_disk() has kept; from any thread.
  void read_kept(const Program& program, const Range& range, void* data) const;

  /// TierBytes holds the bytes of a tier: persistent ones by category, and arenas.
  struct TierBytes {
    std::array<int64_t, kCategoryCount> persistent{};
    int64_t arenas = 0;
    int64_t total = 0;
  };
  /// Returns the bytes that allocators gave, counted where they gave it: whole pages of memory, and
  /// for the disk the space that the file system reserved (its total; categories are the file's
  /// parts).
  TierBytes allocated(Tier tier) const;
  /// Returns the most of these bytes that was seen in use, in whole pages, by this and earlier
  /// calls. Nothing for the disk, and for memory that a GPU gave, where pages are not shown.
  TierBytes touched(Tier tier) const;

 private:
  struct OwnedBlock {
    TierBlock owned;
    int64_t bytes = 0;
    Category category = Category::kBuffers;
    Tier tier = Tier::kDevice;
    /// The place on disk, which a write may change.
    mutable ShadowMap disk;
  };
  template <typename Measure>
  TierBytes sum(Tier tier, Measure measure) const;
  template <typename Allocate>
  auto granted(int64_t bytes, Tier tier, const std::function<std::string()>& what,
               Allocate allocate) const;
  TierBlock allocate_block(int64_t bytes, Tier tier, bool shared, const std::string& name,
                           const std::function<std::string()>& what) const;
  std::string refusal(int64_t bytes, Tier tier, const std::string& what, const Error& error) const;
  void allocate_persistent(const Buffer& buffer);
  void allocate_arenas(const Program& program);
  void open_swap(const Program& program);
  const OwnedBlock& block(const Buffer& buffer) const;

  Communicator& group_;
  SwapOptions swap_options_;
  MemoryAdvice advice_;
  int64_t disk_used_ = 0;
  /// The offset in the swap file where the second places of buffers begin (Buffer::shadow_offset).
  int64_t shadows_ = 0;
  /// The blocks that live from step to step.
  std::map<std::pair<Persistent, Tier>, OwnedBlock> blocks_;
  Gpu* gpu_;
  TierBlock device_arena_;
  TierBlock host_arena_;
  TierBlock shared_arena_;
  /// The swap file. It is destroyed first: the disk may be moving data of the others.
  std::unique_ptr<SwapFile> swap_;
};

}  // namespace ftrun
