#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "program/program.h"

namespace ftrun {

/// Collectives of one kind over one unit or more, joined into one instruction, and what belongs to
/// them.
struct Bucket {
  Instr collective;
  std::vector<Instr> after;
  int64_t elements = 0;
  /// Index of the last collective that joined: only there is all of it ready.
  size_t last = 0;
};

/// Joins collectives until a bucket holds `limit` elements (DeepSpeed's reduce_bucket_size and
/// allgather_bucket_size); a single one larger than that stays whole. One bucket of each kind fills
/// at a time, beside each other: where small units stay whole and large ones are cut, their
/// reductions alternate.
class BucketFiller {
 public:
  BucketFiller(const Program& program, int64_t limit) : program_(program), limit_(limit) {}

  /// Collectives come in ascending order of `at`.
  void add(size_t at, Instr collective, std::vector<Instr> after = {});
  /// Closes the bucket: units that come next join none of the earlier ones.
  void close();
  /// All buckets by `last`; closes the open ones.
  std::vector<Bucket> take();

 private:
  size_t find(const Instr& collective) const;
  bool fits(const Bucket& bucket, int64_t elements) const;
  void close(size_t index);

  const Program& program_;
  int64_t limit_;
  std::vector<Bucket> open_;
  std::vector<Bucket> done_;
};

}  // namespace ftrun
