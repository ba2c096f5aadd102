#include <algorithm>
#include <utility>
#include <vector>

#include "program/lifetime.h"
#include "program/passes.h"

namespace ftrun {
namespace {

/// AccessLog records which instructions touched which bytes of each buffer so far, by lane.
class AccessLog {
 public:
  explicit AccessLog(const Program& program)
      : buffers_(program.buffers.size(),
                 std::vector<Log>(static_cast<size_t>(lane_count(program)))) {}

  void add(InstrId id, const Instr& instr) {
    for (const Range& range : instr.reads) note(id, range, log_of(range, instr.lane).reads);
    for (const Range& range : instr.writes) note(id, range, log_of(range, instr.lane).writes);
  }

  /// Finds the last instruction of `lane` that conflicts with `instr`: it wrote bytes that `instr`
  /// touches, or read bytes that `instr` writes. Returns -1 if there is none. Waiting for the last
  /// one suffices, because the instructions of a lane run in order.
  InstrId last_conflict(const Instr& instr, Lane lane) {
    InstrId last = -1;
    for (const Range& range : instr.reads)
      last = std::max(last, last_meeting(range, log_of(range, lane).writes));
    for (const Range& range : instr.writes) {
      last = std::max(last, last_meeting(range, log_of(range, lane).writes));
      last = std::max(last, last_meeting(range, log_of(range, lane).reads));
    }
    return last;
  }

 private:
  struct Access {
    InstrId id;
    int64_t begin;
    int64_t end;
  };
  struct Log {
    std::vector<Access> reads;
    std::vector<Access> writes;
  };

  Log& log_of(const Range& range, Lane lane) {
    return buffers_[static_cast<size_t>(range.buffer)][static_cast<size_t>(lane)];
  }

  static void note(InstrId id, const Range& range, std::vector<Access>& log) {
    // The same ranges of parameters are read many times in a step. Only the last access to a range
    // counts, so it replaces earlier ones and the log stays short.
    const int64_t end = range.offset + range.bytes;
    const auto known = std::find_if(log.begin(), log.end(), [&](const Access& access) {
      return access.begin == range.offset && access.end == end;
    });
    if (known != log.end()) log.erase(known);
    log.push_back({id, range.offset, end});
  }

  static InstrId last_meeting(const Range& range, const std::vector<Access>& log) {
    for (auto it = log.rbegin(); it != log.rend(); ++it)
      if (it->begin < range.offset + range.bytes && range.offset < it->end) return it->id;
    return -1;
  }

  /// Accesses by buffer and lane.
  std::vector<std::vector<Log>> buffers_;
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
        newest_(nothing_done(program)),
        older_(newest_) {}

  /// Returns the instructions that must be done before a compute instruction starts to fill another
  /// bucket.
  const LaneClock* before(const Instr& instr) {
    if (instr.lane != Lane::kCompute) return nullptr;
    bool starts = false;
    for (const Range& range : instr.writes) {
      if (!is_bucket(range)) continue;
      filling_ = true;
      starts |= std::exchange(filled_[static_cast<size_t>(range.buffer)], 1) == 0;
    }
    return starts ? &older_ : nullptr;
  }

  /// Records an instruction of another lane that empties a bucket.
  void note(InstrId id, const Instr& instr) {
    if (instr.lane == Lane::kCompute || !empties(instr)) return;
    if (std::exchange(filling_, false)) older_ = newest_;
    newest_[static_cast<size_t>(instr.lane)] = id;
  }

