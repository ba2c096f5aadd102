#include "base/control_groups.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// GroupMount is a mounted hierarchy of control groups.
struct GroupMount {
  /// The group whose folder is `point`: "/", or a container's own group.
  std::string group;
  std::string point;
};

bool list_contains(std::string_view comma_separated, std::string_view name) {
  const std::vector<std::string> names = split(comma_separated, ',');
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Decodes the escapes of mountinfo, which writes spaces, tabs, line ends and backslashes as \040
/// and the like.
std::string unescape(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    int code = 0;
    const char* digits = text.data() + i + 1;
    const bool is_code = text[i] == '\\' && i + 3 < text.size() &&
                         std::from_chars(digits, digits + 3, code, 8).ptr == digits + 3;
    plain += is_code ? static_cast<char>(code) : text[i];
    if (is_code) i += 3;
  }
  return plain;
}

/// Parses a line of mountinfo, "36 35 98:0 /group /mount/point rw,... master:1 - cgroup cgroup
/// rw,memory". Returns nothing unless it is the mount of the hierarchy that has `controller`
/// (version 1) or of the unified hierarchy (version 2).
std::optional<GroupMount> parse_mount(const std::string& line, std::string_view controller,
                                      int version) {
  const size_t dash = line.find(" - ");
  if (dash == std::string::npos) return std::nullopt;
  std::istringstream mount_fields(line.substr(0, dash));
  std::istringstream filesystem_fields(line.substr(dash + 3));
  std::string id, parent, device, group, point, type, source, options;
  mount_fields >> id >> parent >> device >> group >> point;
  filesystem_fields >> type >> source >> options;
  const bool fits =
      version == 2 ? type == "cgroup2" : type == "cgroup" && list_contains(options, controller);
  if (!fits || point.empty()) return std::nullopt;
  return GroupMount{unescape(group), unescape(point)};
}

/// Finds the mounts of the hierarchy; if none is listed, returns the usual mount points.
std::vector<GroupMount> find_mounts(const std::string& root, std::string_view controller,
                                    const std::string& controllers, int version) {
  std::vector<GroupMount> mounts;
  std::istringstream lines(read_pseudo_file(root + "/proc/self/mountinfo"));
  for (std::string line; std::getline(lines, line);)
    if (auto mount = parse_mount(line, controller, version)) mounts.push_back(std::move(*mount));
  if (!mounts.empty()) return mounts;
  if (version == 2) return {{"/", "/sys/fs/cgroup"}, {"/", "/sys/fs/cgroup/unified"}};
  std::vector<GroupMount> usual{{"/", cat("/sys/fs/cgroup/", controllers)}};
  if (controllers != controller) usual.push_back({"/", cat("/sys/fs/cgroup/", controller)});
  return usual;
}

bool is_folder(const std::string& path) {
  std::error_code unseen;
  return std::filesystem::is_directory(path, unseen);
}

/// Returns the path of a group relative to the mounted group. Inside a container the path may name
/// groups that are not visible there. It is then returned unchanged, and the mounted folder is the
/// container's own group.
std::string path_below_mount(const std::string& path, const std::string& mounted) {
  if (mounted == "/" || !path.starts_with(mounted)) return path;
  const std::string rest = path.substr(mounted.size());
  return rest.empty() || rest.front() == '/' ? rest : path;
}

/// Adds the group of `path` and its ancestors up to the mounted group, if their folders are
/// visible.
void add_groups(std::vector<ControlGroup>& groups, const std::string& root, const GroupMount& mount,
                const std::string& path, int version) {
  const std::string above = mount.group == "/" ? "" : mount.group;
  std::string inner = path_below_mount(path, mount.group);
  if (inner.find("/..") != std::string::npos)
    inner.clear();  // the path leads out of this control group namespace
  while (true) {
    if (inner == "/") inner.clear();
    const std::string folder = root + mount.point + inner;
    const std::string name = above + inner;
    if (is_folder(folder)) groups.push_back({name.empty() ? "/" : name, folder, version});
    if (inner.empty()) return;
    inner = inner.substr(0, inner.rfind('/'));
  }
}

}  // namespace

std::vector<ControlGroup> list_control_groups(std::string_view controller,
                                              const std::string& root) {
  std::vector<ControlGroup> groups;
  std::istringstream lines(read_pseudo_file(root + "/proc/self/cgroup"));
  // "0::/path" is version 2, "4:cpu,cpuacct:/path" version 1.
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos ||
        line.substr(second + 1, 1) != "/")
      continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const int version = controllers.empty() ? 2 : 1;
    if (version == 1 && !list_contains(controllers, controller)) continue;
    for (const GroupMount& mount : find_mounts(root, controller, controllers, version))
      add_groups(groups, root, mount, line.substr(second + 1), version);
  }
  return groups;
}

int64_t read_group_number(const std::string& path, int64_t default_value) {
  const std::string text = read_pseudo_file(path);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? value : default_value;
}

std::string read_pseudo_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace ftrun
