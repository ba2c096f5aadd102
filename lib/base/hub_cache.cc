#include "base/hub_cache.h"

#include <pwd.h>
#include <unistd.h>

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
constexpr int64_t kMaxRef = 256;

bool is_letter_or_digit(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0;
}

bool is_name_part(std::string_view part) {
  const auto is_allowed = [](char c) {
    return is_letter_or_digit(c) || c == '-' || c == '_' || c == '.';
  };
  const auto is_end = [](char c) { return c == '-' || c == '.'; };
  return !part.empty() && part.size() <= kLongestPart &&
         std::all_of(part.begin(), part.end(), is_allowed) && !is_end(part.front()) &&
         !is_end(part.back()) && part.find("--") == std::string_view::npos &&
         part.find("..") == std::string_view::npos;
}

/// Returns whether a revision may become part of a path: "refs/pr/1" may, a text that leads out of
/// the folder may not.
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

/// Finds the home folder as Python's expanduser does: HOME, else the user's entry in the system's
/// user database. If there is neither, returns "~", which shells no longer expand.
std::string home_folder(const EnvLookup& lookup) {
  std::string home = "~";
  if (const auto set = lookup("HOME"))
    home = *set;
  else if (const passwd* user = ::getpwuid(::getuid()); user != nullptr && user->pw_dir != nullptr)
    home = user->pw_dir;
  while (home.ends_with('/')) home.pop_back();
  return home;
}

std::string expand_path(const std::string& text, const EnvLookup& lookup) {
  const bool is_home = text == "~" || text.starts_with("~/");
  return expand_variables(is_home ? home_folder(lookup) + text.substr(1) : text, lookup);
}

/// Joins two parts of a path as Python does: a folder without a name is the working directory.
std::string join_path(const std::string& folder, const std::string& name) {
  return folder.empty() || folder.ends_with('/') ? folder + name : cat(folder, "/", name);
}

/// KindNames are the names of one kind of repository in the cache, on the command line and in
/// messages.
struct KindNames {
  std::string_view prefix;
  std::string_view option;
  std::string_view noun;
};
KindNames names_of(HubKind kind) {
  if (kind == HubKind::kDataset) return {"datasets--", " --repo-type dataset", "data set"};
  return {"models--", "", "model"};
}

/// Returns the cache's folder of a repository: "models--owner--name".
std::string repository_folder(const std::string& cache, const std::string& repository,
                              HubKind kind) {
  std::string name = repository;
  name.replace(name.find('/'), 1, "--");
  return join_path(cache, cat(names_of(kind).prefix, name));
}

/// Reads a repository from the name of its folder in the cache; returns nothing for any other name.
std::optional<std::string> repository_of(std::string_view folder, HubKind kind) {
  const std::string_view prefix = names_of(kind).prefix;
  if (!folder.starts_with(prefix)) return std::nullopt;
  const std::string_view name = folder.substr(prefix.size());
  const size_t separator = name.find("--");
  if (separator == std::string_view::npos) return std::nullopt;
  return cat(name.substr(0, separator), "/", name.substr(separator + 2));
}

