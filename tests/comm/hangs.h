#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "comm/open.h"

// Hangs of four ranks in one process, over any transport: the rank that all wait for must be named.

enum class Hang { kComputes, kSlowDisk, kSkips, kWrongSize, kDeadlock };
inline constexpr int kHangs = 5;

struct HangCase {
  Hang hang;
  ftrun::CommBackend backend;
  int victim;
  int64_t step;
  /// The collective of a step, of three, before which the rank hangs.
  int place;
  /// The time that a rank waits for the others.
  std::chrono::milliseconds limit = std::chrono::seconds(1);
};

/// Draws a hang: its victim and its place.
HangCase draw_hang(std::mt19937& random, Hang hang, ftrun::CommBackend backend);

/// HangDevice runs a rank's collectives: here the host, which waits for each of them.
class HangDevice {
 public:
  virtual ~HangDevice() = default;
  /// Returns the device's number as in CommOptions.
  virtual int number() const { return -1; }
  virtual void attach(ftrun::Communicator& group) { static_cast<void>(group); }
  /// Waits for the work in the stream; then each group's failures in the meantime are asked for.
  virtual void synchronize(const std::vector<ftrun::Communicator*>& groups) {
    static_cast<void>(groups);
  }
};
using MakeHangDevice = std::function<std::unique_ptr<HangDevice>()>;

/// Tries each hang, some at the same time. Returns what was said of those whose culprit was not
/// named.
std::vector<std::string> wrongly_named(const std::vector<HangCase>& hangs,
                                       const MakeHangDevice& make_device);
