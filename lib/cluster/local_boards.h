#pragma once

#include <cstdint>

#include "base/owned_fd.h"
#include "cluster/board_table.h"

namespace ftrun {

/// LocalBoards are the tables of a supervisor's ranks, in anonymous memory that the supervisor
/// allocates and its ranks inherit and map.
class LocalBoards {
 public:
  LocalBoards() = default;
  /// Makes tables for `count` ranks. Throws Error(kEnvironment) if there is not enough memory.
  static LocalBoards make(int count);
  /// Opens the memory that a rank inherited as FTRUN_BOARD_FD. Returns an empty object if no
  /// supervisor made it; ranks then run without these tables.
  static LocalBoards open(OwnedFd fd);
  ~LocalBoards();
  LocalBoards(LocalBoards&& other) noexcept;
  LocalBoards& operator=(LocalBoards&& other) noexcept;

  int count() const { return count_; }
  BoardTable& table(int local_rank) const;
  int fd() const { return fd_.get(); }
  /// Finds the table of a rank's process; null if there is none.
  const BoardTable* find_table(int rank, int pid) const;

 private:
  LocalBoards(OwnedFd fd, void* memory, int count);
  OwnedFd fd_;
  void* memory_ = nullptr;
  int count_ = 0;
};

}  // namespace ftrun
