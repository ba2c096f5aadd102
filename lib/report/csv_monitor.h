#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/append_file.h"
#include "report/step_metrics.h"

namespace ftrun {

/// CsvMonitorOptions are DeepSpeed's `csv_monitor` section, with its defaults.
struct CsvMonitorOptions {
  /// The folder of the files; "" is the current folder.
  std::string output_path;
  std::string job_name = "DeepSpeedJobName";
  /// The number of samples that a resumed run had read at its checkpoint. Rows beyond them are
  /// removed, because they will be written again.
  std::optional<int64_t> resumed_samples = std::nullopt;
};

/// CsvMonitor writes the files of DeepSpeed's csv_monitor: for the event "Train/Samples/lr" the
/// file `<output_path>/<job_name>/Train_Samples_lr.csv`, with the header "step,lr", then one row
/// per event. Rows end in CR LF and numbers have the form of Python's floats, so that one script
/// can read the files of both programs. Unlike in DeepSpeed's files, there is one header and each
/// step occurs once: a resumed run continues its own rows, and files of another run are renamed.
class CsvMonitor {
 public:
  /// Makes the folder. Error(kEnvironment).
  explicit CsvMonitor(const CsvMonitorOptions& options);

  /// Appends `value` at `step` to the file of event `name`. Error(kEnvironment).
  void write(std::string_view name, double value, int64_t step);
  /// Writes Train/Samples/lr, Train/Samples/train_loss and, with loss scaling,
  /// Train/Samples/loss_scale, at the count of samples (which is DeepSpeed's step here).
  void write(const StepMetrics& metrics);

 private:
  AppendFile open(const std::string& path, const std::string& header) const;

  std::string folder_;
  std::optional<int64_t> resumed_samples_;
  std::map<std::string, AppendFile> files_;
};

/// Formats a double in the form of Python's repr(): "1.0", "1e-05", "0.0001", "nan".
std::string python_float_text(double value);

}  // namespace ftrun
