#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mix_bits.h"
#include "program/lane_map.h"
#include "program/lifetime.h"
#include "program/passes.h"

namespace ftrun {
namespace {

/// AccessList holds accesses to ranges of a buffer, the latest last. A step reads the same ranges
/// of parameters many times, so only the last access to a range is kept.
class AccessList {
 public:
  void record(InstrId id, const BufferRange& range) {
    const Access access{id, range.offset, range.offset + range.bytes};
    if (Access* known = find(access)) {
      // No range meets one that ends before it begins.
      *known = {known->id, 1, 0};
      if (++replaced_ > accesses_.size() / 2) drop_replaced();
    }
    if (!indices_.empty()) indices_[{access.begin, access.end}] = accesses_.size();
    accesses_.push_back(access);
    if (indices_.empty() && accesses_.size() > kSearchedAccesses) build_index();
  }

  /// Finds the last access after `known` that meets the range; `otherwise` where there is none.
  InstrId find_last_overlap(const BufferRange& range, InstrId known, InstrId otherwise) const {
    for (auto it = accesses_.rbegin(); it != accesses_.rend() && it->id > known; ++it)
      if (it->begin < range.offset + range.bytes && range.offset < it->end) return it->id;
    return otherwise;
  }

 private:
  struct Access {
    InstrId id;
    int64_t begin;
    int64_t end;
  };
  struct HashOfRange {
    size_t operator()(const std::pair<int64_t, int64_t>& range) const {
      return mix_bits(static_cast<uint64_t>(range.first) ^
                      splitmix64(static_cast<uint64_t>(range.second)));
    }
  };
  /// The number of accesses up to which a search is faster than an index.
  static constexpr size_t kSearchedAccesses = 32;

  Access* find(const Access& access) {
    if (!indices_.empty()) {
      const auto index = indices_.find({access.begin, access.end});
      return index == indices_.end() ? nullptr : &accesses_[index->second];
    }
    const auto known = std::find_if(accesses_.begin(), accesses_.end(), [&](const Access& other) {
      return other.begin == access.begin && other.end == access.end;
    });
    return known == accesses_.end() ? nullptr : &*known;
  }

  void drop_replaced() {
    std::erase_if(accesses_, [](const Access& access) { return access.begin > access.end; });
    replaced_ = 0;
    if (!indices_.empty()) build_index();
  }

  void build_index() {
    indices_.clear();
    for (size_t i = 0; i < accesses_.size(); ++i)
      if (accesses_[i].begin <= accesses_[i].end)
        indices_[{accesses_[i].begin, accesses_[i].end}] = i;
  }

  std::vector<Access> accesses_;
  /// The number of accesses that later ones to the same ranges have replaced.
  size_t replaced_ = 0;
  /// The index in `accesses_` of each range; empty while there are few accesses.
  std::unordered_map<std::pair<int64_t, int64_t>, size_t, HashOfRange> indices_;
};

/// AccessLog records which instructions touched which bytes of each buffer so far, by lane.
class AccessLog {
 public:
  explicit AccessLog(const Program& program) : buffers_(program.buffers.size()) {}

  void add(InstrId id, const Instr& instr) {
    for (const BufferRange& range : instr.reads)
      accesses_to(range)[instr.lane].reads.record(id, range);
    for (const BufferRange& range : instr.writes)
      accesses_to(range)[instr.lane].writes.record(id, range);
  }

  /// Raises `last` to the last instruction of each lane that wrote what `instr` touches or read
  /// what it writes; instructions before it on that lane are done when it is. Does not look for
  /// instructions of a lane up to those of `known`, which are done in any case.
  void find_conflicts(const Instr& instr, std::span<const InstrId> known, LaneClock& last) const {
    const auto search = [&](const BufferRange& range, bool reads_too) {
      for (const auto& [lane, accesses] : buffers_[static_cast<size_t>(range.buffer)]) {
        if (lane == instr.lane) continue;
        const InstrId done = known[static_cast<size_t>(lane)];
        InstrId& latest = last[static_cast<size_t>(lane)];
        latest = accesses.writes.find_last_overlap(range, std::max(latest, done), latest);
        if (reads_too)
          latest = accesses.reads.find_last_overlap(range, std::max(latest, done), latest);
      }
    };
    for (const BufferRange& range : instr.reads) search(range, false);
    for (const BufferRange& range : instr.writes) search(range, true);
  }

 private:
  struct Accesses {
    AccessList reads;
    AccessList writes;
  };

