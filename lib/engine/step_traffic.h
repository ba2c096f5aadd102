#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "engine/setup.h"
#include "program/traffic.h"

namespace ftrun {

/// TrafficSums counts the bytes of the training steps that were finite: by the program, and as
/// observed where they passed. Sums of one rank or of all.
struct TrafficSums {
  int64_t steps = 0;
  int64_t sent_by_program = 0;
  /// Bytes seen at the transport (Communicator::transported_bytes); none where a back end does not
  /// see them.
  std::optional<int64_t> transported = 0;
  DiskTraffic disk_by_program;
  /// The traffic of the blocks that the kernel has moved.
  DiskTraffic disk;

  /// Adds the sums of another rank, which has run the same steps.
  void add(const TrafficSums& other);
};

/// StepTraffic watches this rank's steps. Steps that are not finite leave out the instructions
/// after the decision, so they are not counted on either side.
class StepTraffic {
 public:
  explicit StepTraffic(const TrainingSetup& setup);

  /// Begins a run of the training program; end() ends it.
  void begin();
  void end(bool finite);
  const TrafficSums& sums() const { return sums_; }

 private:
  struct Observed {
    std::optional<int64_t> transported = 0;
    DiskTraffic disk;
  };
  Observed observe() const;

  const TrainingSetup& setup_;
  const int64_t sent_;
  const DiskTraffic disk_;
  Observed before_;
  TrafficSums sums_;
};

/// Writes the sums for an exchange between ranks, and reads them back.
std::string encode_traffic(const TrafficSums& sums);
TrafficSums decode_traffic(const std::string& text);

/// Makes a table with two columns for each kind of traffic; "" when nothing moved.
std::string traffic_text(const TrafficSums& sums, int ranks);

/// Writes the sums for run.json: "communication" with "program" and "transport" (absent when it was
/// not seen), "disk_read" and "disk_written" with "program" and "disk", "steps" with "counted".
std::map<std::string, std::map<std::string, int64_t>> traffic_record(const TrafficSums& sums);

}  // namespace ftrun
