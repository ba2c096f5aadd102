#include "kernels/cpu/cpu_vendor.h"

#include <cpuid.h>

#include <array>
#include <cstring>

namespace ftrun {

std::string cpu_vendor() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  __get_cpuid(0, &a, &b, &c, &d);
  std::array<char, 12> name{};
  std::memcpy(name.data(), &b, 4);
  std::memcpy(name.data() + 4, &d, 4);
  std::memcpy(name.data() + 8, &c, 4);
  return {name.data(), name.size()};
}

bool is_intel(std::string_view vendor) {
  return vendor == "GenuineIntel";
}

bool is_amd(std::string_view vendor) {
  return vendor == "AuthenticAMD" || vendor == "HygonGenuine";
}

}  // namespace ftrun
