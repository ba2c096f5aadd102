#include "base/torch_folder.h"

#include <filesystem>
#include <fstream>
#include <map>

#include <catch2/catch.hpp>

#include "temporary_folder.h"
#include "thrown_error.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

/// Makes a torch package of a version in a folder; returns its path.
std::string make_torch(const fs::path& folder, const std::string& version) {
  fs::create_directories(folder / "lib");
  std::ofstream(folder / "version.py")
      << "from typing import Optional\n\n__version__ = '" << version << "'\ndebug = False\n";
  return folder.string();
}

struct TorchInstallation {
  testing::TemporaryFolder root;
  std::map<std::string, std::string> variables;
  std::string built_with;

  TorchSearch search() const {
    return {"2.11.0+cu130", root / "prefix", built_with, [this](const std::string& name) {
              const auto it = variables.find(name);
              return it == variables.end() ? std::nullopt : std::optional<std::string>(it->second);
            }};
  }
  std::string packages(const std::string& environment, const std::string& python) const {
    return root / (environment + "/lib/" + python + "/site-packages/torch");
  }
};

TEST_CASE(
    "LibTorch of the right version is found beside the program, then in the environment that is "
    "active, then where it was built") {
  TorchInstallation at;
  at.built_with = make_torch(at.root / "build/torch", "2.11.0+cu130");
  CHECK(find_torch(at.search()) == at.built_with);
  const std::string module = make_torch(at.root / "module/torch", "2.11.0+cu130");
  at.variables["LD_LIBRARY_PATH"] = ":/nowhere:" + module + "/lib:";
  CHECK(find_torch(at.search()) == at.built_with);  // the folder has no LibTorch
  std::ofstream(module + "/lib/libtorch_cpu.so") << "";
  CHECK(find_torch(at.search()) == module);
  at.variables["CONDA_PREFIX"] = at.root / "conda";
  const std::string conda = make_torch(at.packages("conda", "python3.12"), "2.11.0+cu130");
  CHECK(find_torch(at.search()) == conda);
  at.variables["VIRTUAL_ENV"] = at.root / "venv";
  make_torch(at.packages("venv", "python3.11"), "2.10.0+cu128");  // another version is ignored
  CHECK(find_torch(at.search()) == conda);
  const std::string venv = make_torch(at.packages("venv", "python3.9"), "2.11.0+cu130");
  CHECK(find_torch(at.search()) == venv);
  const std::string own = make_torch(at.packages("prefix", "python3.13"), "2.11.0+cu130");
  CHECK(find_torch(at.search()) == own);
  const std::string link = make_torch(at.root / "prefix/torch", "2.11.0+cu130");
  CHECK(find_torch(at.search()) == link);
  const std::string given = make_torch(at.root / "given", "2.11.0+cu130");
  at.variables["FTRUN_TORCH"] = given;
  CHECK(find_torch(at.search()) == given);
}

TEST_CASE(
    "a missing LibTorch is reported with what exists instead, and FTRUN_TORCH is the only place "
    "where it is set") {
  TorchInstallation at;
  const std::string remedy =
      " | run pip install torch==2.11.0 in the environment that ftrun is in or that is active, or "
      "name the torch package: FTRUN_TORCH=.../site-packages/torch";
  at.variables["FTRUN_TORCH"] = at.root / "none";
  at.built_with = make_torch(at.root / "build/torch", "2.11.0+cu130");
  const auto failure = [&] { return testing::error_line_of([&] { find_torch(at.search()); }); };
  CHECK(failure() ==
        "5: LibTorch 2.11.0+cu130, which this ftrun was built with, was not found" + remedy);
  const std::string other = make_torch(at.root / "none", "2.11.0+cpu");
  CHECK(failure() ==
        "5: LibTorch 2.11.0+cu130, which this ftrun was built with, was not found; found: " +
            other + " (2.11.0+cpu)" + remedy);
  fs::remove(fs::path(other) / "version.py");
  CHECK(failure().find("; found: " + other + " |") != std::string::npos);
}

TEST_CASE("libraries are searched for in the torch package and in packages installed next to it") {
  TorchInstallation at;
  const std::string torch = make_torch(at.packages("venv", "python3.11"), "2.11.0+cu130");
  fs::create_directories(fs::path(torch).parent_path() / "nvidia/cu13/lib");
  const std::vector<std::string> folders = library_folders_of(torch);
  REQUIRE(folders.size() >= 3);
  CHECK(folders[0] == torch + "/lib");
  CHECK(folders[1] == (fs::path(torch).parent_path() / "nvidia/cu13/lib").string());
  CHECK(folders[2] ==
        at.root / "venv/lib");  // the environment's lib: oneDNN's wheel puts its library there
}

}  // namespace
}  // namespace ftrun
