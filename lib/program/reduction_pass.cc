#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "program/buckets.h"
#include "program/passes.h"

namespace ftrun {
namespace {

/// WrittenGradient is a gradient with the first and the last operation list that writes it.
struct WrittenGradient {
  GradientUse use;
  BufferUse writers;
};

/// Finds the operation lists that write each gradient by the bytes that they write. One written
/// range may cover several gradients that lie next to each other.
std::vector<WrittenGradient> find_written_gradients(const Program& program,
                                                    const std::vector<GradientUse>& uses) {
  std::vector<WrittenGradient> gradients;
  std::map<std::pair<BufferId, int64_t>, size_t> by_begin;
  for (const GradientUse& use : uses) {
    by_begin[{use.range.buffer, use.range.offset}] = gradients.size();
    gradients.push_back({use, {}});
  }
  const auto record_writer = [&](size_t i, const BufferRange& range) {
    auto found = by_begin.upper_bound({range.buffer, range.offset});
    if (found != by_begin.begin()) --found;
    const auto end = by_begin.lower_bound({range.buffer, range.offset + range.bytes});
    for (; found != end; ++found) {
      WrittenGradient& gradient = gradients[found->second];
      if (!overlaps(gradient.use.range, range)) continue;
      gradient.writers.first = std::min(gradient.writers.first, i);
      gradient.writers.last = i;
    }
  };
  for (size_t i = 0; i < program.instrs.size(); ++i)
    if (program.instrs[i].runs_ops())
      for (const BufferRange& range : program.instrs[i].writes) record_writer(i, range);
  return gradients;
}

size_t last_ops_instr(const Program& program) {
  size_t last = 0;
  for (size_t i = 0; i < program.instrs.size(); ++i)
    if (program.instrs[i].runs_ops()) last = i;
  return last;
}

/// Sorts gradients by micro-batch, by chunk, and then by their position in the buffer, so that a
/// bucket is one contiguous range. The last unit comes first in the buffer, because backward
/// computes it first.
void sort_by_position(std::vector<WrittenGradient>& gradients) {
  std::sort(gradients.begin(), gradients.end(),
            [](const WrittenGradient& a, const WrittenGradient& b) {
              return std::tuple(a.use.micro_batch, -a.use.chunk, -a.use.unit) <
                     std::tuple(b.use.micro_batch, -b.use.chunk, -b.use.unit);
            });
}

/// Reductions collects the instructions that reduce gradients, and where each goes in the program.
class Reductions {
 public:
  Reductions(const Program& program, GradientReducer& reducer, int64_t bucket_elements)
      : reducer_(reducer), filler_(program, bucket_elements) {}

  void add(const WrittenGradient& gradient) {
    require(gradient.writers.first != BufferUse::kNone, "a gradient is written");
    const std::pair backward(gradient.use.micro_batch, gradient.use.chunk);
    if (backward != backward_) begin_backward(backward);
    // Gradients of one unit from several micro-batches are summed in the order of the
    // micro-batches.
    require(gradient.writers.last >=
                std::exchange(last_of_unit_[gradient.use.unit], gradient.writers.last),
            "gradients are made in the order of micro-batches");
    insert_after_ = std::max(insert_after_, gradient.writers.last);
    clears_.push_back(
        {.plain_instr = gradient.writers.first, .instrs = reducer_.clear_unwritten(gradient.use)});
    Reduction reduction =
        reducer_.plan_reduction(gradient.use, reduced_.insert(gradient.use.unit).second);
    if (reduction.collective)
      filler_.add(insertions_.size(), std::move(*reduction.collective),
                  std::move(reduction.instrs_after));
    insertions_.push_back({.plain_instr = insert_after_,
                           .is_after = true,
                           .instrs = std::move(reduction.instrs_before)});
  }

  /// Returns all insertions; a bucket is inserted at its last reduction.
  std::vector<Insertion> finish() {
    for (Bucket& bucket : filler_.finish()) {
      std::vector<Instr>& instrs = insertions_[bucket.last_position].instrs;
      instrs.push_back(std::move(bucket.collective));
      for (Instr& instr : bucket.following) instrs.push_back(std::move(instr));
    }
    for (Insertion& clear : clears_) insertions_.push_back(std::move(clear));
    return std::move(insertions_);
  }

 private:
  /// Begins the backward pass of a micro-batch and chunk: open buckets are closed, so gradients of
  /// one micro-batch or chunk never wait for another one. Otherwise a bucket could stay open while
  /// the first chunk of the next micro-batch is computed.
  void begin_backward(std::pair<int32_t, int32_t> backward) {
    backward_ = backward;
    insert_after_ = 0;
    filler_.close();
  }

  GradientReducer& reducer_;
  BucketFiller filler_;
  /// The micro-batch and the chunk of the current backward pass.
  std::pair<int32_t, int32_t> backward_{-1, -1};
  /// The instruction after which the next reduction of this backward pass is inserted.
  size_t insert_after_ = 0;
  std::set<UnitId> reduced_;
  std::map<UnitId, size_t> last_of_unit_;
  std::vector<Insertion> insertions_;
  std::vector<Insertion> clears_;
};

}  // namespace

std::vector<Insertion> reduce_gradients(const Program& program, GradientReducer& reducer,
                                        int64_t bucket_elements) {
  std::vector<WrittenGradient> written = find_written_gradients(program, reducer.uses());
  // Units that two stages hold are reduced at the end. Reducing them earlier would be a deadlock:
  // this stage would wait for the other stage's partial gradient while the other stage waits
  // for this one.
  const size_t end = last_ops_instr(program);
  for (WrittenGradient& gradient : written)
    if (reducer.is_shared_by_stages(gradient.use.unit)) gradient.writers.last = end;
  sort_by_position(written);
  Reductions reductions(program, reducer, bucket_elements);
  for (const WrittenGradient& gradient : written) reductions.add(gradient);
  return reductions.finish();
}

}  // namespace ftrun
