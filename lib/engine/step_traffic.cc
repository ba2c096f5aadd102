#include "engine/step_traffic.h"

#include <sstream>

#include "base/amount_text.h"
#include "base/table.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// Stands for a count that the backend could not measure.
constexpr int64_t kUnmeasured = -1;

DiskTraffic subtract(const DiskTraffic& now, const DiskTraffic& before) {
  return {now.bytes_read - before.bytes_read, now.bytes_written - before.bytes_written};
}

void add_to(DiskTraffic& sum, const DiskTraffic& part) {
  sum.bytes_read += part.bytes_read;
  sum.bytes_written += part.bytes_written;
}

std::vector<std::string> table_row(const char* what, int64_t predicted,
                                   std::optional<int64_t> measured) {
  if (!measured) return {what, std::to_string(predicted), "-", "-", ""};
  return {what, std::to_string(predicted), std::to_string(*measured),
          percent_error_text(*measured, predicted), human_bytes(*measured)};
}

}  // namespace

void TrafficSums::add(const TrafficSums& other) {
  steps = other.steps;
  predicted_sent_bytes += other.predicted_sent_bytes;
  if (measured_sent_bytes && other.measured_sent_bytes)
    *measured_sent_bytes += *other.measured_sent_bytes;
  else
    measured_sent_bytes.reset();
  add_to(predicted_disk, other.predicted_disk);
  add_to(measured_disk, other.measured_disk);
}

StepTraffic::StepTraffic(const TrainingSetup& setup)
    : setup_(setup),
      predicted_sent_bytes_(program_traffic(setup.train_plan().program).bytes),
      predicted_disk_(disk_traffic(setup.train_plan().program)) {}

StepTraffic::TransportCounters StepTraffic::read_counters() const {
  TransportCounters now;
  for (const Communicator* group : setup_.communicators().distinct_communicators()) {
    const std::optional<int64_t> bytes = group->transported_bytes();
    now.measured_sent_bytes = bytes && now.measured_sent_bytes
                                  ? std::optional(*now.measured_sent_bytes + *bytes)
                                  : std::nullopt;
  }
  if (const SwapFile* swap = setup_.memory().swap())
    now.measured_disk = {swap->counters().bytes_read, swap->counters().bytes_written};
  return now;
}

void StepTraffic::begin_step() {
  counters_at_begin_ = read_counters();
}

void StepTraffic::end_step(bool finite) {
  if (!finite) return;
  const TransportCounters now = read_counters();
  ++sums_.steps;
  sums_.predicted_sent_bytes += predicted_sent_bytes_;
  if (sums_.measured_sent_bytes && now.measured_sent_bytes &&
      counters_at_begin_.measured_sent_bytes)
    *sums_.measured_sent_bytes +=
        *now.measured_sent_bytes - *counters_at_begin_.measured_sent_bytes;
  else
    sums_.measured_sent_bytes.reset();
  add_to(sums_.predicted_disk, predicted_disk_);
  add_to(sums_.measured_disk, subtract(now.measured_disk, counters_at_begin_.measured_disk));
}

std::string encode_traffic(const TrafficSums& sums) {
  return cat(sums.steps, " ", sums.predicted_sent_bytes, " ",
             sums.measured_sent_bytes.value_or(kUnmeasured), " ", sums.predicted_disk.bytes_read,
             " ", sums.predicted_disk.bytes_written, " ", sums.measured_disk.bytes_read, " ",
             sums.measured_disk.bytes_written);
}

TrafficSums decode_traffic(const std::string& text) {
  TrafficSums sums;
  std::istringstream fields(text);
  fields >> sums.steps >> sums.predicted_sent_bytes >> *sums.measured_sent_bytes >>
      sums.predicted_disk.bytes_read >> sums.predicted_disk.bytes_written >>
      sums.measured_disk.bytes_read >> sums.measured_disk.bytes_written;
  if (sums.measured_sent_bytes == kUnmeasured) sums.measured_sent_bytes.reset();
  return sums;
}

std::string measured_traffic_text(const TrafficSums& sums, int ranks) {
  std::vector<std::vector<std::string>> rows;
  if (sums.predicted_sent_bytes > 0)
    rows.push_back(table_row("communication", sums.predicted_sent_bytes, sums.measured_sent_bytes));
  if (sums.predicted_disk.bytes_read > 0)
    rows.push_back(
        table_row("disk, read", sums.predicted_disk.bytes_read, sums.measured_disk.bytes_read));
  if (sums.predicted_disk.bytes_written > 0)
    rows.push_back(table_row("disk, written", sums.predicted_disk.bytes_written,
                             sums.measured_disk.bytes_written));
  if (rows.empty()) return "";
  return cat("\nbytes of ", count_text(ranks, "rank"), " in ", count_text(sums.steps, "step"), "\n",
             format_table({"traffic", "predicted", "measured", "error", "rounded"}, rows));
}

std::map<std::string, std::map<std::string, int64_t>> traffic_record(const TrafficSums& sums) {
  std::map<std::string, std::map<std::string, int64_t>> record;
  record["steps"]["counted"] = sums.steps;
  record["communication"]["program"] = sums.predicted_sent_bytes;
  if (sums.measured_sent_bytes) record["communication"]["transport"] = *sums.measured_sent_bytes;
  record["disk_read"] = {{"program", sums.predicted_disk.bytes_read},
                         {"disk", sums.measured_disk.bytes_read}};
  record["disk_written"] = {{"program", sums.predicted_disk.bytes_written},
                            {"disk", sums.measured_disk.bytes_written}};
  return record;
}

}  // namespace ftrun