/// Lists the names in a folder, sorted; nothing if it cannot be read.
std::vector<std::string> list_names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder.empty() ? "." : folder, error), end; !error && at != end;
       at.increment(error))
    names.push_back(at->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> cached_repositories(const std::string& cache, HubKind kind) {
  std::vector<std::string> repositories;
  for (const std::string& name : list_names(cache))
    if (const auto repository = repository_of(name, kind)) repositories.push_back(*repository);
  return repositories;
}

std::string resolve_commit(const std::string& folder, const std::string& revision) {
  const std::string ref = cat(folder, "/refs/", revision);
  std::error_code error;
  if (!fs::is_regular_file(ref, error)) return revision;
  std::string commit = read_file(ref, kMaxRef);
  commit.erase(
      std::find_if(commit.begin(), commit.end(), [](char c) { return !is_letter_or_digit(c); }),
      commit.end());
  return commit;
}

std::string download_line(const HubName& name, HubKind kind) {
  return cat("hf download ", name.repository, names_of(kind).option,
             name.gives_revision ? cat(" --revision ", shell_word(name.revision)) : "");
}

/// Lists the refs of a repository that the cache holds: " (it has main, v1.0)"; "" for none.
std::string cached_revisions(const std::string& folder) {
  std::vector<std::string> names;
  const std::string refs = folder + "/refs";
  std::error_code error;
  for (fs::recursive_directory_iterator at(refs, error), end; !error && at != end;
       at.increment(error))
    if (at->is_regular_file(error)) names.push_back(at->path().lexically_relative(refs).string());
  std::sort(names.begin(), names.end());
  return names.empty() ? "" : cat(" (it has ", join(names, ", "), ")");
}

/// Lists the snapshots whose commits begin with `revision`. A revision is a short commit only if it
/// has at least four hexadecimal digits.
std::vector<std::string> commits_beginning_with(const std::string& folder,
                                                const std::string& revision) {
  constexpr size_t kShortest = 4;
  if (revision.size() < kShortest || !is_hexadecimal(revision)) return {};
  std::vector<std::string> commits = list_names(folder + "/snapshots");
  std::erase_if(commits, [&](const std::string& commit) { return !commit.starts_with(revision); });
  return commits;
}

[[noreturn]] void refuse_revision(const HubName& name, const std::string& shown_name,
                                  const std::string& cache, const std::string& folder,
                                  const std::string& remedy) {
  const std::string message = cat(shown_name, ": the Hugging Face cache, ", cache,
                                  ", has no revision ", name.revision, " of it");
  const std::vector<std::string> commits = commits_beginning_with(folder, name.revision);
  if (commits.empty()) throw Error(ExitCode::kBadInput, message + cached_revisions(folder), remedy);
  throw Error(
      ExitCode::kBadInput,
      cat(message, "; it has ", commits.size() == 1 ? "the commit " : "the commits ",
          join(commits, ", ")),
      cat("name the commit with all of its digits: ", name.repository, "@", commits.front()));
}

ResolvedFolder find_snapshot(const HubName& name, const std::string& file, const EnvLookup& lookup,
                             HubKind kind) {
  const std::string cache = hub_cache_folder(lookup);
  const std::string folder = repository_folder(cache, name.repository, kind);
  const char* where = kind == HubKind::kModel ? "a folder" : "a file";
  const std::string remedy = cat("download it: ", download_line(name, kind), "; or name ", where,
                                 " on this machine, relative to the working directory");
  const std::string shown_name =
      cat(name.repository, name.gives_revision ? "@" + name.revision : "");
  if (!posix_files().exists(folder))
    throw Error(ExitCode::kBadInput,
                cat(shown_name, ": there is no such ", kind == HubKind::kModel ? "folder" : "file",
                    ", and no such ", names_of(kind).noun, " in the Hugging Face cache, ",
                    cache.empty() ? "." : cache,
                    did_you_mean(closest_match(name.repository, cached_repositories(cache, kind)))),
                remedy);
  const std::string commit = resolve_commit(folder, name.revision);
  const std::string snapshot = cat(folder, "/snapshots/", commit);
  if (commit.empty() || !posix_files().exists(snapshot))
    refuse_revision(name, shown_name, cache, folder, remedy);
  if (!file.empty() && !posix_files().exists(cat(snapshot, "/", file)))
    throw Error(ExitCode::kBadInput,
                cat(shown_name, ": its download is not complete: ", snapshot, " has no ", file),
                remedy);
  return {snapshot, commit, false};
}

/// Refuses a path that is a dangling link: the user meant the link's target, not the cache.
void refuse_dead_link(const std::string& path) {
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(path, error))) return;
  throw Error(
      ExitCode::kBadInput, cat(path, ": cannot be read: ", reading_problem(path)),
      "correct the link, or remove it so that the name is looked up in the Hugging Face cache");
}

}  // namespace

bool is_hexadecimal(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; });
}

std::optional<HubName> parse_hub_name(std::string_view text) {
  HubName name;
  if (const size_t at = text.find('@'); at != std::string_view::npos) {
    name.revision = text.substr(at + 1);
    name.gives_revision = true;
    text = text.substr(0, at);
    if (!is_revision(name.revision)) return std::nullopt;
  }
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos || !is_name_part(text.substr(0, slash)) ||
      !is_name_part(text.substr(slash + 1)))
    return std::nullopt;
  name.repository = text;
  return name;
}

