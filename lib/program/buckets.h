#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "program/program.h"

namespace ftrun {

/// Bucket joins collectives of one kind, over one or more units, into one instruction, with the
/// instructions that follow them.
struct Bucket {
  Instr collective;
  std::vector<Instr> following;
  int64_t elements = 0;
  /// The `position` of the last collective in the bucket: from there on all inputs are ready.
  size_t last_position = 0;
};

/// BucketFiller joins collectives until a bucket holds `limit` elements (DeepSpeed's
/// reduce_bucket_size and allgather_bucket_size); a single larger collective is not split. One
/// bucket of each kind is open at a time, because reductions of small units that are not sharded
/// and of sharded large units alternate.
class BucketFiller {
 public:
  BucketFiller(const Program& program, int64_t limit) : program_(program), limit_(limit) {}

  /// Adds a collective. Callers add collectives in ascending order of `position`.
  void add(size_t position, Instr collective, std::vector<Instr> following = {});
  /// Closes the open buckets: collectives added later do not join them.
  void close();
  /// Closes the open buckets and returns all buckets, sorted by `last_position`.
  std::vector<Bucket> finish();

 private:
  size_t find(const Instr& collective) const;
  bool fits(const Bucket& bucket, int64_t elements) const;
  void close(size_t index);

  const Program& program_;
  int64_t limit_;
  std::vector<Bucket> open_;
  std::vector<Bucket> closed_;
};

}  // namespace ftrun
