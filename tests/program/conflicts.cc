#include "conflicts.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace ftrun::testing {
namespace {

/// AddressRange is a range in one address space for all memory: first come the persistent buffers,
/// then the arenas.
struct AddressRange {
  size_t space = 0;
  int64_t begin = 0;
  int64_t end = 0;
  bool overlaps(const AddressRange& other) const {
    return space == other.space && begin < other.end && other.begin < end;
  }
};

AddressRange addresses_of(const Program& program, const BufferRange& range) {
  const Buffer& buffer = program.at(range.buffer);
  if (buffer.persistent_kind)
    return {static_cast<size_t>(range.buffer), range.offset, range.offset + range.bytes};
  const int64_t begin = buffer.arena_offset + range.offset;
  return {program.buffers.size() + static_cast<size_t>(arena_of(buffer)), begin,
          begin + range.bytes};
}

struct Access {
  std::vector<AddressRange> reads;
  std::vector<AddressRange> writes;
};

bool any_overlap(const std::vector<AddressRange>& a, const std::vector<AddressRange>& b) {
  return std::any_of(a.begin(), a.end(), [&](const AddressRange& x) {
    return std::any_of(b.begin(), b.end(), [&](const AddressRange& y) { return x.overlaps(y); });
  });
}

bool do_accesses_conflict(const Access& a, const Access& b) {
  return any_overlap(a.writes, b.writes) || any_overlap(a.writes, b.reads) ||
         any_overlap(a.reads, b.writes);
}

std::vector<AddressRange> addresses_of(const Program& program,
                                       const std::vector<BufferRange>& ranges) {
  std::vector<AddressRange> all(ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i) all[i] = addresses_of(program, ranges[i]);
  return all;
}

Access access_of(const Program& program, size_t at) {
  const Instr& instr = program.instrs[at];
  return {addresses_of(program, instr.reads), addresses_of(program, instr.writes)};
}

std::vector<Access> list_accesses(const Program& program) {
  std::vector<Access> all;
  for (size_t i = 0; i < program.instrs.size(); ++i) all.push_back(access_of(program, i));
  return all;
}

/// A set of instructions.
class InstrSet {
 public:
  explicit InstrSet(size_t count) : words_((count + 63) / 64, 0) {}
  void add(size_t i) { words_[i / 64] |= uint64_t{1} << (i % 64); }
  void add(const InstrSet& other) {
    for (size_t w = 0; w < words_.size(); ++w) words_[w] |= other.words_[w];
  }
  bool has(size_t i) const { return (words_[i / 64] >> (i % 64) & 1) != 0; }

 private:
  std::vector<uint64_t> words_;
};

}  // namespace

bool in_conflict(const Program& program, size_t first, size_t second) {
  return do_accesses_conflict(access_of(program, first), access_of(program, second));
}

std::vector<std::pair<InstrId, InstrId>> conflicts(const Program& program) {
  const std::vector<Access> all = list_accesses(program);
  std::vector<std::pair<InstrId, InstrId>> found;
  InstrId decision = -1;
  for (size_t j = 0; j < all.size(); ++j) {
    const Instr& instr = program.instrs[j];
    for (size_t i = 0; i < j; ++i)
      if (instr.lane != program.instrs[i].lane && do_accesses_conflict(all[i], all[j]))
        found.emplace_back(static_cast<InstrId>(i), static_cast<InstrId>(j));
    if (instr.kind == InstrKind::kDecide) decision = static_cast<InstrId>(j);
    if (instr.if_finite) found.emplace_back(decision, static_cast<InstrId>(j));
  }
  return found;
}

std::vector<std::pair<InstrId, InstrId>> unordered_conflicts(
    const Program& program, const std::vector<std::pair<InstrId, InstrId>>& conflicts) {
  const size_t count = program.instrs.size();
  std::vector<InstrSet> before(count, InstrSet(count));
  std::vector<InstrId> last(static_cast<size_t>(lane_count(program)), -1);
  for (size_t j = 0; j < count; ++j) {
    const Instr& instr = program.instrs[j];
    std::vector<InstrId> done = instr.waits;
    InstrId& own = last[static_cast<size_t>(instr.lane)];
    if (own >= 0) done.push_back(own);
    for (const InstrId i : done) {
      before[j].add(static_cast<size_t>(i));
      before[j].add(before[static_cast<size_t>(i)]);
    }
    own = static_cast<InstrId>(j);
  }
  std::vector<std::pair<InstrId, InstrId>> open;
  for (const auto& [i, j] : conflicts)
    if (i < 0 || !before[static_cast<size_t>(j)].has(static_cast<size_t>(i)))
      open.emplace_back(i, j);
  return open;
}

bool reads_only_own_bytes(const Program& program) {
  // Maps each 4 bytes of an arena to the buffer whose content is there; ranges begin and end at
  // multiples of 4.
  std::array<std::vector<BufferId>, kArenaCount> held;
  for (size_t a = 0; a < kArenaCount; ++a)
    held[a].assign(static_cast<size_t>(program.arena_bytes[a] / 4 + 1), -1);
  const auto places = [&](const BufferRange& range) {
    const Buffer& buffer = program.at(range.buffer);
    auto& arena = held[static_cast<size_t>(arena_of(buffer))];
    const auto begin = arena.begin() + (buffer.arena_offset + range.offset) / 4;
    return std::pair(begin, begin + (range.bytes + 3) / 4);
  };
  for (const Instr& instr : program.instrs) {
    for (const BufferRange& range : instr.reads) {
      if (program.at(range.buffer).persistent_kind) continue;
      const auto [begin, end] = places(range);
      if (std::any_of(begin, end, [&](BufferId id) { return id != range.buffer; })) return false;
    }
    for (const BufferRange& range : instr.writes) {
      if (program.at(range.buffer).persistent_kind) continue;
      const auto [begin, end] = places(range);
      std::fill(begin, end, range.buffer);
    }
  }
  return true;
}

}  // namespace ftrun::testing
