#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "program/program.h"

namespace ftrun {

/// Bucket joins collectives of one kind over one unit or more into one instruction, with the
/// instructions that follow them.
struct Bucket {
  Instr collective;
  std::vector<Instr> after;
  int64_t elements = 0;
  /// `at` of the last collective that joined: only there are all inputs ready.
  size_t last = 0;
};

/// BucketFiller joins collectives until a bucket holds `limit` elements (DeepSpeed's
/// reduce_bucket_size and allgather_bucket_size); a single larger one stays whole. One bucket of
/// each kind is open at a time: where small units stay whole and large ones are cut, their
/// reductions alternate.
class BucketFiller {
 public:
  BucketFiller(const Program& program, int64_t limit) : program_(program), limit_(limit) {}

  /// Adds a collective. Calls are in ascending order of `at`.
  void add(size_t at, Instr collective, std::vector<Instr> after = {});
  /// Closes the open buckets: units added later do not join earlier ones.
  void close();
  /// Closes the open buckets and returns all, sorted by `last`.
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
