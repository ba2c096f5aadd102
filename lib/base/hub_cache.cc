#include "base/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

constexpr size_t kLongestPart = 96;
/// A file of refs/ holds a commit's 40 digits.
constexpr int64_t kLargestRef = 256;

bool is_letter_or_digit(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0;
}

bool is_part(std::string_view part) {
  const auto is_allowed = [](char c) {
    return is_letter_or_digit(c) || c == '-' || c == '_' || c == '.';
  };
  const auto is_end = [](char c) { return c == '-' || c == '.'; };
  return !part.empty() && part.size() <= kLongestPart &&
         std::all_of(part.begin(), part.end(), is_allowed) && !is_end(part.front()) &&
         !is_end(part.back()) && part.find("--") == std::string_view::npos &&
         part.find("..") == std::string_view::npos;
}

/// Revisions become parts of a path: "refs/pr/1" may, what leaves the folder may not.
bool is_revision(std::string_view text) {
  const std::vector<std::string> parts = split(std::string(text), '/');
  const auto is_allowed = [](char c) {
    return is_letter_or_digit(c) || (c > ' ' && c < '\x7f' && c != '\\');
  };
  return !text.empty() && std::all_of(text.begin(), text.end(), is_allowed) &&
         std::all_of(parts.begin(), parts.end(), [](const std::string& part) {
           return !part.empty() && part != "." && part != "..";
         });
}

std::string value_of(const EnvLookup& lookup, const std::string& name) {
  return lookup(name).value_or("");
}

/// Replaces "$NAME" and "${NAME}" of variables that are set, as Python's expandvars does.
std::string expand_variables(const std::string& text, const EnvLookup& lookup) {
  std::string expanded;
  for (size_t at = 0; at < text.size();) {
    const bool braces = text.compare(at, 2, "${") == 0;
    size_t end = at + (braces ? 2 : 1);
    const size_t begin = end;
    while (text[at] == '$' && end < text.size() &&
           (is_letter_or_digit(text[end]) || text[end] == '_'))
      ++end;
    const auto value = end > begin ? lookup(text.substr(begin, end - begin)) : std::nullopt;
    const bool closed = !braces || (end < text.size() && text[end] == '}');
    if (text[at] == '$' && value && closed) {
      expanded += *value;
      at = end + (braces ? 1 : 0);
    } else {
      expanded += text[at++];
    }
  }
  return expanded;
}

std::string expand(const std::string& text, const EnvLookup& lookup) {
  const bool is_home = text == "~" || text.starts_with("~/");
  return expand_variables(is_home ? value_of(lookup, "HOME") + text.substr(1) : text, lookup);
}

/// The cache's folder of a repository: "models--owner--name".
std::string repository_folder(const std::string& cache, const std::string& repository) {
  std::string name = repository;
  name.replace(name.find('/'), 1, "--");
  return cat(cache, "/models--", name);
}

std::string commit_of(const std::string& folder, const std::string& revision) {
  const std::string ref = cat(folder, "/refs/", revision);
  std::error_code error;
  if (!fs::is_regular_file(ref, error)) return revision;
  std::string commit = read_file(ref, kLargestRef);
  commit.erase(
      std::find_if(commit.begin(), commit.end(), [](char c) { return !is_letter_or_digit(c); }),
      commit.end());
  return commit;
}

std::string download_line(const HubName& name) {
  return cat("hf download ", name.repository,
             name.gives_revision ? cat(" --revision ", shell_word(name.revision)) : "");
}

/// Lists the refs of a repository that the cache holds: " (it holds main, v1.0)"; "" for none.
std::string cached_revisions(const std::string& folder) {
  std::vector<std::string> names;
  const std::string refs = folder + "/refs";
  std::error_code error;
  for (fs::recursive_directory_iterator at(refs, error), end; !error && at != end;
       at.increment(error))
    if (at->is_regular_file(error)) names.push_back(at->path().lexically_relative(refs).string());
  std::sort(names.begin(), names.end());
  return names.empty() ? "" : cat(" (it holds ", join(names, ", "), ")");
}

