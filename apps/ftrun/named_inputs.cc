#include "named_inputs.h"

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/hub_cache.h"
#include "base/text.h"
#include "config/load.h"
#include "data/data_file.h"
#include "data/token_dataset.h"
#include "inputs/config_problem.h"
#include "report/run_folder.h"
#include "report/run_manifest.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

/// RecordedCommit is a commit that an earlier start of the run recorded.
struct RecordedCommit {
  std::string repository;
  std::string commit;
  HubKind kind = HubKind::kModel;
};

/// Returns whether a revision is a full commit hash, which never changes its meaning.
bool is_commit(const std::string& revision) {
  constexpr size_t kDigits = 40;
  return revision.size() == kDigits && is_hexadecimal(revision);
}

/// Adds the commits of the data sets to which a recorded list of files belongs.
void add_data_commits(const std::vector<std::string>& files, std::vector<RecordedCommit>& commits) {
  for (const std::string& file : files)
    if (const auto from = parse_hub_file(file))
      commits.push_back({from->name.repository, from->name.revision, HubKind::kDataset});
}

/// Reads the commits that the run in `output_dir` recorded. Returns none if no run can be read; the
/// resume itself reports that.
std::vector<RecordedCommit> read_recorded_commits(const std::string& output_dir) {
  std::vector<RecordedCommit> commits;
  const std::string path = RunPaths(output_dir).manifest();
  if (output_dir.empty() || !posix_files().exists(path)) return commits;
  try {
    const RunManifest manifest = read_manifest(path);
    const auto name = parse_hub_name(manifest.model.path);
    if (name && !manifest.model.commit.empty())
      commits.push_back({name->repository, manifest.model.commit, HubKind::kModel});
    const Config recorded_config_of_run = recorded_config(manifest.config);
    add_data_commits(recorded_config_of_run.data.train, commits);
    add_data_commits(recorded_config_of_run.data.validation, commits);
  } catch (const Error&) {
    return {};
  }
  return commits;
}

/// Finds the commit that a resumed run keeps for `name`; "" if the run recorded none, or if the
/// name gives a full commit.
std::string find_recorded_commit(const HubName& name, HubKind kind,
                                 const std::vector<RecordedCommit>& commits) {
  if (is_commit(name.revision)) return "";
  const auto commit =
      std::find_if(commits.begin(), commits.end(), [&](const RecordedCommit& recorded) {
        return recorded.repository == name.repository && recorded.kind == kind;
      });
  return commit == commits.end() ? "" : commit->commit;
}

/// Finds the commit to which a name refers in the cache now; "" if the cache has none.
std::string find_cached_commit(const std::string& hub_name, HubKind kind) {
  try {
    return find_hub_folder(hub_name, "", process_environment(), kind).commit;
  } catch (const Error&) {
    return "";
  }
}

Problem moved_notice(const Origins& origins, const char* key, const std::string& hub_name,
                     const std::string& repository, const std::string& cached_commit,
                     const std::string& recorded_commit) {
  return notice_about(
      origins, key,
      cat(key, ": ", hub_name, " is commit ", cached_commit,
          " in the Hugging Face cache by now; the run continues with ", recorded_commit,
          ", which it began with"),
      cat("write ", repository, "@", cached_commit, " to continue with the newer one"));
}

/// Makes the error for a run whose recorded commit is no longer in the cache: it does not continue
/// with another commit.
Error removed_commit_error(const std::string& hub_name, const std::string& repository, HubKind kind,
                           const std::string& cached_commit, const std::string& recorded_commit) {
  const std::string option = kind == HubKind::kDataset ? " --repo-type dataset" : "";
  return {ExitCode::kBadInput,
          cat(hub_name, ": the run began with commit ", recorded_commit,
              ", which the Hugging Face cache no longer has",
              cached_commit.empty() ? "" : cat(" (it has ", cached_commit, ")")),
          cat("download it: hf download ", repository, option, " --revision ", recorded_commit,
              cached_commit.empty()
                  ? ""
                  : cat("; or write ", repository, "@", cached_commit,
                        ", which is then compared with what the run was trained on"))};
}

/// NameLookup finds the commit for each Hub name: the current one, or the one that a resumed run
/// keeps.
class NameLookup {
 public:
  NameLookup(std::vector<RecordedCommit> commits, NamedInputs& inputs)
      : commits_(std::move(commits)), inputs_(inputs) {}

  /// Returns the name with the commit that must be used, or unchanged if the cache has no commit.
  /// Throws Error(kBadInput) if the run's commit is gone.
  std::string pin(const char* key, const std::string& hub_name, HubKind kind) {
    const HubName name = *parse_hub_name(hub_name);
    const std::string cached_commit = find_cached_commit(hub_name, kind),
                      recorded_commit = find_recorded_commit(name, kind, commits_);
    if (recorded_commit.empty() || recorded_commit == cached_commit)
      return cached_commit.empty() ? hub_name : cat(name.repository, "@", cached_commit);
    const std::string older = cat(name.repository, "@", recorded_commit);
    if (find_cached_commit(older, kind).empty())
      throw removed_commit_error(hub_name, name.repository, kind, cached_commit, recorded_commit);
    if (!cached_commit.empty())
      inputs_.notices.push_back(moved_notice(inputs_.config.origins, key, hub_name, name.repository,
                                             cached_commit, recorded_commit));
    return older;
  }

