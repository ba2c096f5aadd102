#include "exec/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {

HostBlock::HostBlock(int64_t bytes, std::string_view what) : bytes_(bytes) {
  if (bytes == 0) return;
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    throw Error(ExitCode::kEnvironment,
                cat("out of host memory for ", what, ": ", human_bytes(bytes),
                    " wanted: ", errno_text(errno)),
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

void RankMemory::allocate(const Program& program) {
  for (const Buffer& buffer : program.buffers)
    if (buffer.persistent) allocate_persistent(buffer);
  if (program.arena_bytes > arena_.bytes()) {
    arena_ = HostBlock();  // the old one goes first: both at once may not fit
    arena_ = HostBlock(program.arena_bytes, "activations");
  }
}

void RankMemory::allocate_persistent(const Buffer& buffer) {
  if (const auto known = blocks_.find(buffer.name); known != blocks_.end()) {
    if (known->second.bytes != buffer.bytes)
      bug(cat("buffer ", buffer.name, " has ", known->second.bytes, " bytes in one program and ",
              buffer.bytes, " in another"));
    return;
  }
  Block block{nullptr, buffer.bytes, buffer.category};
  if (buffer.peer_visible) {
    shared_.push_back(group_.allocate(buffer.bytes));
    block.data = shared_.back().as<std::byte>();
  } else {
    owned_.emplace_back(buffer.bytes, buffer.name);
    block.data = owned_.back().data();
  }
  blocks_[buffer.name] = block;
}

std::byte* RankMemory::at(const Program& program, const Range& range) const {
  const Buffer& buffer = program.at(range.buffer);
  if (buffer.persistent) return persistent(buffer.name) + range.offset;
  return arena_.data() + buffer.arena_offset + range.offset;
}

std::byte* RankMemory::persistent(const std::string& name) const {
  const auto found = blocks_.find(name);
  if (found == blocks_.end()) bug(cat("no buffer ", name));
  return found->second.data;
}

std::map<std::string, int64_t> RankMemory::allocated() const {
  std::map<std::string, int64_t> bytes;
  for (const auto& [name, block] : blocks_)
    bytes[std::string(category_name(block.category))] += block.bytes;
  bytes[std::string(category_name(Category::kActivations))] += arena_.bytes();
  return bytes;
}

}  // namespace ftrun
