#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "comm/open.h"

// Hangs of four ranks in one process, over any transport. The rank for which all wait must be
// named.

enum class Hang { kComputes, kSlowDisk, kSkips, kWrongSize, kDeadlock };
inline constexpr int kHangs = 5;

struct HangCase {
  Hang hang;
  ftrun::CommBackend backend;
  int victim;
  int64_t step;
  /// The collective of a step, one of three, before which the rank hangs.
  int collective_index;
  /// The time that a rank waits for the others.
  std::chrono::milliseconds limit = std::chrono::seconds(1);
};

/// Draws the victim of a hang, and the collective where it hangs.
HangCase draw_hang(std::mt19937& random, Hang hang, ftrun::CommBackend backend);

/// HangDevice runs a rank's collectives. This one is the host, which waits for each of them.
class HangDevice {
 public:
  virtual ~HangDevice() = default;
  /// Returns the device's number for CommOptions.
  virtual int number() const { return -1; }
  virtual void attach(ftrun::Communicator& group) { static_cast<void>(group); }
  /// Waits for the work in the stream, then lets each group report failures since then.
  virtual void synchronize(const std::vector<ftrun::Communicator*>& groups) {
    static_cast<void>(groups);
  }
};
using MakeHangDevice = std::function<std::unique_ptr<HangDevice>()>;

/// Runs each hang, some at the same time. Returns the messages of those whose culprit was not
/// named.
std::vector<std::string> find_naming_errors(const std::vector<HangCase>& hangs,
                                            const MakeHangDevice& make_device);
