#pragma once

#include <string>
#include <string_view>

namespace ftrun {

/// Returns the vendor as CPUID spells it: "GenuineIntel", "AuthenticAMD", "HygonGenuine".
std::string cpu_vendor();

bool is_intel(std::string_view vendor);
/// Returns whether the vendor is AMD, or makes AMD's CPUs under license.
bool is_amd(std::string_view vendor);

}  // namespace ftrun