std::string hub_cache_folder(const EnvLookup& lookup) {
  for (const char* variable : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const auto folder = lookup(variable)) return expand_path(*folder, lookup);
  if (const auto home = lookup("HF_HOME")) return join_path(expand_path(*home, lookup), "hub");
  if (const auto cache = lookup("XDG_CACHE_HOME"))
    return join_path(expand_path(*cache, lookup), "huggingface/hub");
  return expand_path("~/.cache/huggingface/hub", lookup);
}

ResolvedFolder find_hub_folder(const std::string& path, const std::string& file,
                               const EnvLookup& lookup, HubKind kind) {
  const std::optional<HubName> name = parse_hub_name(path);
  if (!name) return {path, "", false};
  if (posix_files().exists(path))
    return {
        path, "",
        posix_files().exists(repository_folder(hub_cache_folder(lookup), name->repository, kind))};
  refuse_dead_link(path);
  return find_snapshot(*name, file, lookup, kind);
}

bool is_in_hub_cache(const std::string& path, HubKind kind) {
  const std::optional<HubName> name = parse_hub_name(path);
  return name && posix_files().exists(repository_folder(hub_cache_folder(process_environment()),
                                                        name->repository, kind));
}

std::string find_similar_hub_name(const std::string& path, const EnvLookup& lookup) {
  std::string_view text = path;
  bool is_address = false;
  for (const std::string_view start :
       {"https://huggingface.co/", "http://huggingface.co/", "hf://", "./"})
    if (text.starts_with(start)) {
      text.remove_prefix(start.size());
      is_address |= start != "./";
    }
  while (text.ends_with('/')) text.remove_suffix(1);
  const std::vector<std::string> cached =
      cached_repositories(hub_cache_folder(lookup), HubKind::kModel);
  if (text.find('/') == std::string_view::npos) {
    std::vector<std::string> names;
    for (const std::string& repository : cached)
      names.push_back(repository.substr(repository.find('/') + 1));
    const std::string name = closest_match(text, names);
    const auto found = std::find(names.begin(), names.end(), name);
    return name.empty() ? "" : cached[static_cast<size_t>(found - names.begin())];
  }
  const std::optional<HubName> name = parse_hub_name(text);
  if (!name) return "";
  return is_address ? std::string(text) : closest_match(text, cached);
}

std::optional<HubSnapshot> parse_snapshot_path(const std::string& folder) {
  const fs::path snapshot = (fs::path(folder) / "").lexically_normal().parent_path();
  const std::string repository = snapshot.parent_path().parent_path().filename().string();
  if (snapshot.parent_path().filename() != "snapshots") return std::nullopt;
  for (const HubKind kind : {HubKind::kModel, HubKind::kDataset})
    if (const auto name = repository_of(repository, kind))
      return HubSnapshot{*name, snapshot.filename().string(), kind};
  return std::nullopt;
}

std::string hub_download_line(const std::string& folder) {
  const std::optional<HubSnapshot> snapshot = parse_snapshot_path(folder);
  return snapshot ? download_line({snapshot->repository, snapshot->commit, true}, snapshot->kind)
                  : "";
}

ResolvedFolder find_model_folder(const std::string& path) {
  return find_hub_folder(path, "config.json", process_environment());
}

ResolvedFolder find_adapter_folder(const std::string& path) {
  return find_hub_folder(path, "adapter_config.json", process_environment());
}

ResolvedFolder find_data_set(const std::string& name) {
  return find_hub_folder(name, "", process_environment(), HubKind::kDataset);
}

std::optional<HubFile> parse_hub_file(const std::string& text) {
  const size_t slash = text.rfind('/');
  if (slash == std::string::npos || slash + 1 == text.size()) return std::nullopt;
  const std::optional<HubName> name = parse_hub_name(text.substr(0, slash));
  if (!name || !name->gives_revision) return std::nullopt;
  return HubFile{*name, text.substr(slash + 1)};
}

std::string find_hub_file(const std::string& path) {
  const std::optional<HubFile> file = parse_hub_file(path);
  if (!file || posix_files().exists(path)) return path;
  try {
    return cat(find_data_set(file->name.full_name()).folder, "/", file->file);
  } catch (const Error&) {
    return path;
  }
}

}  // namespace ftrun
