#include "engine/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/limit_remedies.h"
#include "base/memory_limit.h"
#include "base/text.h"
#include "program/memory_plan.h"

namespace ftrun {

HostBlock::HostBlock(int64_t bytes, std::string_view what) : bytes_(bytes) {
  if (bytes == 0) return;
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    throw Error(
        ExitCode::kEnvironment,
        cat("no main memory for ", what, " of ", human_bytes(bytes), ": ", errno_text(errno)),
        less_memory_remedy());
  // Huge pages avoid most page faults of the first step and many TLB misses of later steps.
  ::madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(data);
  mapped_bytes_ = round_up_to_pages(bytes);
}

HostBlock::~HostBlock() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

HostBlock::HostBlock(HostBlock&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}

HostBlock& HostBlock::operator=(HostBlock&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  return *this;
}

std::byte* TierBlock::data() const {
  if (gpu.data() != nullptr) return gpu.data();
  return host.data() != nullptr ? host.data() : shared.as<std::byte>();
}

namespace {

/// Describes an arena: the instruction at its peak, and the bytes there by category.
std::string arena_text(const Program& program, Tier tier) {
  const TierPlan plan = plan_memory({&program}).at(tier);
  return cat("the arena of temporary buffers (peak at ", plan.peak_instr, ": ",
             categories_text(plan.bytes_at_joint_peak), ")");
}

/// Describes a buffer: "optimizer (buffer optimizer.0)".
std::string buffer_text(const Buffer& buffer) {
  return cat(category_name(buffer.category), " (buffer ", buffer.name, ")");
}

std::string available_text() {
  const MemoryLimit limit = read_memory_limit();
  if (limit.process.available_bytes < limit.available_bytes)
    return cat(human_bytes(limit.process.available_bytes), " are left of ",
               limit.process.limit_name);
  return cat(human_bytes(limit.available_bytes), " of ", human_bytes(limit.total_bytes),
             " are available (", limit.limited_by, ")");
}

/// Returns how many of `bytes` are more than the available memory; 0 if enough is available, so
/// that the allocation failed for another reason.
int64_t lacking_bytes(int64_t bytes) {
  const MemoryLimit limit = read_memory_limit();
  return std::max<int64_t>(0,
                           bytes - std::min(limit.available_bytes, limit.process.available_bytes));
}

}  // namespace

RankMemory::RankMemory(Communicator& group, SwapOptions swap, MemoryRemedy remedy, Gpu* gpu)
    : group_(group), swap_options_(std::move(swap)), remedy_(std::move(remedy)), gpu_(gpu) {}

/// Describes a refused allocation: its purpose, the available memory, and the memory that the rank
/// holds already.
std::string RankMemory::refusal_text(int64_t bytes, Tier tier, const std::string& what,
                                     const Error& error) const {
  int64_t held_bytes = 0;
  for (const Tier each : kTiers)
    if (each != Tier::kDisk && (gpu_ == nullptr || each == tier))
      held_bytes += allocated_bytes(each).total;
  // The error of the GPU states its free memory.
  const std::string available =
      gpu_ != nullptr && tier == Tier::kDevice ? "" : cat(available_text(), ", ");
  return cat("out of memory: ", what, " needs ", human_bytes(bytes), " in the ", tier_name(tier),
             " tier, ", available, "the rank has ", human_bytes(held_bytes),
             " already: ", error.message());
}

/// Runs an allocation. If the system refuses it, throws an error with a remedy.
template <typename Allocate>
auto RankMemory::allocate_or_explain(int64_t bytes, Tier tier,
                                     const std::function<std::string()>& what,
                                     Allocate allocate) const {
  try {
    return allocate();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kEnvironment) throw;
    const bool in_main_memory = gpu_ == nullptr || tier == Tier::kHost;
    const bool pins = gpu_ != nullptr && tier == Tier::kHost && gpu_->options().pin_memory;
    throw Error(ExitCode::kEnvironment, refusal_text(bytes, tier, what(), error),
                pins ? cat(error.remedy(), "; or set pin_memory: false for what is offloaded")
                : remedy_ ? remedy_(tier, in_main_memory ? lacking_bytes(bytes) : 0)
                          : error.remedy());
  }
}

