#include "engine/step_traffic.h"

#include <sstream>

#include "base/amount_text.h"
#include "base/table.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// Stands for a count that the backend could not measure.
constexpr int64_t kUnseen = -1;

DiskTraffic difference(const DiskTraffic& now, const DiskTraffic& before) {
  return {now.read - before.read, now.written - before.written};
}

void add_to(DiskTraffic& sum, const DiskTraffic& part) {
  sum.read += part.read;
  sum.written += part.written;
}

std::vector<std::string> table_row(const char* what, int64_t program,
                                   std::optional<int64_t> observed) {
  if (!observed) return {what, std::to_string(program), "-", "-", ""};
  return {what, std::to_string(program), std::to_string(*observed),
          percent_error_text(*observed, program), human_bytes(*observed)};
}

}  // namespace

void TrafficSums::add(const TrafficSums& other) {
  steps = other.steps;
  sent_by_program += other.sent_by_program;
  if (transported && other.transported)
    *transported += *other.transported;
  else
    transported.reset();
  add_to(disk_by_program, other.disk_by_program);
  add_to(disk, other.disk);
}

StepTraffic::StepTraffic(const TrainingSetup& setup)
    : setup_(setup),
      sent_(program_traffic(setup.train_plan().program).bytes),
      disk_(disk_traffic(setup.train_plan().program)) {}

StepTraffic::Observed StepTraffic::observe() const {
  Observed now;
  for (const Communicator* group : setup_.communicators().distinct()) {
    const std::optional<int64_t> bytes = group->transported_bytes();
    now.transported =
        bytes && now.transported ? std::optional(*now.transported + *bytes) : std::nullopt;
  }
  if (const SwapFile* swap = setup_.memory().swap())
    now.disk = {swap->counters().bytes_read, swap->counters().bytes_written};
  return now;
}

void StepTraffic::begin() {
  before_ = observe();
}

void StepTraffic::end(bool finite) {
  if (!finite) return;
  const Observed now = observe();
  ++sums_.steps;
  sums_.sent_by_program += sent_;
  if (sums_.transported && now.transported && before_.transported)
    *sums_.transported += *now.transported - *before_.transported;
  else
    sums_.transported.reset();
  add_to(sums_.disk_by_program, disk_);
  add_to(sums_.disk, difference(now.disk, before_.disk));
}

std::string encode_traffic(const TrafficSums& sums) {
  return cat(sums.steps, " ", sums.sent_by_program, " ", sums.transported.value_or(kUnseen), " ",
             sums.disk_by_program.read, " ", sums.disk_by_program.written, " ", sums.disk.read, " ",
             sums.disk.written);
}

TrafficSums decode_traffic(const std::string& text) {
  TrafficSums sums;
  std::istringstream fields(text);
  fields >> sums.steps >> sums.sent_by_program >> *sums.transported >> sums.disk_by_program.read >>
      sums.disk_by_program.written >> sums.disk.read >> sums.disk.written;
  if (sums.transported == kUnseen) sums.transported.reset();
  return sums;
}

std::string traffic_text(const TrafficSums& sums, int ranks) {
  std::vector<std::vector<std::string>> rows;
  if (sums.sent_by_program > 0)
    rows.push_back(table_row("communication", sums.sent_by_program, sums.transported));
  if (sums.disk_by_program.read > 0)
    rows.push_back(table_row("disk, read", sums.disk_by_program.read, sums.disk.read));
  if (sums.disk_by_program.written > 0)
    rows.push_back(table_row("disk, written", sums.disk_by_program.written, sums.disk.written));
  if (rows.empty()) return "";
  return cat("\nbytes of ", count_text(ranks, "rank"), " in ", count_text(sums.steps, "step"), "\n",
             format_table({"traffic", "by the program", "observed", "error", "measured"}, rows));
}

std::map<std::string, std::map<std::string, int64_t>> traffic_record(const TrafficSums& sums) {
  std::map<std::string, std::map<std::string, int64_t>> record;
  record["steps"]["counted"] = sums.steps;
  record["communication"]["program"] = sums.sent_by_program;
  if (sums.transported) record["communication"]["transport"] = *sums.transported;
  record["disk_read"] = {{"program", sums.disk_by_program.read}, {"disk", sums.disk.read}};
  record["disk_written"] = {{"program", sums.disk_by_program.written}, {"disk", sums.disk.written}};
  return record;
}

}  // namespace ftrun