FoundFolder find_snapshot(const HubName& name, const std::string& file, const EnvLookup& lookup) {
  const std::string cache = hub_cache_folder(lookup);
  const std::string folder = repository_folder(cache, name.repository);
  const std::string remedy =
      cat(download_line(name),
          " brings it; or name a folder on this machine, as seen from the working directory");
  const std::string shown = cat(name.repository, name.gives_revision ? "@" + name.revision : "");
  if (!posix_files().exists(folder))
    throw Error(
        ExitCode::kBadInput,
        cat(shown, ": there is no such folder, and no such model in the Hugging Face cache, ",
            cache),
        remedy);
  const std::string commit = commit_of(folder, name.revision);
  const std::string snapshot = cat(folder, "/snapshots/", commit);
  if (commit.empty() || !posix_files().exists(snapshot))
    throw Error(ExitCode::kBadInput,
                cat(shown, ": the Hugging Face cache, ", cache, ", has no revision ", name.revision,
                    " of it", cached_revisions(folder)),
                remedy);
  if (!posix_files().exists(cat(snapshot, "/", file)))
    throw Error(ExitCode::kBadInput,
                cat(shown, ": its download is not complete: ", snapshot, " has no ", file), remedy);
  return {snapshot, commit, false};
}

}  // namespace

std::optional<HubName> parse_hub_name(std::string_view text) {
  HubName name;
  if (const size_t at = text.find('@'); at != std::string_view::npos) {
    name.revision = text.substr(at + 1);
    name.gives_revision = true;
    text = text.substr(0, at);
    if (!is_revision(name.revision)) return std::nullopt;
  }
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos || !is_part(text.substr(0, slash)) ||
      !is_part(text.substr(slash + 1)))
    return std::nullopt;
  name.repository = text;
  return name;
}

std::string hub_cache_folder(const EnvLookup& lookup) {
  for (const char* variable : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const auto folder = lookup(variable)) return expand(*folder, lookup);
  if (const auto home = lookup("HF_HOME")) return expand(*home, lookup) + "/hub";
  if (const auto cache = lookup("XDG_CACHE_HOME"))
    return expand(*cache, lookup) + "/huggingface/hub";
  return value_of(lookup, "HOME") + "/.cache/huggingface/hub";
}

FoundFolder find_hub_folder(const std::string& path, const std::string& file,
                            const EnvLookup& lookup) {
  const std::optional<HubName> name = parse_hub_name(path);
  if (!name) return {path, "", false};
  if (posix_files().exists(path))
    return {path, "",
            posix_files().exists(repository_folder(hub_cache_folder(lookup), name->repository))};
  return find_snapshot(*name, file, lookup);
}

bool hub_cache_holds(const std::string& path) {
  const std::optional<HubName> name = parse_hub_name(path);
  return name && posix_files().exists(
                     repository_folder(hub_cache_folder(process_environment()), name->repository));
}

std::optional<HubSnapshot> snapshot_of(const std::string& folder) {
  constexpr std::string_view kRepository = "models--";
  const fs::path snapshot = (fs::path(folder) / "").lexically_normal().parent_path();
  const std::string repository = snapshot.parent_path().parent_path().filename().string();
  if (snapshot.parent_path().filename() != "snapshots" || !repository.starts_with(kRepository))
    return std::nullopt;
  const std::string name = repository.substr(kRepository.size());
  const size_t separator = name.find("--");
  if (separator == std::string::npos) return std::nullopt;
  return HubSnapshot{cat(name.substr(0, separator), "/", name.substr(separator + 2)),
                     snapshot.filename().string()};
}

std::string hub_download_line(const std::string& folder) {
  const std::optional<HubSnapshot> snapshot = snapshot_of(folder);
  return snapshot ? cat("hf download ", snapshot->repository, " --revision ",
                        shell_word(snapshot->commit))
                  : "";
}

FoundFolder find_model_folder(const std::string& path) {
  return find_hub_folder(path, "config.json", process_environment());
}

FoundFolder find_adapter_folder(const std::string& path) {
  return find_hub_folder(path, "adapter_config.json", process_environment());
}

}  // namespace ftrun
