#include "exec/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "program/memory_plan.h"
#include "report/memory_limit.h"

namespace ftrun {

HostBlock::HostBlock(int64_t bytes, std::string_view what) : bytes_(bytes) {
  if (bytes == 0) return;
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    throw Error(ExitCode::kEnvironment,
                cat("no host memory for ", what, " of ", human_bytes(bytes), ": ", errno_text(errno)),
                "use a smaller micro-batch or sequence, or a machine with more memory");
  // Large pages spare most of the page faults of the first step and many TLB misses of the others.
  ::madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(data);
}

HostBlock::~HostBlock() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

HostBlock::HostBlock(HostBlock&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

HostBlock& HostBlock::operator=(HostBlock&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

namespace {

/// What an arena is for: the most that it holds at one moment, by category.
std::string arena_text(const Program& program, Tier tier) {
  const TierPlan plan = memory_plan({&program}).at(tier);
  return cat("what a step holds for a time (most at ", plan.fullest, ": ",
             categories_text(plan.at_fullest), ")");
}

/// "optimizer (buffer optimizer.0)".
std::string described(const Buffer& buffer) {
  return cat(category_name(buffer.category), " (buffer ", buffer.name, ")");
}

std::string available_text() {
  const MemoryLimit limit = read_memory_limit();
  const int64_t space = address_space_left();
  if (space < limit.available) return cat(human_bytes(space), " are left of its address space (ulimit -v)");
  return cat(human_bytes(limit.available), " of ", human_bytes(limit.total), " are available (", limit.by, ")");
}

}  // namespace

RankMemory::RankMemory(Communicator& group, SwapOptions swap, MemoryAdvice advice)
    : group_(group), swap_options_(std::move(swap)), advice_(std::move(advice)) {}

/// Runs an allocation; what the system refuses is told with what it was for, what there is, what the
/// rank has already, and what would help.
template <typename Allocate>
auto RankMemory::granted(int64_t bytes, Tier tier, const std::function<std::string()>& what,
                         Allocate allocate) const {
  try {
    return allocate();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kEnvironment) throw;
    int64_t held = 0;
    for (const Tier each : kTiers) held += each == Tier::kNvme ? 0 : allocated(each).total;
    throw Error(ExitCode::kEnvironment,
                cat("out of memory: ", what(), " needs ", human_bytes(bytes), " in the ", tier_name(tier),
                    " tier, ", available_text(), ", the rank has ", human_bytes(held), " already: ",
                    error.message()),
                advice_ ? advice_(tier) : error.remedy());
  }
}

void RankMemory::allocate(const Program& program) {
  if (!swap_) open_swap(program);
  for (const Buffer& buffer : program.buffers)
    if (buffer.persistent) allocate_persistent(buffer);
  allocate_arenas(program);
}

void RankMemory::open_swap(const Program& program) {
  int64_t bytes = 0;
  for (const Buffer& buffer : program.buffers)
    if (buffer.tier == Tier::kNvme) bytes += swap_align(buffer.bytes);
  if (bytes == 0) return;
  swap_options_.bytes = bytes;
  try {
    swap_ = std::make_unique<SwapFile>(swap_options_);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kEnvironment || !advice_) throw;
    throw Error(error.code(), error.message(), cat(error.remedy(), "; ", advice_(Tier::kNvme)));
  }
}

void RankMemory::allocate_arenas(const Program& program) {
  const auto grow = [&](HostBlock& arena, Arena which, Tier tier) {
    const int64_t bytes = program.arena(which);
    if (bytes <= arena.bytes()) return;
    arena = HostBlock();  // the old one goes first: both at once may not fit
    arena = granted(bytes, tier, [&] { return arena_text(program, tier); },
                    [&] { return HostBlock(bytes, "an arena"); });
  };
  grow(device_arena_, Arena::kDevice, Tier::kDevice);
  grow(host_arena_, Arena::kHost, Tier::kHost);
  const int64_t shared = program.arena(Arena::kShared);
  if (shared <= shared_arena_.bytes()) return;
  shared_arena_ = CommBuffer();
  shared_arena_ = granted(shared, Tier::kDevice, [&] { return arena_text(program, Tier::kDevice); },
                          [&] { return group_.allocate(shared); });
}

void RankMemory::allocate_persistent(const Buffer& buffer) {
  if (const auto known = blocks_.find(buffer.name); known != blocks_.end()) {
    if (known->second.bytes != buffer.bytes)
      bug(cat("buffer ", buffer.name, " has ", known->second.bytes, " bytes in one program and ",
              buffer.bytes, " in another"));
    return;
  }
  Block block{nullptr, buffer.bytes, buffer.category, buffer.tier, 0};
  if (buffer.tier == Tier::kNvme) {
    block.disk_offset = disk_used_;
    disk_used_ += swap_align(buffer.bytes);
    require(swap_ && disk_used_ <= swap_->bytes(), "the first program has all that lies on disk");
  } else if (buffer.peer_visible) {
    shared_.push_back(granted(buffer.bytes, buffer.tier, [&] { return described(buffer); },
                              [&] { return group_.allocate(buffer.bytes); }));
    block.data = shared_.back().as<std::byte>();
  } else {
    owned_.push_back(granted(buffer.bytes, buffer.tier, [&] { return described(buffer); },
                             [&] { return HostBlock(buffer.bytes, buffer.name); }));
    block.data = owned_.back().data();
  }
  blocks_[buffer.name] = block;
}

std::byte* RankMemory::at(const Program& program, const Range& range) const {
  const Buffer& buffer = program.at(range.buffer);
  if (buffer.persistent) return persistent(buffer.name) + range.offset;
  std::byte* const arenas[] = {device_arena_.data(), shared_arena_.as<std::byte>(), host_arena_.data()};
  return arenas[static_cast<size_t>(arena_of(buffer))] + buffer.arena_offset + range.offset;
}

const RankMemory::Block& RankMemory::block(const std::string& name) const {
  const auto found = blocks_.find(name);
  if (found == blocks_.end()) bug(cat("no buffer ", name));
  return found->second;
}

std::byte* RankMemory::persistent(const std::string& name) const {
  const Block& found = block(name);
  if (found.tier == Tier::kNvme) bug(cat("buffer ", name, " lies on disk"));
  return found.data;
}

bool RankMemory::on_disk(const Program& program, const Range& range) const {
  return program.at(range.buffer).tier == Tier::kNvme;
}

SwapFile::Ticket RankMemory::start_disk(const Program& program, const Range& range, void* data,
                                        bool write) const {
  const int64_t offset = block(program.at(range.buffer).name).disk_offset + range.offset;
  return write ? swap_->write(data, range.bytes, offset) : swap_->read(data, range.bytes, offset);
}

void RankMemory::read_disk(const Program& program, const Range& range, void* data) const {
  swap_->wait(start_disk(program, range, data, false));
}

void RankMemory::write_disk(const Program& program, const Range& range, const void* data) const {
  swap_->wait(start_disk(program, range, const_cast<void*>(data), true));
}

int64_t RankMemory::arena_bytes(Arena arena) const {
  const int64_t bytes[] = {device_arena_.bytes(), shared_arena_.bytes(), host_arena_.bytes()};
  return bytes[static_cast<size_t>(arena)];
}

RankMemory::Allocated RankMemory::allocated(Tier tier) const {
  Allocated all;
  for (const auto& [name, block] : blocks_) {
    if (block.tier != tier) continue;
    all.persistent[static_cast<size_t>(block.category)] += block.bytes;
    all.total += block.bytes;
  }
  if (tier == Tier::kDevice) all.arenas = arena_bytes(Arena::kDevice) + arena_bytes(Arena::kShared);
  if (tier == Tier::kHost) all.arenas = arena_bytes(Arena::kHost);
  all.total += all.arenas;
  return all;
}

}  // namespace ftrun