  LaneMap<Accesses>& accesses_to(const BufferRange& range) {
    return buffers_[static_cast<size_t>(range.buffer)];
  }

  std::vector<LaneMap<Accesses>> buffers_;
};

/// BucketsInFlight limits how far compute may run ahead of the lanes that reduce gradients. Compute
/// fills buffers (whole gradients, copies in the dtype in which they are sent) that live until
/// another lane has emptied them; if it never waited, all of them would live to the end of the
/// step. So while one bucket is being reduced, compute may fill only the next one.
class BucketsInFlight {
 public:
  explicit BucketsInFlight(const Program& program)
      : program_(program),
        filled_(program.buffers.size(), 0),
        newest_(initial_lane_clock(program)),
        older_(newest_) {}

  /// Returns the instructions that must be done before a compute instruction starts to fill another
  /// bucket.
  const LaneClock* instrs_to_wait_for(const Instr& instr) {
    if (instr.lane != Lane::kCompute) return nullptr;
    bool starts = false;
    for (const BufferRange& range : instr.writes) {
      if (!is_bucket(range)) continue;
      filling_ = true;
      starts |= std::exchange(filled_[static_cast<size_t>(range.buffer)], 1) == 0;
    }
    return starts ? &older_ : nullptr;
  }

  /// Records an instruction of another lane that empties a bucket.
  void record(InstrId id, const Instr& instr) {
    if (instr.lane == Lane::kCompute || !empties_bucket(instr)) return;
    if (std::exchange(filling_, false)) older_ = newest_;
    newest_[static_cast<size_t>(instr.lane)] = id;
  }

 private:
  bool is_bucket(const BufferRange& range) const {
    const Buffer& buffer = program_.at(range.buffer);
    return !buffer.persistent_kind && buffer.category == Category::kBuckets;
  }
  /// Returns whether the instruction takes gradients out of a bucket. A sum over tensor-parallel
  /// ranks leaves them in the bucket.
  bool empties_bucket(const Instr& instr) const {
    if (instr.group() != kNoGroup && program_.group(instr.group()).members.runs_within(kLayerAxes))
      return false;
    return std::any_of(instr.reads.begin(), instr.reads.end(), [&](const BufferRange& range) {
      return is_bucket(range) && filled_[static_cast<size_t>(range.buffer)] != 0;
    });
  }

  const Program& program_;
  std::vector<char> filled_;
  bool filling_ = false;
  LaneClock newest_;
  /// The clock of the instructions that empty all buckets except the newest.
  LaneClock older_;
};

/// SendLimiter limits how far compute may run ahead of the links to other stages: a sent value
/// lives until the receiver has it, so one send may be in flight on a link while the next value is
/// made.
class SendLimiter {
 public:
  explicit SendLimiter(const Program& program)
      : lane_of_(program.buffers.size(), kNotSent),
        newest_(initial_lane_clock(program)),
        older_(newest_) {
    for (const Instr& instr : program.instrs)
      if (instr.kind == InstrKind::kSend)
        lane_of_[static_cast<size_t>(instr.reads[0].buffer)] = static_cast<size_t>(instr.lane);
  }

  /// Returns the send that must be done before `instr` runs if `instr` is the first to write a
  /// buffer that will be sent: the last but one send on the same link. Returns -1 if there is none.
  InstrId send_to_wait_for(const Instr& instr) {
    InstrId needed = -1;
    for (const BufferRange& range : instr.writes) {
      const size_t lane = std::exchange(lane_of_[static_cast<size_t>(range.buffer)], kNotSent);
      if (lane != kNotSent) needed = std::max(needed, older_[lane]);
    }
    return needed;
  }

  void record(InstrId id, const Instr& instr) {
    if (instr.kind != InstrKind::kSend) return;
    const auto lane = static_cast<size_t>(instr.lane);
    older_[lane] = std::exchange(newest_[lane], id);
  }

 private:
  static constexpr size_t kNotSent = SIZE_MAX;
  /// The lane on which each buffer is sent; kNotSent for buffers that are not sent, and once an
  /// instruction has written the buffer.
  std::vector<size_t> lane_of_;
  LaneClock newest_;
  LaneClock older_;
};

/// WaitAdder adds the waits to the instructions of a program, one after another in program order.
class WaitAdder {
 public:
  WaitAdder(Program& program, bool overlap)
      : program_(program),
        overlap_(overlap),
        clocks_(program),
        log_(program),
        buckets_(program),
        sends_(program),
        latest_(initial_lane_clock(program)),
        needed_(latest_) {}

