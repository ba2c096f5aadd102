#include "data/data_file.h"

#include <filesystem>

namespace ftrun {
namespace fs = std::filesystem;

bool is_data_file(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

std::optional<std::string> find_data_file(const std::string& name) {
  for (const char* extension : {"", ".bin", ".jsonl"})
    if (is_data_file(name + extension)) return name + extension;
  return std::nullopt;
}

bool is_jsonl(const std::string& file, DataFormat format) {
  return format == DataFormat::kJsonl ||
         (format == DataFormat::kAuto && fs::path(file).extension() == ".jsonl");
}

}  // namespace ftrun
