#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

/// ControlGroup is one control group that limits this process: its own, or one around it.
struct ControlGroup {
  /// The group's path as the kernel names it, "/kubepods/pod1"; "/" is the outermost group that can
  /// be seen.
  std::string name;
  /// The folder of its files.
  std::string folder;
  /// The version of control groups that its files follow, 1 or 2.
  int version = 2;
};

/// The groups that hold this process and have `controller` ("memory", "cpu", "pids"), each followed
/// by those around it, in every hierarchy that is mounted (v1, v2 and both). `root` is the folder
/// that holds proc and sys: "" outside of tests.
std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& root = "");

/// The whole number that a file of a group begins with; `otherwise` for "max", another text and a
/// file that cannot be read.
int64_t read_group_number(const std::string& path, int64_t otherwise);

/// The text of a file of proc or sys, which has no size to be mapped by; "" where it cannot be
/// read.
std::string read_pseudo_file(const std::string& path);

}  // namespace ftrun
