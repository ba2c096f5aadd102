#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/env_lookup.h"

namespace ftrun {

/// HubName is the name of a repository of the Hugging Face Hub: "owner/name",
/// "owner/name@revision".
struct HubName {
  std::string repository;
  /// A branch, a tag, "refs/pr/1" or a commit's 40 digits; "main" if the name gives none.
  std::string revision = "main";
  bool gives_revision = false;

  /// Returns "owner/name@revision".
  std::string full_name() const { return repository + "@" + revision; }
};

/// Returns whether a text consists of hexadecimal digits only, as a commit does.
bool is_hexadecimal(std::string_view text);

/// Reads a text as a Hub name by the Hub's own rules: two parts of letters, digits, "-", "_" and
/// ".", at most 96 bytes each, that neither begin nor end with "-" or "." and hold neither "--" nor
/// "..". Returns nothing for any other text, such as "./owner/name", "a/b/c" or a single word.
std::optional<HubName> parse_hub_name(std::string_view text);

/// HubKind is what a repository of the Hub holds; each kind has its own names in the cache.
enum class HubKind { kModel, kDataset };

/// Returns the folder in which huggingface_hub keeps downloads: HF_HUB_CACHE, else
/// HUGGINGFACE_HUB_CACHE, else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else
/// ~/.cache/huggingface/hub. A leading "~" and variables in them are read as huggingface_hub reads
/// them: without HOME, "~" is taken from the user's entry in the system's user database.
std::string hub_cache_folder(const EnvLookup& lookup);

/// ResolvedFolder is the folder that the name of a model, an adapter or a data set leads to.
struct ResolvedFolder {
  /// The folder to read: the path itself, or a snapshot of the Hub's cache.
  std::string folder;
  /// The snapshot's commit; "" for a folder that was named by its path.
  std::string commit;
  /// Says whether the cache also has a repository of this name, but the local folder with that
  /// relative path was used.
  bool hides_cached = false;
};

/// Finds what `path` names, without network access. An existing path is returned unchanged. A Hub
/// name is looked up in the cache: its revision's snapshot, which must hold `file` ("config.json";
/// "" requires no file). Any other path is returned unchanged; its reader reports the error. Throws
/// Error(kBadInput) for a Hub name whose snapshot is missing or lacks `file`, with the `hf
/// download` line that fetches it and the nearest name in the cache, and for a path that is a
/// dangling link.
ResolvedFolder find_hub_folder(const std::string& path, const std::string& file,
                               const EnvLookup& lookup, HubKind kind = HubKind::kModel);
/// Finds a model folder in the same way, by its config.json and the variables of the process.
ResolvedFolder find_model_folder(const std::string& path);
/// Finds an adapter in PEFT's layout in the same way, by its adapter_config.json.
ResolvedFolder find_adapter_folder(const std::string& path);
/// Finds the folder of a data set in the same way.
ResolvedFolder find_data_set(const std::string& name);

/// HubFile is a file of a data set at a given revision: "owner/name@revision/file".
struct HubFile {
  HubName name;
  std::string file;
};
/// Reads a text as the name of a Hub file; returns nothing for any other text.
std::optional<HubFile> parse_hub_file(const std::string& text);
/// Finds a data set's file in the cache. Returns any other path unchanged, also one that exists,
/// and the name of a file whose data set is not in the cache.
std::string find_hub_file(const std::string& path);

/// Returns whether the cache holds the repository of a Hub name, at any revision; false for any
/// other path.
bool is_in_hub_cache(const std::string& path, HubKind kind = HubKind::kModel);
/// Finds the Hub name that the user may have meant by a missing model path; "" for none. For an
/// address ("https://huggingface.co/owner/name") the result is the name in it; for any other path
/// the nearest name in the cache, even if only the part after the owner is similar.
std::string find_similar_hub_name(const std::string& path, const EnvLookup& lookup);

/// HubSnapshot is a snapshot of the Hugging Face cache, as its folder's path names it:
/// ".../models--owner--name/snapshots/commit", "datasets--" for a data set.
struct HubSnapshot {
  std::string repository;
  std::string commit;
  HubKind kind = HubKind::kModel;
};
/// Reads a snapshot from its folder's path; returns nothing for any other folder.
std::optional<HubSnapshot> parse_snapshot_path(const std::string& folder);
/// Returns the `hf download` line that completes a snapshot; "" for any other folder.
std::string hub_download_line(const std::string& folder);

}  // namespace ftrun
