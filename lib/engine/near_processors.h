#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

/// Parses a list of numbers as the kernel writes it: "0-3,8,10-11". Empty for any other text.
std::vector<int> parse_processor_list(std::string_view text);

/// Returns the processors of the NUMA node that the device at `bus_id` ("0000:1B:00.0") is attached
/// to, by the files below `sysfs`. Empty where the machine does not say, or has one node.
std::vector<int> processors_near(const std::string& bus_id,
                                 const std::filesystem::path& sysfs = "/sys");

/// Binds the calling thread, and the threads that it starts later, to those processors: memory that
/// they touch first then lies beside the device, and copies do not cross sockets. Returns the
/// processors, none where nothing was done: a thread that is bound already (by a scheduler,
/// taskset, numactl) stays as it is.
std::vector<int> bind_near(const std::string& bus_id, const std::filesystem::path& sysfs = "/sys");

}  // namespace ftrun
