#include "fault_files.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "test_support.h"

namespace ftrun::testing {
namespace fs = std::filesystem;

class FaultFile : public WritableFile {
 public:
  FaultFile(FaultFileSystem& files, std::string path, FaultFileSystem::NodePtr node)
      : files_(files),
        path_(std::move(path)),
        node_(std::move(node)),
        real_(posix_files().create(path_)) {}

  void write(const void* data, size_t size) override {
    put("write", position_, data, size);
    position_ += static_cast<int64_t>(size);
  }
  void write_at(int64_t offset, const void* data, size_t size) override {
    put("write_at", offset, data, size);
  }
  void reserve(int64_t size) override {
    const std::lock_guard lock(files_.mutex_);
    files_.enter("reserve", path_);
    grow(static_cast<size_t>(size));
    real_->reserve(size);
  }
  void sync() override {
    const std::lock_guard lock(files_.mutex_);
    files_.enter("sync", path_);
    if (!files_.ignore_syncs_) node_->durable_bytes = node_->bytes;
  }
  void close() override {
    const std::lock_guard lock(files_.mutex_);
    files_.enter("close", path_);
    real_->close();
  }

 private:
  void grow(size_t size) {
    if (node_->bytes.size() < size) node_->bytes.resize(size, '\0');
  }
  void put(const char* what, int64_t offset, const void* data, size_t size) {
    const std::lock_guard lock(files_.mutex_);
    if (files_.fails_now()) store(offset, data, size / 2);
    files_.enter(what, path_);
    store(offset, data, size);
  }
  void store(int64_t offset, const void* data, size_t size) {
    if (size == 0) return;
    const auto at = static_cast<size_t>(offset);
    grow(at + size);
    node_->bytes.replace(at, size, static_cast<const char*>(data), size);
    std::string bytes(static_cast<const char*>(data), size);
    const std::string& part = files_.corrupted_path_part_;
    if (!part.empty() && path_.find(part) != std::string::npos) bytes[size / 2] ^= 4;
    real_->write_at(offset, bytes.data(), size);
  }

  FaultFileSystem& files_;
  std::string path_;
  FaultFileSystem::NodePtr node_;
  std::unique_ptr<WritableFile> real_;
  int64_t position_ = 0;
};

FaultFileSystem::FaultFileSystem(const std::string& root) : root_(root), tree_(load(root)) {}

FaultFileSystem::NodePtr FaultFileSystem::load(const std::string& path) {
  auto node = std::make_shared<Node>();
  node->is_folder = fs::is_directory(path);
  if (!node->is_folder) {
    node->bytes = node->durable_bytes = read_text(path);
    return node;
  }
  for (const std::string& name : posix_files().list(path))
    node->entries[name] = load(path + "/" + name);
  node->durable_entries = node->entries;
  return node;
}

void FaultFileSystem::fail_call(int64_t k, int error_number) {
  fail_at_ = calls_ + k;
  error_number_ = error_number;
}

void FaultFileSystem::fail_next(const std::string& what, const std::string& part,
                                int error_number) {
  failing_call_kind_ = what;
  failing_path_part_ = part;
  error_number_ = error_number;
}

void FaultFileSystem::cut_power_at(int64_t k) {
  power_cut_at_ = calls_ + k;
}

void FaultFileSystem::enter(const std::string& what, const std::string& path) {
  const int64_t number = calls_++;
  history_.push_back(what + " " + path);
  if (power_cut_at_ >= 0 && number >= power_cut_at_)
    throw Error(ExitCode::kEnvironment, "the power is off", "wait");
  const bool is_named =
      what == failing_call_kind_ && path.find(failing_path_part_) != std::string::npos;
  if (is_named) failing_call_kind_.clear();
  if (number == fail_at_ || is_named)
    throw Error(ExitCode::kEnvironment,
                cat(path, ": ", what, " failed: ", errno_text(error_number_)), "free space");
}

FaultFileSystem::NodePtr FaultFileSystem::find(const std::string& path) {
  NodePtr node = tree_;
  if (path == root_) return node;
  for (const std::string& name : split(path.substr(root_.size() + 1), '/')) {
    const auto next = node->entries.find(name);
    if (next == node->entries.end()) return nullptr;
    node = next->second;
  }
  return node;
}

std::pair<FaultFileSystem::NodePtr, std::string> FaultFileSystem::parent_of(
    const std::string& path) {
  return {find(fs::path(path).parent_path().string()), fs::path(path).filename().string()};
}

void FaultFileSystem::apply(Entries& entries, const Entries& changes) {
  for (const auto& [name, node] : changes)
    if (node == nullptr) entries.erase(name);
  for (const auto& [name, node] : changes)
    if (node != nullptr) entries[name] = node;
}

void FaultFileSystem::change(const NodePtr& folder, const Entries& changes) {
  apply(folder->entries, changes);
  folder->unsynced.push_back(changes);
}

std::unique_ptr<WritableFile> FaultFileSystem::create(const std::string& path) {
  const std::lock_guard lock(mutex_);
  enter("create", path);
  const auto [folder, name] = parent_of(path);
  const auto known = folder->entries.find(name);
  const NodePtr node = known == folder->entries.end() ? std::make_shared<Node>() : known->second;
  if (known == folder->entries.end()) change(folder, {{name, node}});
  node->bytes.clear();
  return std::make_unique<FaultFile>(*this, path, node);
}

void FaultFileSystem::make_folder(const std::string& path) {
  const std::lock_guard lock(mutex_);
  enter("make_folder", path);
  posix_files().make_folder(path);
  NodePtr node = tree_;
  if (path == root_) return;
  for (const std::string& name : split(path.substr(root_.size() + 1), '/')) {
    if (node->entries.count(name) == 0) {
      const auto made = std::make_shared<Node>();
      made->is_folder = true;
      change(node, {{name, made}});
    }
    node = node->entries.at(name);
  }
}

void FaultFileSystem::rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  enter("rename", to);
  posix_files().rename(from, to);
  const auto [source, old_name] = parent_of(from);
  const auto [target, new_name] = parent_of(to);
  if (source != target) throw Error(ExitCode::kBug, "a rename across folders is not modeled", "-");
  change(source, {{new_name, source->entries.at(old_name)}, {old_name, nullptr}});
}

