#include "base/replace_folder.h"

#include <filesystem>

#include "base/error.h"
#include "base/log.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kReplaced = ".replaced-";

/// The new folder has its name by now, so what is left of the old one is no failure.
void remove_old(FileSystem& files, const std::string& old, const std::string& folder,
                std::string_view mark) {
  try {
    for (const std::string& name : files.list(old))
      if (name != mark) files.remove_all((fs::path(old) / name).string());
    files.remove_all(old);
  } catch (const Error& error) {
    log_warning(cat(folder, ": was replaced; what it was before could not be removed: ", error.message()));
  }
}

/// Returns where the old folder is.
std::string move_aside(FileSystem& files, const std::string& made, const std::string& folder) {
  const std::string aside = unique_name(folder, kReplaced);
  files.rename(folder, aside);
  try {
    files.rename(made, folder);
  } catch (const Error&) {
    try {
      files.rename(aside, folder);
    } catch (const Error&) {  // recover_folders() will
    }
    throw;
  }
  return aside;
}

}  // namespace

std::string parent_folder(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string temporary_beside(const std::string& folder) { return unique_name(folder, kTemporary); }

std::string put_in_place(FileSystem& files, const std::string& made, const std::string& folder) {
  if (files.exists(folder))
    return files.exchange(made, folder) ? made : move_aside(files, made, folder);
  files.rename(made, folder);
  return "";
}

void replace_folder(FileSystem& files, const std::string& made, const std::string& folder,
                    std::string_view mark) {
  const std::string old = put_in_place(files, made, folder);
  files.sync_folder(parent_folder(folder));
  if (!old.empty()) remove_old(files, old, folder, mark);
}

std::optional<Leftover> leftover_of(std::string_view name) {
  if (auto original = origin_of_unique(name, kTemporary)) return Leftover{*std::move(original), false};
  if (auto original = origin_of_unique(name, kReplaced)) return Leftover{*std::move(original), true};
  return std::nullopt;
}

void recover_folders(
    FileSystem& files, const std::string& parent,
    const std::function<bool(const Leftover& leftover, const std::string& path)>& is_ours) {
  if (!files.exists(parent)) return;
  bool changed = false;
  for (const std::string& name : files.list(parent)) {
    const std::string path = (fs::path(parent) / name).string();
    const auto leftover = leftover_of(name);
    if (!leftover || !is_ours(*leftover, path)) continue;
    const std::string original = (fs::path(parent) / leftover->original).string();
    if (leftover->complete && !files.exists(original))
      files.rename(path, original);
    else
      files.remove_all(path);
    changed = true;
  }
  if (changed) files.sync_folder(parent);
}

}  // namespace ftrun
