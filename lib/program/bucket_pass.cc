#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "program/passes.h"

namespace ftrun {
namespace {

/// Collectives of one kind over one unit or more, and what belongs to them.
struct Bucket {
  Instr collective;
  std::vector<Instr> followers;
  int64_t elements = 0;
  /// Where it goes: the place of the last collective that joined, because only there is all of it
  /// ready.
  size_t slot = 0;
};

int64_t elements_of(const Program& program, const Instr& instr) {
  // A gather is counted by what arrives, a reduction by what leaves.
  const auto& ranges = instr.kind == InstrKind::kReduceScatter ? instr.reads : instr.writes;
  int64_t count = 0;
  for (const Range& range : ranges) count += element_count(program, range);
  return count;
}

bool may_join(const Instr& bucket, const Instr& next) {
  return bucket.kind == next.kind && bucket.group == next.group && bucket.dtype == next.dtype &&
         bucket.lane == next.lane && bucket.if_finite == next.if_finite;
}

/// Adds `next` to the ranges; a range that goes on where the last one ends becomes part of it, if
/// each collective is the same over both as over one.
void join_ranges(Instr& bucket, const Instr& next) {
  const auto continues = [](const Range& a, const Range& b) {
    return a.buffer == b.buffer && a.offset + a.bytes == b.offset;
  };
  for (size_t i = 0; i < next.writes.size(); ++i) {
    if (next.kind == InstrKind::kAllReduce && continues(bucket.writes.back(), next.writes[i])) {
      bucket.writes.back().bytes += next.writes[i].bytes;
      bucket.reads = bucket.writes;
      continue;
    }
    bucket.reads.push_back(next.reads[i]);
    bucket.writes.push_back(next.writes[i]);
  }
  bucket.unit = -1;
}

/// Fills one bucket for each kind of collective, beside each other: where small units stay whole
/// and large ones are cut, their reductions alternate.
class Joiner {
 public:
  Joiner(const Program& program, int64_t bucket_elements)
      : program_(program), bucket_elements_(bucket_elements) {}

  void take(Instr&& instr) {
    const int64_t elements = elements_of(program_, instr);
    size_t at = find(instr);
    if (at < open_.size() && !fits(open_[at], elements)) {
      flush(at);
      at = open_.size();
    }
    if (at == open_.size()) {
      open_.push_back({std::move(instr), {}, elements, 0});
    } else {
      join_ranges(open_[at].collective, instr);
      open_[at].elements += elements;
    }
    open_[at].slot = result_.size();
    result_.emplace_back();
    last_ = at;
  }

  /// Goes wherever the collective before it goes.
  void follow(Instr&& instr) {
    if (last_ < open_.size())
      open_[last_].followers.push_back(std::move(instr));
    else
      keep(std::move(instr));
  }

  void keep(Instr&& instr) { result_.emplace_back().push_back(std::move(instr)); }

  void flush_all() {
    while (!open_.empty()) flush(open_.size() - 1);
  }

  std::vector<Instr> finish() {
    flush_all();
    std::vector<Instr> all;
    for (std::vector<Instr>& slot : result_)
      all.insert(all.end(), std::make_move_iterator(slot.begin()),
                 std::make_move_iterator(slot.end()));
    return all;
  }

 private:
  bool fits(const Bucket& bucket, int64_t elements) const {
    return bucket.elements < bucket_elements_ && elements <= bucket_elements_ - bucket.elements;
  }

  size_t find(const Instr& instr) const {
    size_t at = 0;
    while (at < open_.size() && !may_join(open_[at].collective, instr)) ++at;
    return at;
  }

  void flush(size_t at) {
    Bucket& bucket = open_[at];
    std::vector<Instr>& slot = result_[bucket.slot];
    slot.push_back(std::move(bucket.collective));
    for (Instr& follower : bucket.followers) slot.push_back(std::move(follower));
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(at));
    last_ = open_.size();
  }

  const Program& program_;
  int64_t bucket_elements_;
  std::vector<Bucket> open_;
  /// The bucket that took the last collective.
  size_t last_ = 0;
  /// What stands at each place; places of buckets are filled when they are complete.
  std::vector<std::vector<Instr>> result_;
};

/// Over data-parallel ranks: what tensor-parallel ranks sum comes before and stays where it is.
bool reduces_gradients(const Program& program, const Instr& instr) {
  return (instr.kind == InstrKind::kReduceScatter || instr.kind == InstrKind::kAllReduce) &&
         instr.unit >= 0 && !instr.follows &&
         !runs_along_tensor(program.group(instr.group));
}

}  // namespace

Program bucket_gradients(Program program, int64_t bucket_elements) {
  Joiner joiner(program, bucket_elements);
  for (Instr& instr : program.instrs) {
    // What reads the gradients must stay behind their reduction, and gradients of one micro-batch
    // do not wait for those of the next.
    if (instr.kind == InstrKind::kGradientNorm || instr.kind == InstrKind::kLoadBatch)
      joiner.flush_all();
    if (reduces_gradients(program, instr))
      joiner.take(std::move(instr));
    else if (instr.follows)
      joiner.follow(std::move(instr));
    else
      joiner.keep(std::move(instr));
  }
  program.instrs = joiner.finish();
  return program;
}

Program bucket_gathers(Program program, int64_t bucket_elements) {
  Joiner joiner(program, bucket_elements);
  for (Instr& instr : program.instrs) {
    if (instr.kind == InstrKind::kAllGather && !instr.ahead && instr.unit >= 0)
      joiner.take(std::move(instr));
    else
      joiner.keep(std::move(instr));
  }
  program.instrs = joiner.finish();
  return program;
}

}  // namespace ftrun
