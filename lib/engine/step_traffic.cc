#include "engine/step_traffic.h"

#include <sstream>

#include "base/amount_text.h"
#include "base/table.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// Stands for a count that the backend could not measure.
constexpr int64_t kUnmeasured = -1;

DiskTraffic difference(const DiskTraffic& now, const DiskTraffic& before) {
  return {now.read - before.read, now.written - before.written};
}

void add_to(DiskTraffic& sum, const DiskTraffic& part) {
  sum.read += part.read;
  sum.written += part.written;
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
  predicted_sent += other.predicted_sent;
  if (measured_sent && other.measured_sent)
    *measured_sent += *other.measured_sent;
  else
    measured_sent.reset();
  add_to(predicted_disk, other.predicted_disk);
  add_to(measured_disk, other.measured_disk);
}

StepTraffic::StepTraffic(const TrainingSetup& setup)
    : setup_(setup),
      predicted_sent_(program_traffic(setup.train_plan().program).bytes),
      predicted_disk_(disk_traffic(setup.train_plan().program)) {}

StepTraffic::TransportCounters StepTraffic::read_counters() const {
  TransportCounters now;
  for (const Communicator* group : setup_.communicators().distinct_communicators()) {
    const std::optional<int64_t> bytes = group->transported_bytes();
    now.measured_sent =
        bytes && now.measured_sent ? std::optional(*now.measured_sent + *bytes) : std::nullopt;
  }
  if (const SwapFile* swap = setup_.memory().swap())
    now.measured_disk = {swap->counters().bytes_read, swap->counters().bytes_written};
  return now;
}

void StepTraffic::begin() {
  before_ = read_counters();
}

void StepTraffic::end(bool finite) {
  if (!finite) return;
  const TransportCounters now = read_counters();
  ++sums_.steps;
  sums_.predicted_sent += predicted_sent_;
  if (sums_.measured_sent && now.measured_sent && before_.measured_sent)
    *sums_.measured_sent += *now.measured_sent - *before_.measured_sent;
  else
    sums_.measured_sent.reset();
  add_to(sums_.predicted_disk, predicted_disk_);
  add_to(sums_.measured_disk, difference(now.measured_disk, before_.measured_disk));
}

std::string encode_traffic(const TrafficSums& sums) {
  return cat(sums.steps, " ", sums.predicted_sent, " ", sums.measured_sent.value_or(kUnmeasured),
             " ", sums.predicted_disk.read, " ", sums.predicted_disk.written, " ",
             sums.measured_disk.read, " ", sums.measured_disk.written);
}

TrafficSums decode_traffic(const std::string& text) {
  TrafficSums sums;
  std::istringstream fields(text);
  fields >> sums.steps >> sums.predicted_sent >> *sums.measured_sent >> sums.predicted_disk.read >>
      sums.predicted_disk.written >> sums.measured_disk.read >> sums.measured_disk.written;
  if (sums.measured_sent == kUnmeasured) sums.measured_sent.reset();
  return sums;
}

std::string measured_traffic_text(const TrafficSums& sums, int ranks) {
  std::vector<std::vector<std::string>> rows;
  if (sums.predicted_sent > 0)
    rows.push_back(table_row("communication", sums.predicted_sent, sums.measured_sent));
  if (sums.predicted_disk.read > 0)
    rows.push_back(table_row("disk, read", sums.predicted_disk.read, sums.measured_disk.read));
  if (sums.predicted_disk.written > 0)
    rows.push_back(
        table_row("disk, written", sums.predicted_disk.written, sums.measured_disk.written));
  if (rows.empty()) return "";
  return cat("\nbytes of ", count_text(ranks, "rank"), " in ", count_text(sums.steps, "step"), "\n",
             format_table({"traffic", "predicted", "measured", "error", "rounded"}, rows));
}

std::map<std::string, std::map<std::string, int64_t>> traffic_record(const TrafficSums& sums) {
  std::map<std::string, std::map<std::string, int64_t>> record;
  record["steps"]["counted"] = sums.steps;
  record["communication"]["program"] = sums.predicted_sent;
  if (sums.measured_sent) record["communication"]["transport"] = *sums.measured_sent;
  record["disk_read"] = {{"program", sums.predicted_disk.read}, {"disk", sums.measured_disk.read}};
  record["disk_written"] = {{"program", sums.predicted_disk.written},
                            {"disk", sums.measured_disk.written}};
  return record;
}

}  // namespace ftrun
