#include "base/machine_info.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <ctime>
#include <initializer_list>
#include <sstream>
#include <vector>

#include "base/control_groups.h"
#include "base/cores.h"

namespace ftrun {
namespace {

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

/// Returns the value of the first line "key : value" with this key; "" if there is no such line.
std::string_view value_of(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    const size_t colon = line.find(':');
    if (colon != std::string_view::npos && trim(line.substr(0, colon)) == key)
      return trim(line.substr(colon + 1));
    text.remove_prefix(line.size() < text.size() ? line.size() + 1 : text.size());
  }
  return {};
}

int64_t leading_number(std::string_view text) {
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

int64_t kib_field_as_bytes(std::string_view text, std::string_view key) {
  return leading_number(value_of(text, key)) * 1024;
}

}  // namespace

std::string parse_cpu_model(std::string_view cpuinfo) {
  // x86 names the field "model name"; ARM and POWER use other names.
  for (const std::string_view key : {"model name", "cpu model", "Model", "cpu", "CPU part"}) {
    const std::string_view value = value_of(cpuinfo, key);
    if (!value.empty()) return std::string(value);
  }
  return {};
}

void parse_meminfo(std::string_view meminfo, MachineInfo& machine) {
  machine.memory_bytes = kib_field_as_bytes(meminfo, "MemTotal");
  machine.memory_available_bytes = kib_field_as_bytes(meminfo, "MemAvailable");
}

ProcessMemory parse_process_status(std::string_view status) {
  return {.peak_resident_bytes = kib_field_as_bytes(status, "VmHWM"),
          .anonymous_bytes = kib_field_as_bytes(status, "RssAnon"),
          .shared_memory_bytes = kib_field_as_bytes(status, "RssShmem"),
          .file_backed_bytes = kib_field_as_bytes(status, "RssFile")};
}

ProcessTimes parse_process_stat(std::string_view stat, int64_t ticks_per_second) {
  // "pid (name) state ...": the name may hold spaces and parentheses, so count from the last ')'.
  const size_t close = stat.rfind(')');
  if (close == std::string_view::npos || ticks_per_second <= 0) return {};
  std::istringstream rest{std::string(stat.substr(close + 1))};
  std::vector<std::string> fields;
  for (std::string field; rest >> field;) fields.push_back(field);
  // Fields are numbered from 1 in proc(5); the first after the name is 3.
  const auto seconds = [&](size_t number) {
    if (fields.size() <= number - 3) return 0.0;
    return static_cast<double>(leading_number(fields[number - 3])) /
           static_cast<double>(ticks_per_second);
  };
  return {
      .user_seconds = seconds(14), .system_seconds = seconds(15), .started_seconds = seconds(22)};
}

MachineInfo read_machine_info() {
  MachineInfo machine;
  utsname names{};
  if (::uname(&names) == 0) {
    machine.hostname = names.nodename;
    machine.kernel = std::string(names.sysname) + " " + names.release;
  }
  machine.cpu_model = parse_cpu_model(read_pseudo_file("/proc/cpuinfo"));
  machine.cores = count_usable_cores();
  parse_meminfo(read_pseudo_file("/proc/meminfo"), machine);
  return machine;
}

ProcessMemory read_process_memory() {
  return parse_process_status(read_pseudo_file("/proc/self/status"));
}

MachineCpuTimes parse_machine_stat(std::string_view stat, int64_t ticks_per_second) {
  // The first line is "cpu user nice system idle iowait irq softirq steal ...", with sums over all
  // cores. The time of virtual machines (guests) is part of user and nice.
  std::istringstream line{std::string(stat.substr(0, stat.find('\n')))};
  std::string name;
  std::array<double, 8> ticks{};
  if (!(line >> name) || name != "cpu" || ticks_per_second <= 0) return {};
  for (double& one : ticks) line >> one;
  if (line.fail()) return {};
  const auto seconds = [&](std::initializer_list<size_t> fields) {
    double sum = 0;
    for (const size_t field : fields) sum += ticks[field];
    return sum / static_cast<double>(ticks_per_second);
  };
  return {.busy_seconds = seconds({0, 1, 2, 5, 6}),
          .stolen_seconds = seconds({7}),
          .total_seconds = seconds({0, 1, 2, 3, 4, 5, 6, 7})};
}

MachineCpuTimes read_machine_times() {
  return parse_machine_stat(read_pseudo_file("/proc/stat"), ::sysconf(_SC_CLK_TCK));
}

ProcessTimes read_process_times() {
  ProcessTimes times =
      parse_process_stat(read_pseudo_file("/proc/self/stat"), ::sysconf(_SC_CLK_TCK));
  timespec now{};
  if (::clock_gettime(CLOCK_BOOTTIME, &now) == 0)
    times.age_seconds = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 -
                        times.started_seconds;
  return times;
}

}  // namespace ftrun
