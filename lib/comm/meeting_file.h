#pragma once

#include <optional>
#include <string>

namespace ftrun {

/// MeetingPlace says where ranks that no common supervisor started find each other: a file of this
/// user's alone, beside the run folder, for as long as they meet.
struct MeetingPlace {
  /// The launcher's name of the job, "" where it gives none: another job's file is not ours.
  std::string job;
  /// The address at which rank 0 serves the store.
  std::string address;
  int port = 0;
  std::string token;
};

/// Rank 0's part: the file is there until this goes, which is when all have met.
/// Error(kEnvironment) where it cannot be written, or where a file of that name is something
/// else. One that an earlier start has left is replaced: whether nobody meets by it any
/// more, its reader has to see.
class MeetingFile {
 public:
  MeetingFile(std::string path, const MeetingPlace& place);
  ~MeetingFile();
  MeetingFile(const MeetingFile&) = delete;
  MeetingFile& operator=(const MeetingFile&) = delete;

  /// Reads the file; nothing if it is not there. Error(kEnvironment) where it is something else, or
  /// not a file of this user's alone: who else could write it could send the ranks elsewhere.
  static std::optional<MeetingPlace> read(const std::string& path);
  /// Error(kUsage) where the file is not what this rank wrote any more: ranks that have
  /// not come yet go elsewhere.
  void require_ours() const;

 private:
  const std::string path_;
  const std::string content_;
};

}  // namespace ftrun
