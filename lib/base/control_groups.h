#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

/// ControlGroup is a control group that limits this process: its own group or an ancestor of it.
struct ControlGroup {
  /// The group's path as the kernel names it, "/kubepods/pod1"; "/" is the outermost group that is
  /// visible.
  std::string name;
  /// The folder of its files.
  std::string folder;
  /// The version of control groups that its files follow, 1 or 2.
  int version = 2;
};

/// Lists the groups that hold this process and have `controller` ("memory", "cpu", "pids"), each
/// followed by its ancestors, in every mounted hierarchy (v1, v2 and both). `root` is the folder
/// that holds proc and sys: "" outside of tests.
std::vector<ControlGroup> list_control_groups(std::string_view controller,
                                              const std::string& root = "");

/// Reads the whole number at the start of a group's file; returns `default_value` for "max", any
/// other text and a file that cannot be read.
int64_t read_group_number(const std::string& path, int64_t default_value);

/// Reads a file of proc or sys, which reports no size and so cannot be mapped; "" if it cannot be
/// read.
std::string read_pseudo_file(const std::string& path);

}  // namespace ftrun
