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
};

/// Reads a text as a Hub name by the Hub's own rules: two parts of letters, digits, "-", "_" and
/// ".", at most 96 bytes each, that neither begin nor end with "-" or "." and hold neither "--" nor
/// "..". Nothing when it is no such name, as "./owner/name", "a/b/c" and a single word are not.
std::optional<HubName> parse_hub_name(std::string_view text);

/// The folder that huggingface_hub keeps downloads in: HF_HUB_CACHE, else HUGGINGFACE_HUB_CACHE,
/// else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. A leading
/// "~" and variables in them are read as huggingface_hub reads them.
std::string hub_cache_folder(const EnvLookup& lookup);

/// The folder that the name of a model or an adapter leads to.
struct FoundFolder {
  /// The folder to read: the path itself, or a snapshot of the Hub's cache.
  std::string folder;
  /// The snapshot's commit; "" for a folder that was named by its path.
  std::string commit;
  /// The repository is in the cache too, and the folder of that relative path was taken.
  bool hides_cached = false;
};

/// Finds what `path` names without asking a network. A path that is there is that path. A Hub name
/// is looked up in the cache: its revision's snapshot, which must hold `file` ("config.json"). Any
/// other path is returned as it is, for its reader to refuse. Throws Error(kBadInput) for a Hub
/// name whose snapshot is not there or lacks `file`, with the `hf download` line that brings it.
FoundFolder find_hub_folder(const std::string& path, const std::string& file,
                            const EnvLookup& lookup);
/// Finds a model folder in the same way, by its config.json and the variables of the process.
FoundFolder find_model_folder(const std::string& path);
/// Finds an adapter in PEFT's layout in the same way, by its adapter_config.json.
FoundFolder find_adapter_folder(const std::string& path);

/// Says whether the cache holds the repository that a Hub name means, at whatever revision; false
/// for any other path.
bool hub_cache_holds(const std::string& path);

/// A snapshot of the Hugging Face cache, by its folder's path:
/// ".../models--owner--name/snapshots/commit".
struct HubSnapshot {
  std::string repository;
  std::string commit;
};
/// Reads a snapshot off its folder's path; nothing for any other folder.
std::optional<HubSnapshot> snapshot_of(const std::string& folder);
/// The `hf download` line that completes a snapshot; "" for a folder that is none.
std::string hub_download_line(const std::string& folder);

}  // namespace ftrun
