#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/append_file.h"
#include "report/step_metrics.h"

namespace ftrun {

/// TensorBoardOptions determines the name of an event file; the defaults are this host, process and
/// time.
struct TensorBoardOptions {
  std::string hostname;
  int64_t pid = 0;
  /// The time in seconds since 1970; 0 means the current time.
  double wall_seconds = 0;
  /// The first step of a resumed run: this step and later ones are removed from the files of
  /// earlier starts, and a START record makes TensorBoard discard those that it has already read.
  std::optional<int64_t> first_step;
};

/// TensorBoardWriter writes a TensorBoard event file of scalars without a protobuf library.
///
/// File: `events.out.tfevents.<seconds, 10 digits>.<host>.<pid>.0`, a row of records
///   record = u64 length | u32 masked CRC-32C of length | data | u32 masked CRC-32C of data
/// (little-endian; masked = rotate right by 15, plus 0xa282ead8), data = one Event message:
///   1 double wall_time, 2 int64 step, 3 string file_version, 5 Summary, 7 SessionLog
///   Summary = repeated 1 Value { 1 string tag, 2 float simple_value }; SessionLog = { 1 status }
class TensorBoardWriter {
 public:
  /// Makes a new file in `folder`, which must exist. Throws Error(kEnvironment).
  explicit TensorBoardWriter(const std::string& folder, TensorBoardOptions options = {});

  /// Writes one event with all `scalars` at `step`, with the current time.
  void write(int64_t step, const std::vector<Scalar>& scalars);
  /// Writes the event with the time `wall_seconds` (since 1970).
  void write(int64_t step, const std::vector<Scalar>& scalars, double wall_seconds);

  const std::string& path() const { return file_.path(); }

 private:
  TensorBoardOptions options_;
  AppendFile file_;
};

}  // namespace ftrun
