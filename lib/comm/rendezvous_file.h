#pragma once

#include <optional>
#include <string>

namespace ftrun {

/// RendezvousFileContent is how ranks that were not started by a common supervisor find each other:
/// the contents of a file next to the run folder, readable only by this user, that exists until all
/// ranks have met.
struct RendezvousFileContent {
  /// The launcher's name of the job, "" if it gives none. A file of another job is ignored.
  std::string job;
  /// The address at which rank 0 serves the store.
  std::string address;
  int port = 0;
  std::string token;
};

/// RendezvousFile is the file that rank 0 writes; it exists until this object is destroyed, when
/// all ranks have met. Throws Error(kEnvironment) if the file cannot be written, or if a file of
/// that name is not a rendezvous file. A file that an earlier start has left is replaced, so
/// readers must check whether rank 0 still serves at the address.
class RendezvousFile {
 public:
  RendezvousFile(std::string path, const RendezvousFileContent& content);
  ~RendezvousFile();
  RendezvousFile(const RendezvousFile&) = delete;
  RendezvousFile& operator=(const RendezvousFile&) = delete;

  /// Reads the file; nothing if it does not exist. Throws Error(kEnvironment) if it is not a
  /// rendezvous file, or if other users can write it: they could send the ranks elsewhere.
  static std::optional<RendezvousFileContent> read(const std::string& path);
  /// Throws Error(kUsage) if the file is no longer the one that this rank wrote: ranks that have
  /// not connected yet would connect to another job.
  void check_not_replaced() const;

 private:
  const std::string path_;
  const std::string content_;
};

}  // namespace ftrun
