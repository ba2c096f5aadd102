#pragma once

#include "base/error.h"

namespace ftrun {

/// RankError is a failure of one rank, even if all ranks of a group throw it.
class RankError : public Error {
 public:
  /// The value of `rank` that stands for the rank that throws.
  static constexpr int kThisRank = -1;

  /// Makes the failure of `rank`. `of_device` says whether the rank's GPU, memory or CPU is broken
  /// and fails on any work; lack of memory does not count.
  RankError(const Error& error, int rank, bool of_device)
      : Error(error), rank_(rank), of_device_(of_device) {}
  int rank() const { return rank_; }
  bool of_device() const { return of_device_; }

 private:
  int rank_;
  bool of_device_;
};

}  // namespace ftrun
