#include "base/installed_module.h"

#include <dlfcn.h>

#include <filesystem>

namespace ftrun {

std::string installed_module_path(const void* symbol, const std::string& file) {
  Dl_info self{};
  ::dladdr(symbol, &self);
  const std::filesystem::path folder = std::filesystem::absolute(self.dli_fname).parent_path();
  const std::filesystem::path beside = folder / file;
  return (std::filesystem::exists(beside) ? beside : folder.parent_path() / "lib" / file).string();
}

}  // namespace ftrun
