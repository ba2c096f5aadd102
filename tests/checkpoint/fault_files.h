#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "base/file.h"

namespace ftrun::testing {

/// Survival says what is on a machine's disk after a power cut. kSyncedOnly keeps exactly the
/// synced data; a file system may also have written more, in any order, as the other values do.
enum class Survival {
  kSyncedOnly,       // entries of synced folders, bytes of synced files
  kEntriesAndZeros,  // all entries; bytes that were not synced are zeros
  kEntriesShort,     // all entries; files cut to what was synced
  kEverything,       // a killed process: the machine stayed up
  // all entries; each sector that was not synced is either written, zeros, or as it was synced
  kTornSectors,
  kRandom,  // a random choice for each file and each change of a folder
};

/// FaultFileSystem is a file system on a real folder. It counts calls, and can make the k-th call
/// fail or cut the power there. It models which data survive: a file's bytes after sync(), and a
/// folder's entries after sync_folder(). Reads also see unsynced data, as on a running machine.
/// Several threads may use it.
class FaultFileSystem : public FileSystem {
 public:
  /// Makes a file system below `root`, which exists; its contents count as durable.
  explicit FaultFileSystem(const std::string& root);

  /// Makes call number `k` (counted from 0, beginning now) fail with this errno. A failing write
  /// writes half its bytes.
  void fail_call(int64_t k, int error_number);
  /// Makes the next call of kind `what` ("reserve", "sync", ...) on a path that contains `part`
  /// fail with this errno, whichever thread makes it.
  void fail_next(const std::string& what, const std::string& part, int error_number);
  /// Cuts the power at call number `k`: this call and all later ones throw, and nothing reaches the
  /// disk.
  void cut_power_at(int64_t k);
  /// Flips one bit in each write to a file whose path contains `part`.
  void corrupt_writes(const std::string& part) { corrupted_path_part_ = part; }
  /// Makes syncs do nothing, to show that the tests would notice a missing sync.
  void ignore_syncs() { ignore_syncs_ = true; }
  /// Makes the file system unable to swap two names.
  void refuse_exchange() { can_exchange_ = false; }
  int64_t calls() const { return calls_; }
  /// Returns the names of all calls since the last restart, for messages.
  const std::vector<std::string>& history() const { return history_; }
  /// Writes the surviving data to the real folder, and resets counts and faults.
  void restart(Survival survival, uint64_t seed = 0);
  /// Restores the state of the power cut before the last restart, so that another selection of data
  /// can survive it.
  void rewind_to_cut() { tree_ = tree_at_power_cut_; }
  void set_free_bytes(int64_t bytes) { free_bytes_ = bytes; }

  std::unique_ptr<WritableFile> create(const std::string& path) override;
  void make_folder(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  bool swap_names(const std::string& a, const std::string& b) override;
  void remove_all(const std::string& path) override;
  void sync_folder(const std::string& path) override;
  std::vector<std::string> list(const std::string& folder) override;
  bool exists(const std::string& path) override;
  int64_t free_bytes(const std::string& path) override;

 private:
  friend class FaultFile;
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  using Entries = std::map<std::string, NodePtr>;
  struct Node {
    bool is_folder = false;
    std::string bytes, durable_bytes;
    Entries entries, durable_entries;
    /// The changes of the entries since the folder was synced. Any combination of them may survive,
    /// but each change is atomic (a rename is one change). A null node is a removed name.
    std::vector<Entries> unsynced;
  };
  static void change(const NodePtr& folder, const Entries& changes);
  static void apply(Entries& entries, const Entries& changes);

  /// Counts a call; throws if the call is to fail. `partial` does half of the call's work, for a
  /// call that fails halfway.
  void enter(const std::string& what, const std::string& path);
  bool fails_now() const { return calls_ == fail_at_; }
  NodePtr load(const std::string& path);
  NodePtr find(const std::string& path);
  std::pair<NodePtr, std::string> parent_of(const std::string& path);
  void put_back(const NodePtr& node, const std::string& path, Survival survival);
  bool flip_coin() { return (random_() & 1) != 0; }
  std::string torn_bytes(const Node& node);

  std::mutex mutex_;
  std::string root_;
  NodePtr tree_;
  NodePtr tree_at_power_cut_;
  int64_t calls_ = 0;
  int64_t fail_at_ = -1;
  int64_t power_cut_at_ = -1;
  int error_number_ = 0;
  std::string failing_call_kind_, failing_path_part_;
  bool ignore_syncs_ = false;
  bool can_exchange_ = true;
  std::string corrupted_path_part_;
  int64_t free_bytes_ = int64_t{1} << 40;
  std::vector<std::string> history_;
  std::mt19937_64 random_;
};

}  // namespace ftrun::testing
