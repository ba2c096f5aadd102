#include "cluster/visible_gpus.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <limits>

#include "base/text.h"

namespace ftrun {
namespace {

/// Returns whether a file in /dev is that of a GPU: "nvidia0" is; "nvidiactl" and "nvidia-uvm" are
/// not.
bool names_gpu(const std::string& file) {
  constexpr std::string_view kPrefix = "nvidia";
  return file.starts_with(kPrefix) && file.size() > kPrefix.size() &&
         std::all_of(file.begin() + kPrefix.size(), file.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
}

int count_device_files(const std::string& devices) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path folder(devices);
  if (!fs::exists(folder / "nvidiactl", error)) return fs::exists(folder / "dxg", error) ? 1 : 0;
  int count = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (names_gpu(entry.path().filename().string())) ++count;
  return count;
}

/// Counts the devices that CUDA_VISIBLE_DEVICES names. CUDA stops reading at the first invalid name
/// (such as "-1"), and so does this function.
int count_listed_devices(const std::string& list) {
  int count = 0;
  for (const std::string& name : split(list, ',')) {
    if (name.empty() || name.starts_with("-") || name == "NoDevFiles" || name == "none" ||
        name == "void")
      break;
    ++count;
  }
  return count;
}

}  // namespace

int count_visible_gpus(const EnvLookup& env, const std::string& devices) {
  const int present = count_device_files(devices);
  const auto named = env("CUDA_VISIBLE_DEVICES");
  // The slices of a GPU (MIG) are named one by one, so there may be more names than files.
  return present == 0 || !named ? present : count_listed_devices(*named);
}

}  // namespace ftrun
