#include "base/new_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "base/written_path.h"

namespace ftrun {
namespace {

/// Renames a file to an unused name or, if that fails, makes a hard link of that name; returns 0,
/// or errno. File systems that do not support one of these calls support the other.
int move_to_new(const std::string& from, const std::string& to) {
  const FolderEntry source = open_parent(from), target = open_parent(to);
  if (!source.folder || !target.folder) return errno;
  if (::renameat2(source.folder.get(), source.name.c_str(), target.folder.get(),
                  target.name.c_str(), RENAME_NOREPLACE) == 0)
    return 0;
  if (errno == EEXIST) return errno;
  return ::linkat(source.folder.get(), source.name.c_str(), target.folder.get(),
                  target.name.c_str(), 0) == 0
             ? 0
             : errno;
}

}  // namespace

void write_new_file(const std::string& path, std::string_view content) {
  FileSystem& files = posix_files();
  const std::string temporary = make_unique_name(path);
  int error_number = 0;
  try {
    write_synced(files, temporary, std::as_bytes(std::span(content)));
    error_number = move_to_new(temporary, path);
  } catch (...) {
    remove_tree(temporary);
    throw;
  }
  remove_tree(temporary);
  if (error_number == EEXIST)
    throw Error(ExitCode::kUsage, cat(path, ": already exists, and is not overwritten"),
                "give another name, or move it away");
  if (error_number != 0)
    throw Error(ExitCode::kEnvironment,
                cat(path, ": a new file cannot be made: ", errno_text(error_number)),
                "give the name of a file in another folder");
  files.sync_folder(std::filesystem::path(path).parent_path().string());
}

}  // namespace ftrun
