#pragma once

#include <string>
#include <vector>

namespace ftrun {

/// Makes the array that exec and posix_spawn take: pointers to `arguments`, which must outlive it,
/// and a final null.
inline std::vector<char*> exec_arguments(const std::vector<std::string>& arguments) {
  std::vector<char*> pointers;
  for (const std::string& argument : arguments)
    pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace ftrun