TierBlock RankMemory::allocate_block(int64_t bytes, Tier tier, bool shared, const std::string& name,
                                     const std::function<std::string()>& what) const {
  return allocate_or_explain(bytes, tier, what, [&] {
    TierBlock block;
    if (gpu_ != nullptr && tier == Tier::kDevice)
      block.gpu = GpuBlock::allocate_on_device(*gpu_, bytes);
    else if (gpu_ != nullptr && gpu_->options().pin_memory)
      block.gpu = GpuBlock::allocate_pinned(*gpu_, bytes);
    else if (shared)
      block.shared = group_.allocate(bytes);
    else
      block.host = HostBlock(bytes, name);
    if (block.reports_pages()) block.pages = TouchedPages(block.data(), block.bytes());
    return block;
  });
}

void RankMemory::allocate(const Program& program) {
  if (!swap_) open_swap(program);
  for (const Buffer& buffer : program.buffers)
    if (buffer.persistent_kind) allocate_persistent(buffer);
  allocate_arenas(program);
}

void RankMemory::open_swap(const Program& program) {
  int64_t bytes = 0;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.tier != Tier::kDisk) continue;
    if (buffer.persistent_kind == PersistentKind::kSnapshot) shadow_region_offset_ = bytes;
    bytes += round_up_to_sector(buffer.bytes);
  }
  if (bytes == 0) return;
  swap_options_.bytes = bytes;
  try {
    swap_ = std::make_unique<SwapFile>(swap_options_);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kEnvironment || !remedy_) throw;
    throw Error(error.code(), error.message(), cat(error.remedy(), "; ", remedy_(Tier::kDisk, 0)));
  }
}

void RankMemory::allocate_arenas(const Program& program) {
  const auto grow = [&](TierBlock& arena, Arena which, Tier tier) {
    const int64_t bytes = program.bytes_of_arena(which);
    if (bytes <= arena.bytes()) return;
    arena = TierBlock();  // frees the old arena first, because both may not fit
    arena = allocate_block(bytes, tier, which == Arena::kShared, "an arena",
                           [&] { return arena_text(program, tier); });
  };
  grow(device_arena_, Arena::kDevice, Tier::kDevice);
  grow(host_arena_, Arena::kHost, Tier::kHost);
  grow(shared_arena_, Arena::kShared, Tier::kDevice);
}

void RankMemory::allocate_persistent(const Buffer& buffer) {
  const std::pair key{*buffer.persistent_kind, buffer.tier};
  if (const auto known = blocks_.find(key); known != blocks_.end()) {
    if (known->second.bytes != buffer.bytes)
      bug(cat("buffer ", buffer.name, " has ", known->second.bytes, " bytes in one program and ",
              buffer.bytes, " in another"));
    return;
  }
  OwnedBlock block{{}, buffer.bytes, buffer.category, buffer.tier, {}};
  if (buffer.tier == Tier::kDisk) {
    require(
        buffer.persistent_kind != PersistentKind::kSnapshot || shadow_region_offset_ == disk_used_,
        "shadows lie where they were planned");
    const int64_t shadow =
        buffer.shadow_offset < 0 ? -1 : shadow_region_offset_ + buffer.shadow_offset;
    block.disk = ShadowMap(buffer.bytes, disk_used_, shadow);
    disk_used_ += round_up_to_sector(buffer.bytes);
    require(swap_ && disk_used_ <= swap_->bytes(), "the first program has all that lies on disk");
  } else {
    block.owned = allocate_block(buffer.bytes, buffer.tier, buffer.peer_visible, buffer.name,
                                 [&] { return buffer_text(buffer); });
  }
  blocks_[key] = std::move(block);
}

std::byte* RankMemory::at(const Program& program, const BufferRange& range) const {
  const Buffer& buffer = program.at(range.buffer);
  if (buffer.persistent_kind) {
    if (buffer.tier == Tier::kDisk) bug(cat("buffer ", buffer.name, " lies on disk"));
    return block(buffer).owned.data() + range.offset;
  }
  std::byte* const arenas[] = {device_arena_.data(), shared_arena_.data(), host_arena_.data()};
  return arenas[static_cast<size_t>(arena_of(buffer))] + buffer.arena_offset + range.offset;
}