  void add(InstrId id) {
    Instr& instr = program_.instrs[static_cast<size_t>(id)];
    const auto own_lane = static_cast<size_t>(instr.lane);
    const std::span<InstrId> known_done = clocks_[static_cast<size_t>(id)];
    if (latest_[own_lane] >= 0)
      std::ranges::copy(clocks_[static_cast<size_t>(latest_[own_lane])], known_done.begin());
    find_needed_waits(instr, known_done);
    instr.waits.clear();
    for (size_t lane = 0; lane < clocks_.lanes(); ++lane)
      if (lane != own_lane && needed_[lane] > known_done[lane])
        wait_for(instr, needed_[lane], known_done);
    drop_implied(instr.waits);
    known_done[own_lane] = id;
    log_.add(id, instr);
    buckets_.record(id, instr);
    sends_.record(id, instr);
    latest_[own_lane] = id;
    if (instr.kind == InstrKind::kDecide) decision_ = id;
  }

 private:
  /// Finds the instructions that must be done before `instr`, in needed_; it leaves out some that
  /// `known_done` contains.
  void find_needed_waits(const Instr& instr, std::span<const InstrId> known_done) {
    std::fill(needed_.begin(), needed_.end(), -1);
    log_.find_conflicts(instr, known_done, needed_);
    const auto need = [&](size_t lane, InstrId id) { needed_[lane] = std::max(needed_[lane], id); };
    if (!overlap_)
      for (size_t lane = 0; lane < clocks_.lanes(); ++lane)
        if (alternates(instr, lane)) need(lane, latest_[lane]);
    for (const InstrId wait : instr.waits)
      need(static_cast<size_t>(program_.instr(wait).lane), wait);
    if (instr.if_finite) need(kComputeLane, decision_);
    if (const InstrId sent = sends_.send_to_wait_for(instr); sent >= 0)
      need(static_cast<size_t>(program_.instr(sent).lane), sent);
    if (const LaneClock* older = buckets_.instrs_to_wait_for(instr))
      for (size_t lane = 0; lane < clocks_.lanes(); ++lane) need(lane, (*older)[lane]);
  }

  /// Returns whether `instr` must alternate with the instructions of a lane when overlap is off:
  /// computation alternates with communication. Communication between pipeline stages, including
  /// the sum of the loss, always overlaps both: a stage that waited for it would delay the other
  /// stages.
  bool alternates(const Instr& instr, size_t lane) const {
    if (is_between_stages(program_, instr.lane) ||
        is_between_stages(program_, static_cast<Lane>(lane)))
      return false;
    return (instr.lane == Lane::kCompute && is_communication(static_cast<Lane>(lane))) ||
           (is_communication(instr.lane) && lane == kComputeLane);
  }

  /// Adds a wait, and adds the progress that the wait implies to `known_done`, the progress known
  /// to be done. So no redundant wait is added later, not even through a third lane.
  void wait_for(Instr& instr, InstrId wait, std::span<InstrId> known_done) {
    instr.waits.push_back(wait);
    const auto own_lane = static_cast<size_t>(instr.lane);
    const std::span<const InstrId> then = clocks_[static_cast<size_t>(wait)];
    for (size_t lane = 0; lane < clocks_.lanes(); ++lane)
      if (lane != own_lane) known_done[lane] = std::max(known_done[lane], then[lane]);
  }

  /// Drops the waits of an instruction that its other waits imply.
  void drop_implied(std::vector<InstrId>& waits) const {
    if (waits.size() < 2) return;
    const std::vector<InstrId> all = waits;
    std::erase_if(waits, [&](InstrId wait) {
      const auto lane = static_cast<size_t>(program_.instr(wait).lane);
      return std::any_of(all.begin(), all.end(), [&](InstrId other) {
        return other != wait && clocks_[static_cast<size_t>(other)][lane] >= wait;
      });
    });
  }

  Program& program_;
  bool overlap_;
  /// The progress of all lanes that is certain once an instruction is done, for each instruction.
  LaneClocks clocks_;
  AccessLog log_;
  BucketsInFlight buckets_;
  SendLimiter sends_;
  LaneClock latest_;
  LaneClock needed_;
  InstrId decision_ = -1;
};

}  // namespace

Program add_waits(Program program, bool overlap) {
  WaitAdder adder(program, overlap);
  for (size_t i = 0; i < program.instrs.size(); ++i) adder.add(static_cast<InstrId>(i));
  return program;
}

}  // namespace ftrun
