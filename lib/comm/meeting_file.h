#pragma once

#include <optional>
#include <string>

namespace ftrun {

/// Where ranks that no common supervisor started find each other: a file of this user's alone, beside the run
/// folder, for as long as they meet.
struct MeetingPlace {
  /// The launcher's name of the job, "" where it gives none: another job's file is not ours.
  std::string job;
  int port = 0;
  std::string token;
};

/// Rank 0's part: the file is there until this goes, which is when all have met. Error(kEnvironment) where it
/// cannot be written, or where a file of that name is something else.
class MeetingFile {
 public:
  MeetingFile(std::string path, const MeetingPlace& place);
  ~MeetingFile();
  MeetingFile(const MeetingFile&) = delete;
  MeetingFile& operator=(const MeetingFile&) = delete;

  /// Nothing where it is not there yet, or is another job's. Error(kEnvironment) where it is not a file of this
  /// user's alone: who else could write it could send the ranks elsewhere.
  static std::optional<MeetingPlace> read(const std::string& path, const std::string& job);

 private:
  const std::string path_;
  const std::string content_;
};

}  // namespace ftrun
