#include "engine/near_cores.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// Returns the first line of a file of sysfs; "" if it cannot be read.
std::string read_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Reads a number; -1 for any other text.
int parse_number(std::string_view text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : -1;
}

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// Returns whether the calling thread may run on all of the cores.
bool may_run_on(const std::vector<int>& cores) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (cores.empty() || ::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  return std::ranges::all_of(
      cores, [&](int each) { return each < CPU_SETSIZE && CPU_ISSET(each, &allowed); });
}

}  // namespace

std::vector<int> parse_core_list(std::string_view text) {
  std::vector<int> cores;
  for (const std::string& part : split(text, ',')) {
    const size_t dash = part.find('-');
    const int first = parse_number(std::string_view(part).substr(0, dash));
    const int last =
        dash == std::string::npos ? first : parse_number(std::string_view(part).substr(dash + 1));
    if (first < 0 || last < first || last >= CPU_SETSIZE) return {};
    for (int each = first; each <= last; ++each) cores.push_back(each);
  }
  return cores;
}

std::vector<int> cores_near_device(const std::string& bus_id, const std::filesystem::path& sysfs) {
  const std::filesystem::path nodes = sysfs / "devices/system/node";
  if (parse_core_list(read_line(nodes / "online")).size() < 2) return {};
  const int node =
      parse_number(read_line(sysfs / "bus/pci/devices" / lower_case(bus_id) / "numa_node"));
  if (node < 0) return {};
  return parse_core_list(read_line(nodes / cat("node", node) / "cpulist"));
}

std::vector<int> bind_to_cores_near_device(const std::string& bus_id,
                                           const std::filesystem::path& sysfs) {
  if (!may_run_on(parse_core_list(read_line(sysfs / "devices/system/cpu/online")))) return {};
  const std::vector<int> near = cores_near_device(bus_id, sysfs);
  if (near.empty()) return {};
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (const int each : near) CPU_SET(each, &wanted);
  return ::sched_setaffinity(0, sizeof wanted, &wanted) == 0 ? near : std::vector<int>();
}

}  // namespace ftrun
