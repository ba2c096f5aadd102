#include "base/torch_folder.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

constexpr int64_t kMaxVersionFile = 1 << 16;
constexpr const char* kVariable = "FTRUN_TORCH";

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

/// Reads "2.11.0+cu130" from the line `__version__ = '2.11.0+cu130'`.
std::string version_of(const fs::path& torch) {
  const fs::path file = torch / "version.py";
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return "";
  for (const std::string& line : split(read_file(file.string(), kMaxVersionFile), '\n')) {
    const size_t begin = line.find('\'');
    if (line.starts_with("__version__") && begin != std::string::npos)
      return line.substr(begin + 1, line.find('\'', begin + 1) - begin - 1);
  }
  return "";
}

/// Lists PREFIX/lib/python3.*/site-packages/torch, the newest Python first.
std::vector<fs::path> list_torch_folders(const fs::path& prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(prefix / "lib", error), end; !error && at != end;
       at.increment(error)) {
    if (!at->path().filename().string().starts_with("python3")) continue;
    for (const char* packages : {"site-packages", "dist-packages"})
      if (const fs::path torch = at->path() / packages / "torch"; is_folder(torch / "lib"))
        found.push_back(torch);
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

}  // namespace

std::vector<TorchFolder> list_torch_candidates(const TorchSearch& search) {
  std::vector<fs::path> folders;
  if (const auto given = search.env_lookup(kVariable); given && !given->empty()) {
    folders.emplace_back(*given);
  } else {
    folders.push_back(fs::path(search.prefix) / "torch");
    std::vector<fs::path> environments{search.prefix};
    for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"})
      if (const auto value = search.env_lookup(name); value && !value->empty())
        environments.emplace_back(*value);
    environments.emplace_back("/usr/local");
    for (const fs::path& environment : environments)
      for (fs::path& torch : list_torch_folders(environment)) folders.push_back(std::move(torch));
    // Environment modules of a cluster add LibTorch's folder to this variable.
    for (const std::string& folder : split(search.env_lookup("LD_LIBRARY_PATH").value_or(""), ':'))
      if (const fs::path lib = folder; posix_files().exists(lib / "libtorch_cpu.so"))
        folders.push_back(lib.parent_path());
    if (!search.build_torch.empty()) folders.emplace_back(search.build_torch);
  }
  std::vector<TorchFolder> candidates;
  for (const fs::path& folder : folders)
    if (is_folder(folder / "lib")) candidates.push_back({folder.string(), version_of(folder)});
  return candidates;
}

std::string find_torch(const TorchSearch& search) {
  const std::vector<TorchFolder> candidates = list_torch_candidates(search);
  std::vector<std::string> rejected;
  for (const TorchFolder& candidate : candidates) {
    if (candidate.version == search.required_version) return candidate.folder;
    rejected.push_back(
        cat(candidate.folder, candidate.version.empty() ? "" : cat(" (", candidate.version, ")")));
  }
  const std::string release = search.required_version.substr(0, search.required_version.find('+'));
  throw Error(
      ExitCode::kEnvironment,
      cat("LibTorch ", search.required_version, ", which this ftrun was built with, was not found",
          rejected.empty() ? "" : cat("; found: ", join(rejected, ", "))),
      cat("run pip install torch==", release,
          " in the environment that ftrun is in or that is active, or name the torch package: ",
          kVariable, "=.../site-packages/torch"));
}

std::vector<std::string> library_folders_of(const std::string& torch) {
  const fs::path packages = fs::path(torch).parent_path();
  std::vector<std::string> folders;
  for (const fs::path& folder :
       {fs::path(torch) / "lib", packages / "nvidia/cu13/lib", packages / "nvidia/cudnn/lib",
        packages / "nvidia/nccl/lib", packages / "scipy_openblas32/lib",
        packages.parent_path().parent_path(), fs::path("/usr/local/cuda/lib64")})
    if (is_folder(folder)) folders.push_back(folder.string());
  return folders;
}

}  // namespace ftrun
