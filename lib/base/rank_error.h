#pragma once

#include <optional>

#include "base/error.h"

namespace ftrun {

/// RankError is a failure of one rank, even if all ranks of a group throw it.
class RankError : public Error {
 public:
  /// The value of `rank` that stands for the rank that throws.
  static constexpr int kThisRank = -1;

  /// Makes the failure of `rank`. `is_device_failure` says whether the rank's GPU, memory or CPU is
  /// broken and fails on any work; lack of memory does not count.
  RankError(const Error& error, int rank, bool is_device_failure)
      : Error(error), rank_(rank), is_device_failure_(is_device_failure) {}
  int rank() const { return rank_; }
  bool is_device_failure() const { return is_device_failure_; }

 private:
  int rank_;
  bool is_device_failure_;
};

/// AbsentRankError is a failure of a rank that needed other ranks. `absent` is the one rank that
/// was waited for without result, or that is gone, if there is one.
class AbsentRankError : public Error {
 public:
  AbsentRankError(const Error& error, std::optional<int> absent) : Error(error), absent_(absent) {}
  std::optional<int> absent() const { return absent_; }

 private:
  std::optional<int> absent_;
};

}  // namespace ftrun