const RankMemory::OwnedBlock& RankMemory::block(const Buffer& buffer) const {
  const auto found = blocks_.find({*buffer.persistent_kind, buffer.tier});
  if (found == blocks_.end()) bug(cat("no buffer ", buffer.name));
  return found->second;
}

bool RankMemory::is_on_disk(const Program& program, const BufferRange& range) const {
  return program.at(range.buffer).tier == Tier::kDisk;
}

bool RankMemory::is_in_main_memory(const Program& program, const BufferRange& range) const {
  const Tier tier = program.at(range.buffer).tier;
  return tier == Tier::kHost || (tier == Tier::kDevice && gpu_ == nullptr);
}

void RankMemory::read(const Program& program, const BufferRange& range, void* out) const {
  if (is_in_main_memory(program, range))
    std::memcpy(out, at(program, range), static_cast<size_t>(range.bytes));
  else
    gpu_->download(out, at(program, range), range.bytes);
}

void RankMemory::write(const Program& program, const BufferRange& range, const void* data) const {
  if (is_in_main_memory(program, range))
    std::memcpy(at(program, range), data, static_cast<size_t>(range.bytes));
  else
    gpu_->upload(at(program, range), data, range.bytes);
}

void RankMemory::allocate_pages(const Program& program, BufferId buffer) const {
  const TierBlock& memory = block(program.at(buffer)).owned;
  // If the kernel does not know this advice (before Linux 5.14), pages are allocated when they are
  // first written.
  ::madvise(memory.data(), static_cast<size_t>(memory.bytes()), MADV_POPULATE_WRITE);
}

SwapFile::Ticket RankMemory::start_disk_request(const Program& program, const BufferRange& range,
                                                void* data, bool write) const {
  ShadowMap& disk = block(program.at(range.buffer)).disk;
  return write ? swap_->write(data, range.bytes, disk.write_offset(range.offset, range.bytes))
               : swap_->read(data, range.bytes, disk.read_offset(range.offset, range.bytes));
}

void RankMemory::begin_disk_snapshot() {
  for (auto& [key, block] : blocks_)
    if (block.tier == Tier::kDisk) block.disk.begin_snapshot();
}

void RankMemory::end_disk_snapshot() {
  for (auto& [key, block] : blocks_)
    if (block.tier == Tier::kDisk) block.disk.end_snapshot();
}

void RankMemory::read_disk_snapshot(const Program& program, const BufferRange& range,
                                    void* data) const {
  swap_->read_synchronously(
      data, round_up_to_sector(range.bytes),
      block(program.at(range.buffer)).disk.snapshot_offset(range.offset, range.bytes));
}

void RankMemory::read_disk(const Program& program, const BufferRange& range, void* data) const {
  swap_->wait(start_disk_request(program, range, data, false));
}

void RankMemory::write_disk(const Program& program, const BufferRange& range,
                            const void* data) const {
  swap_->wait(start_disk_request(program, range, const_cast<void*>(data), true));
}

/// Sums the bytes of a tier; `measure` returns the bytes of a block of memory.
template <typename Measure>
RankMemory::TierBytes RankMemory::sum_tier(Tier tier, Measure measure) const {
  TierBytes all;
  for (const auto& [key, block] : blocks_) {
    if (block.tier != tier) continue;
    const int64_t bytes =
        tier == Tier::kDisk ? round_up_to_sector(block.bytes) : measure(block.owned);
    all.persistent[static_cast<size_t>(block.category)] += bytes;
    all.total += bytes;
  }
  if (tier == Tier::kDevice) all.arenas = measure(device_arena_) + measure(shared_arena_);
  if (tier == Tier::kHost) all.arenas = measure(host_arena_);
  all.total += all.arenas;
  return all;
}

RankMemory::TierBytes RankMemory::allocated_bytes(Tier tier) const {
  TierBytes all = sum_tier(tier, [](const TierBlock& block) { return block.allocated_bytes(); });
  if (tier == Tier::kDisk && swap_) all.total = swap_->reserved_on_disk();
  return all;
}

RankMemory::TierBytes RankMemory::touched_bytes(Tier tier) const {
  if (tier == Tier::kDisk) return {};
  return sum_tier(tier, [](const TierBlock& block) { return block.pages.count_bytes(); });
}

}  // namespace ftrun
