#pragma once

#include <optional>
#include <string>

namespace ftrun {

/// MeetingPlace specifies where ranks that no common supervisor started find each other: in a file
/// that belongs to this user only, beside the run folder, for as long as they meet.
struct MeetingPlace {
  /// The launcher's name of the job, "" where it gives none: another job's file is not ours.
  std::string job;
  /// The address at which rank 0 serves the store.
  std::string address;
  int port = 0;
  std::string token;
};

/// MeetingFile is rank 0's part: the file exists until this object is destroyed, when all have met.
/// Error(kEnvironment) where it cannot be written, or where a file of that name is something else.
/// A file that an earlier start has left is replaced: its readers must check whether rank 0 still
/// serves there.
class MeetingFile {
 public:
  MeetingFile(std::string path, const MeetingPlace& place);
  ~MeetingFile();
  MeetingFile(const MeetingFile&) = delete;
  MeetingFile& operator=(const MeetingFile&) = delete;

  /// Reads the file; nothing if it does not exist. Error(kEnvironment) where it is something else,
  /// or not a file of this user only: anyone else who could write it could send the ranks
  /// elsewhere.
  static std::optional<MeetingPlace> read(const std::string& path);
  /// Throws Error(kUsage) where the file is no longer the one that this rank wrote: ranks that have
  /// not connected yet would go elsewhere.
  void require_ours() const;

 private:
  const std::string path_;
  const std::string content_;
};

}  // namespace ftrun