 private:
  bool is_bucket(const Range& range) const {
    const Buffer& buffer = program_.at(range.buffer);
    return !buffer.persistent && buffer.category == Category::kBuckets;
  }
  /// Returns whether the instruction takes gradients out of a bucket. A sum over tensor-parallel
  /// ranks leaves them in the bucket.
  bool empties(const Instr& instr) const {
    if (instr.group() != kNoGroup && program_.group(instr.group()).ranks.runs_within(kLayerAxes))
      return false;
    return std::any_of(instr.reads.begin(), instr.reads.end(), [&](const Range& range) {
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

/// SendsInFlight limits how far compute may run ahead of the links to other stages: a sent value
/// lives until the receiver has it, so one send may be in flight on a link while the next value is
/// made.
class SendsInFlight {
 public:
  explicit SendsInFlight(const Program& program)
      : lane_of_(program.buffers.size(), kNotSent),
        newest_(nothing_done(program)),
        older_(newest_) {
    for (const Instr& instr : program.instrs)
      if (instr.kind == InstrKind::kSend)
        lane_of_[static_cast<size_t>(instr.reads[0].buffer)] = static_cast<size_t>(instr.lane);
  }

  /// Returns the send that must be done before `instr` runs if `instr` is the first to write a
  /// buffer that will be sent: the last but one send on the same link. Returns -1 if there is none.
  InstrId before(const Instr& instr) {
    InstrId needed = -1;
    for (const Range& range : instr.writes) {
      const size_t lane = std::exchange(lane_of_[static_cast<size_t>(range.buffer)], kNotSent);
      if (lane != kNotSent) needed = std::max(needed, older_[lane]);
    }
    return needed;
  }

  void note(InstrId id, const Instr& instr) {
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

/// Orderer adds the waits to the instructions of a program, one after another in program order.
class Orderer {
 public:
  Orderer(Program& program, bool overlap)
      : program_(program),
        overlap_(overlap),
        known_(program),
        log_(program),
        buckets_(program),
        sends_(program),
        latest_(nothing_done(program)) {}

  void add(InstrId id) {
    Instr& instr = program_.instrs[static_cast<size_t>(id)];
    const auto own = static_cast<size_t>(instr.lane);
    const std::span<InstrId> now = known_[static_cast<size_t>(id)];
    if (latest_[own] >= 0)
      std::ranges::copy(known_[static_cast<size_t>(latest_[own])], now.begin());
    const LaneClock needed = needed_before(instr);
    instr.waits.clear();
    for (size_t lane = 0; lane < known_.lanes(); ++lane)
      if (lane != own && needed[lane] > now[lane]) wait_for(instr, needed[lane], now);
    drop_implied(instr.waits);
    now[own] = id;
    log_.add(id, instr);
    buckets_.note(id, instr);
    sends_.note(id, instr);
    latest_[own] = id;
    if (instr.kind == InstrKind::kDecide) decision_ = id;
  }

 private:
  LaneClock needed_before(const Instr& instr) {
    LaneClock needed = nothing_done(program_);
    for (size_t lane = 0; lane < known_.lanes(); ++lane) {
      const bool all = !overlap_ && alternates(instr, lane);
      needed[lane] = all ? latest_[lane] : log_.last_conflict(instr, static_cast<Lane>(lane));
    }
    for (const InstrId wait : instr.waits) {
      InstrId& latest = needed[static_cast<size_t>(program_.instr(wait).lane)];
      latest = std::max(latest, wait);
    }
    if (instr.if_finite) needed[kComputeLane] = std::max(needed[kComputeLane], decision_);
    if (const InstrId sent = sends_.before(instr); sent >= 0) {
      InstrId& latest = needed[static_cast<size_t>(program_.instr(sent).lane)];
      latest = std::max(latest, sent);
    }
    if (const LaneClock* older = buckets_.before(instr))
      for (size_t lane = 0; lane < known_.lanes(); ++lane)
        needed[lane] = std::max(needed[lane], (*older)[lane]);
    return needed;
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

  /// Adds a wait, and adds the progress that the wait implies to `now`, the progress known to be
  /// done. So no redundant wait is added later, not even through a third lane.
  void wait_for(Instr& instr, InstrId wait, std::span<InstrId> now) {
    instr.waits.push_back(wait);
    const auto own = static_cast<size_t>(instr.lane);
    const std::span<const InstrId> then = known_[static_cast<size_t>(wait)];
    for (size_t lane = 0; lane < known_.lanes(); ++lane)
      if (lane != own) now[lane] = std::max(now[lane], then[lane]);
  }

  /// Drops the waits of an instruction that its other waits imply.
  void drop_implied(std::vector<InstrId>& waits) const {
    const std::vector<InstrId> all = waits;
    std::erase_if(waits, [&](InstrId wait) {
      const auto lane = static_cast<size_t>(program_.instr(wait).lane);
      return std::any_of(all.begin(), all.end(), [&](InstrId other) {
        return other != wait && known_[static_cast<size_t>(other)][lane] >= wait;
      });
    });
  }

  Program& program_;
  bool overlap_;
  /// The progress of all lanes that is certain once an instruction is done, for each instruction.
  LaneClocks known_;
  AccessLog log_;
  BucketsInFlight buckets_;
  SendsInFlight sends_;
  LaneClock latest_;
  InstrId decision_ = -1;
};

}  // namespace

Program order_communication(Program program, bool overlap) {
  Orderer orderer(program, overlap);
  for (size_t i = 0; i < program.instrs.size(); ++i) orderer.add(static_cast<InstrId>(i));
  return program;
}

}  // namespace ftrun
