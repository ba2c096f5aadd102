#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

/// Parses a list of numbers as the kernel writes it: "0-3,8,10-11". Returns an empty list for any
/// other text.
std::vector<int> parse_core_list(std::string_view text);

/// Returns the cores of the NUMA node that the device at `bus_id` ("0000:1B:00.0") is attached
/// to, by the files below `sysfs`. Returns an empty list where the machine does not report the
/// node, or has only one.
std::vector<int> cores_near_device(const std::string& bus_id,
                                   const std::filesystem::path& sysfs = "/sys");

/// Binds the calling thread, and the threads that it starts later, to cores_near_device(bus_id,
/// sysfs): memory that they touch first is then near the device, and copies do not cross sockets.
/// Returns these cores, or none if it bound nothing: a thread that is bound already (by a
/// scheduler, taskset, numactl) is left as it is.
std::vector<int> bind_to_cores_near_device(const std::string& bus_id,
                                           const std::filesystem::path& sysfs = "/sys");

}  // namespace ftrun
