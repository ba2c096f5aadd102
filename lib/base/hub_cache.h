#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/env_lookup.h"

namespace ftrun {

/// The name of a repository of the Hugging Face Hub: "owner/name", "owner/name@revision".
struct HubName {
  std::string repository;
  /// A branch, a tag, "refs/pr/1" or a commit's 40 digits; "main" where the name gives none.
  std::string revision = "main";
  bool gives_revision = false;

  /// "owner/name@revision".
  std::string with_revision() const { return repository + "@" + revision; }
};

/// Says whether all of a text are hexadecimal digits, as those of a commit are.
bool is_hexadecimal(std::string_view text);

/// Reads a text as a Hub name by the Hub's own rules: two parts of letters, digits, "-", "_" and
/// ".", at most 96 bytes each, that neither begin nor end with "-" or "." and hold neither "--" nor
/// "..". Nothing when it is no such name, as "./owner/name", "a/b/c" and a single word are not.
std::optional<HubName> parse_hub_name(std::string_view text);

/// HubKind is what a repository of the Hub holds; each kind has names of its own.
enum class HubKind { kModel, kDataset };

/// The folder that huggingface_hub keeps downloads in: HF_HUB_CACHE, else HUGGINGFACE_HUB_CACHE,
/// else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. A leading
/// "~" and variables in them are read as huggingface_hub reads them: without HOME the user's entry
/// among the system's users says where "~" is.
std::string hub_cache_folder(const EnvLookup& lookup);

/// The folder that the name of a model, an adapter or a data set leads to.
struct FoundFolder {
  /// The folder to read: the path itself, or a snapshot of the Hub's cache.
  std::string folder;
  /// The snapshot's commit; "" for a folder that was named by its path.
  std::string commit;
  /// The repository is in the cache too, and the folder of that relative path was taken.
  bool hides_cached = false;
};

/// Finds what `path` names without asking a network. A path that is there is that path. A Hub name
/// is looked up in the cache: its revision's snapshot, which must hold `file` ("config.json"; ""
/// for whatever it holds). Any other path is returned as it is, for its reader to refuse. Throws
/// Error(kBadInput) for a Hub name whose snapshot is not there or lacks `file`, with the
/// `hf download` line that brings it and the nearest name that the cache holds, and for a link of
/// that name which leads nowhere.
FoundFolder find_hub_folder(const std::string& path, const std::string& file,
                            const EnvLookup& lookup, HubKind kind = HubKind::kModel);
/// Finds a model folder in the same way, by its config.json and the variables of the process.
FoundFolder find_model_folder(const std::string& path);
/// Finds an adapter in PEFT's layout in the same way, by its adapter_config.json.
FoundFolder find_adapter_folder(const std::string& path);
/// Finds a data set in the same way.
FoundFolder find_data_set(const std::string& name);

/// HubFile is a file of a data set at a revision that is given: "owner/name@revision/file".
struct HubFile {
  HubName name;
  std::string file;
};
/// Reads a text as the name of such a file; nothing for any other text.
std::optional<HubFile> parse_hub_file(const std::string& text);
/// Finds a data set's file in the cache. Any other path is returned as it is, also one that is
/// there, and the name of a file whose data set the cache does not hold.
std::string find_hub_file(const std::string& path);

/// Says whether the cache holds the repository that a Hub name means, at whatever revision; false
/// for any other path.
bool hub_cache_holds(const std::string& path, HubKind kind = HubKind::kModel);
/// Finds the Hub name of a model that a path which is not there may have meant: of an address
/// ("https://huggingface.co/owner/name") the name in it, of any other path the nearest one that the
/// cache holds, also by the part behind the owner alone; "" for none.
std::string hub_name_like(const std::string& path, const EnvLookup& lookup);

/// A snapshot of the Hugging Face cache, by its folder's path:
/// ".../models--owner--name/snapshots/commit", "datasets--" for a data set.
struct HubSnapshot {
  std::string repository;
  std::string commit;
  HubKind kind = HubKind::kModel;
};
/// Reads a snapshot off its folder's path; nothing for any other folder.
std::optional<HubSnapshot> snapshot_of(const std::string& folder);
/// The `hf download` line that completes a snapshot; "" for a folder that is none.
std::string hub_download_line(const std::string& folder);

}  // namespace ftrun