 private:
  const std::vector<RecordedCommit> commits_;
  NamedInputs& inputs_;
};

/// Returns whether a path in data.train may be the name of a Hub data set. No file or folder may
/// have that name. In addition either the cache holds the data set, or the name does not look like
/// a file and its folder does not exist.
bool may_be_data_set(const std::string& path) {
  std::error_code error;
  if (!parse_hub_name(path) || fs::exists(fs::symlink_status(path, error)) || find_data_file(path))
    return false;
  if (is_in_hub_cache(path, HubKind::kDataset)) return true;
  for (const char* extension : {".bin", ".idx", ".jsonl", ".json", ".txt", ".csv", ".parquet"})
    if (path.ends_with(extension)) return false;
  return !fs::is_directory(fs::path(path).parent_path(), error);
}

/// Refuses a data set whose snapshot does not hold the file of a split, as prepare_data.py writes
/// it.
void check_split(const std::string& hub_name, const std::string& pinned, const std::string& split) {
  const std::string folder = find_data_set(pinned).folder, prefix = cat(folder, "/", split);
  if (find_data_file(prefix)) return;
  for (const char* extension : {".bin", ".jsonl"}) {
    std::error_code error;
    if (fs::is_symlink(fs::symlink_status(prefix + extension, error)))
      throw Error(
          ExitCode::kBadInput,
          cat(hub_name, ": its download is not complete: ", folder, " has no ", split, extension),
          cat("download the missing files: ", hub_download_line(folder)));
  }
  throw Error(ExitCode::kBadInput,
              cat(hub_name, ": the data set in the Hugging Face cache, ", folder, ", has neither ",
                  split, ".bin nor ", split, ".jsonl, tokens that a model can be trained on"),
              cat("make them of texts and conversations: scripts/prepare_data.py --tokenizer MODEL "
                  "--out FOLDER ",
                  hub_name, "; then name FOLDER/", split));
}

void find_model(NameLookup& lookup, NamedInputs& inputs) {
  const auto path = inputs.config.get<std::string>("model.path");
  std::error_code error;
  if (!parse_hub_name(path) || fs::exists(fs::symlink_status(path, error))) return;
  try {
    const HubName pinned = *parse_hub_name(lookup.pin("model.path", path, HubKind::kModel));
    if (is_commit(pinned.revision)) inputs.config.model_commit = pinned.revision;
  } catch (const Error& gone) {
    inputs.model_error = gone;
  }
}

/// Replaces the revision in "owner/name@revision/file" by its commit; returns "" if the path has
/// another form, or the cache has no such revision.
std::string pin_file(const char* key, const std::string& path, NameLookup& lookup) {
  const std::optional<HubFile> file = parse_hub_file(path);
  if (!file) return "";
  const std::string hub_name = file->name.full_name();
  if (find_cached_commit(hub_name, HubKind::kDataset).empty()) return "";
  return cat(lookup.pin(key, hub_name, HubKind::kDataset), "/", file->file);
}

/// Replaces each name of a data set at a config key by the path of a file with its commit.
void find_data(const char* key, NameLookup& lookup, NamedInputs& inputs) {
  auto paths = inputs.config.get<std::vector<std::string>>(key);
  if (paths.empty()) return;
  const std::string split = std::string_view(key) == "data.train" ? "train" : "validation";
  for (std::string& path : paths) {
    if (!may_be_data_set(path)) continue;
    try {
      if (const std::string file = pin_file(key, path, lookup); !file.empty()) {
        path = file;
        continue;
      }
      const std::string pinned = lookup.pin(key, path, HubKind::kDataset);
      check_split(path, pinned, split);
      path = cat(pinned, "/", split);
    } catch (const Error& error) {
      inputs.data_errors.emplace_back(key, error);
    }
  }
  inputs.config.write(Schema::get().at(key), std::move(paths), inputs.config.origins.position(key));
}

}  // namespace

NamedInputs find_named_inputs(WrittenConfig config, bool resumes) {
  NamedInputs inputs;
  inputs.config = std::move(config);
  std::vector<RecordedCommit> recorded_commits;
  if (resumes)
    recorded_commits = read_recorded_commits(inputs.config.get<std::string>("output_dir"));
  NameLookup lookup(std::move(recorded_commits), inputs);
  find_model(lookup, inputs);
  find_data("data.train", lookup, inputs);
  find_data("data.validation", lookup, inputs);
  return inputs;
}

}  // namespace ftrun