bool FaultFileSystem::swap_names(const std::string& a, const std::string& b) {
  const std::lock_guard lock(mutex_);
  enter("exchange", b);
  if (!can_exchange_) return false;
  if (!posix_files().swap_names(a, b))
    throw Error(ExitCode::kBug, "these tests need a file system that exchanges", "-");
  const auto [first, first_name] = parent_of(a);
  const auto [second, second_name] = parent_of(b);
  if (first != second)
    throw Error(ExitCode::kBug, "an exchange across folders is not modeled", "-");
  change(first, {{first_name, first->entries.at(second_name)},
                 {second_name, first->entries.at(first_name)}});
  return true;
}

void FaultFileSystem::remove_all(const std::string& path) {
  const std::lock_guard lock(mutex_);
  enter("remove_all", path);
  posix_files().remove_all(path);
  const auto [folder, name] = parent_of(path);
  if (folder != nullptr && folder->entries.count(name) > 0) change(folder, {{name, nullptr}});
}

void FaultFileSystem::sync_folder(const std::string& path) {
  const std::lock_guard lock(mutex_);
  enter("sync_folder", path);
  const NodePtr node = find(path);
  if (node == nullptr || ignore_syncs_) return;
  node->durable_entries = node->entries;
  node->unsynced.clear();
}

std::vector<std::string> FaultFileSystem::list(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  enter("list", folder);
  return posix_files().list(folder);
}

bool FaultFileSystem::exists(const std::string& path) {
  const std::lock_guard lock(mutex_);
  enter("exists", path);
  return posix_files().exists(path);
}

int64_t FaultFileSystem::free_bytes(const std::string&) {
  return free_bytes_;
}

void FaultFileSystem::restart(Survival survival, uint64_t seed) {
  random_.seed(seed);
  for (const std::string& name : posix_files().list(root_)) fs::remove_all(root_ + "/" + name);
  put_back(tree_, root_, survival);
  tree_at_power_cut_ = std::exchange(tree_, load(root_));
  calls_ = 0;
  fail_at_ = power_cut_at_ = -1;
  history_.clear();
}

std::string FaultFileSystem::torn_bytes(const Node& node) {
  constexpr size_t kSector = 512;
  std::string bytes = node.bytes;
  for (size_t at = 0; at < bytes.size(); at += kSector) {
    const size_t size = std::min(kSector, bytes.size() - at);
    if (node.durable_bytes.size() >= at + size &&
        node.durable_bytes.compare(at, size, bytes, at, size) == 0)
      continue;
    const uint64_t what = random_() % 3;
    if (what == 0) bytes.replace(at, size, size, '\0');
    if (what == 1 && node.durable_bytes.size() >= at + size)
      bytes.replace(at, size, node.durable_bytes, at, size);
  }
  return bytes;
}

void FaultFileSystem::put_back(const NodePtr& node, const std::string& path, Survival survival) {
  const bool random = survival == Survival::kRandom;
  if (!node->is_folder) {
    Survival how = survival;
    if (random) how = static_cast<Survival>(random_() % 5);
    std::string bytes = how == Survival::kTornSectors  ? torn_bytes(*node)
                        : how == Survival::kEverything ? node->bytes
                                                       : node->durable_bytes;
    if (how == Survival::kEntriesAndZeros) bytes.resize(node->bytes.size(), '\0');
    write_text(path, bytes);
    return;
  }
  fs::create_directories(path);
  Entries entries = node->durable_entries;
  for (const Entries& changes : node->unsynced)
    if (survival != Survival::kSyncedOnly && (!random || flip_coin())) apply(entries, changes);
  for (const auto& [name, child] : entries) put_back(child, path + "/" + name, survival);
}

}  // namespace ftrun::testing
