#include "program/buckets.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ftrun {
namespace {

/// Counts the elements of a collective on the side where they are whole.
int64_t elements_of(const Program& program, const Instr& instr) {
  int64_t count = 0;
  for (const BufferRange& range : instr.full_ranges()) count += element_count(program, range);
  return count;
}

bool may_join(const Instr& bucket, const Instr& next) {
  return bucket.kind == next.kind && bucket.group() == next.group() &&
         bucket.communication().dtype == next.communication().dtype &&
         bucket.if_finite == next.if_finite;
}

/// Adds the ranges of `next` to a bucket. A range of an all-reduce that begins where the bucket's
/// last range ends extends that range: one call over both gives the same result as two calls. Other
/// kinds of collectives keep separate ranges, because they divide each range among the ranks.
void join_ranges(Instr& bucket, const Instr& next) {
  const auto continues = [](const BufferRange& a, const BufferRange& b) {
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

}  // namespace

void BucketFiller::add(size_t position, Instr collective, std::vector<Instr> following) {
  const int64_t elements = elements_of(program_, collective);
  size_t index = find(collective);
  if (index < open_.size() && !fits(open_[index], elements)) {
    close(index);
    index = open_.size();
  }
  if (index == open_.size()) {
    open_.push_back({.collective = std::move(collective)});
  } else {
    join_ranges(open_[index].collective, collective);
  }
  Bucket& bucket = open_[index];
  bucket.elements += elements;
  bucket.last_position = position;
  std::move(following.begin(), following.end(), std::back_inserter(bucket.following));
}

void BucketFiller::close() {
  while (!open_.empty()) close(open_.size() - 1);
}

std::vector<Bucket> BucketFiller::finish() {
  close();
  std::sort(closed_.begin(), closed_.end(),
            [](const Bucket& a, const Bucket& b) { return a.last_position < b.last_position; });
  return std::exchange(closed_, {});
}

size_t BucketFiller::find(const Instr& collective) const {
  size_t index = 0;
  while (index < open_.size() && !may_join(open_[index].collective, collective)) ++index;
  return index;
}

bool BucketFiller::fits(const Bucket& bucket, int64_t elements) const {
  return bucket.elements < limit_ && elements <= limit_ - bucket.elements;
}

void BucketFiller::close(size_t index) {
  closed_.push_back(std::move(open_[index]));
  open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(index));
}

}  // namespace ftrun
