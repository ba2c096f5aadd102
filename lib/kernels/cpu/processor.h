#pragma once

#include <string>
#include <string_view>

namespace ftrun {

/// The vendor as CPUID spells it: "GenuineIntel", "AuthenticAMD", "HygonGenuine".
std::string processor_vendor();

/// AMD, or who makes its processors under license.
bool is_amd(std::string_view vendor);

}  // namespace ftrun
