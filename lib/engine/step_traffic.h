#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "engine/setup.h"
#include "program/traffic.h"

namespace ftrun {

/// TrafficSums counts the bytes of the finite training steps, as the program predicts them and as
/// measured in transport. The sums are of one rank or of all ranks.
struct TrafficSums {
  int64_t steps = 0;
  /// Bytes sent to other ranks.
  int64_t predicted_sent_bytes = 0;
  /// The bytes counted at the transport (Communicator::transported_bytes); nothing where a backend
  /// cannot count them.
  std::optional<int64_t> measured_sent_bytes = 0;
  DiskTraffic predicted_disk;
  /// The bytes that the kernel moved between memory and disk blocks.
  DiskTraffic measured_disk;

  /// Adds the sums of another rank, which has run the same steps.
  void add(const TrafficSums& other);
};

/// StepTraffic counts the traffic of this rank's steps. Steps that are not finite do not run the
/// instructions after the decision, so both predicted and measured bytes leave them out.
class StepTraffic {
 public:
  explicit StepTraffic(const TrainingSetup& setup);

  /// Begins a run of the training program, which end_step() ends.
  void begin_step();
  void end_step(bool finite);
  const TrafficSums& traffic_sums() const { return sums_; }

 private:
  /// TransportCounters holds counters at one moment; the traffic of a run is a difference of two.
  struct TransportCounters {
    std::optional<int64_t> measured_sent_bytes = 0;
    DiskTraffic measured_disk;
  };
  TransportCounters read_counters() const;

  const TrainingSetup& setup_;
  const int64_t predicted_sent_bytes_;
  const DiskTraffic predicted_disk_;
  TransportCounters counters_at_begin_;
  TrafficSums sums_;
};

/// Convert the sums to a text for an exchange between ranks, and back.
std::string encode_traffic(const TrafficSums& sums);
TrafficSums decode_traffic(const std::string& text);

/// Makes a table with predicted and measured bytes of each kind of traffic; "" when nothing moved.
std::string measured_traffic_text(const TrafficSums& sums, int ranks);

/// Returns the sums for run.json: "communication" with "program" and "transport" (absent when it
/// was not measured), "disk_read" and "disk_written" with "program" and "disk", "steps" with
/// "counted".
std::map<std::string, std::map<std::string, int64_t>> traffic_record(const TrafficSums& sums);

}  // namespace ftrun
