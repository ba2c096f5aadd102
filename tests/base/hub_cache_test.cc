#include "base/hub_cache.h"

#include <pwd.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "temporary_folder.h"
#include "thrown_error.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

EnvLookup lookup_in(const std::map<std::string, std::string>& values) {
  return [values](const std::string& name) {
    const auto it = values.find(name);
    return it == values.end() ? std::nullopt : std::optional<std::string>(it->second);
  };
}

void write_with_folders(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path) << text;
}

/// A cache in huggingface_hub's layout: blobs, a snapshot with links to them, and refs that name
/// commits.
struct Cache {
  testing::TemporaryFolder root;
  std::string repository = root / "models--acme--small-1.5";

  void add(const std::string& ref, const std::string& commit,
           const std::string& file = "config.json") {
    write_with_folders(repository + "/blobs/" + commit, "{}");
    write_with_folders(repository + "/refs/" + ref, commit);
    fs::create_directories(repository + "/snapshots/" + commit);
    fs::create_symlink("../../blobs/" + commit, repository + "/snapshots/" + commit + "/" + file);
  }
  EnvLookup lookup() const { return lookup_in({{"HF_HUB_CACHE", root.path()}}); }
  ResolvedFolder find(const std::string& name) const {
    return find_hub_folder(name, "config.json", lookup());
  }
};

const std::string kFirst(40, 'a');
const std::string kSecond(40, 'b');

TEST_CASE("names of the Hub are distinguished from paths") {
  const auto name = parse_hub_name("HuggingFaceTB/SmolLM2-135M");
  REQUIRE(name);
  CHECK(name->repository == "HuggingFaceTB/SmolLM2-135M");
  CHECK(name->revision == "main");
  CHECK(!name->gives_revision);
  CHECK(parse_hub_name("a/b@refs/pr/1")->revision == "refs/pr/1");
  CHECK(parse_hub_name("a/b@v1.0")->gives_revision);
  for (const char* path : {"model", "/model", "./a", "../a", "a/", "a/b/c", "a b/c", "a/b--c",
                           "a/b..c", "a/.b", "-a/b", "a/b.", "a/b@", "a/b@../../c", "a/b@v 1",
                           "a/b@/v1", "~/models", "$HOME/model", "a/é"})
    CHECK(!parse_hub_name(path));
  CHECK(parse_hub_name("a/" + std::string(96, 'n')));
  CHECK(!parse_hub_name("a/" + std::string(97, 'n')));
}

TEST_CASE("the cache's folder follows huggingface_hub's variables in their order") {
  std::map<std::string, std::string> set{{"HOME", "/home/u"}};
  CHECK(hub_cache_folder(lookup_in(set)) == "/home/u/.cache/huggingface/hub");
  set["XDG_CACHE_HOME"] = "/xdg";
  CHECK(hub_cache_folder(lookup_in(set)) == "/xdg/huggingface/hub");
  set["HF_HOME"] = "~/hf";
  CHECK(hub_cache_folder(lookup_in(set)) == "/home/u/hf/hub");
  set["HUGGINGFACE_HUB_CACHE"] = "$SCRATCH/old";
  CHECK(hub_cache_folder(lookup_in(set)) == "$SCRATCH/old");  // an unset variable is not expanded
  set["SCRATCH"] = "/scratch";
  CHECK(hub_cache_folder(lookup_in(set)) == "/scratch/old");
  set["HF_HUB_CACHE"] = "${SCRATCH}/hub-$$/${";
  CHECK(hub_cache_folder(lookup_in(set)) == "/scratch/hub-$$/${");
  set["HF_HUB_CACHE"] = "";
  CHECK(hub_cache_folder(lookup_in(set)).empty());  // the working directory
}

TEST_CASE("without a variable, the home folder is that of the user") {
  const passwd* user = ::getpwuid(::getuid());
  const std::string home = user == nullptr ? "~" : user->pw_dir;
  CHECK(hub_cache_folder(lookup_in({})) == home + "/.cache/huggingface/hub");
  CHECK(hub_cache_folder(lookup_in({{"HOME", "/h/"}})) == "/h/.cache/huggingface/hub");
  CHECK(hub_cache_folder(lookup_in({{"HOME", ""}})) == "/.cache/huggingface/hub");
  CHECK(hub_cache_folder(lookup_in({{"XDG_CACHE_HOME", ""}})) == "huggingface/hub");
}

TEST_CASE("a model's name is resolved to the snapshot of its revision") {
  Cache cache;
  cache.add("main", kFirst);
  cache.add("refs/pr/1", kSecond);
  CHECK(cache.find("acme/small-1.5").folder == cache.repository + "/snapshots/" + kFirst);
  CHECK(cache.find("acme/small-1.5").commit == kFirst);
  CHECK(cache.find("acme/small-1.5@refs/pr/1").commit == kSecond);
  CHECK(cache.find("acme/small-1.5@" + kSecond).commit == kSecond);
  write_with_folders(cache.repository + "/refs/v1", kFirst + "\n");
  CHECK(cache.find("acme/small-1.5@v1").commit == kFirst);
}

TEST_CASE("an existing path is used, and a model of the same name in the cache is reported") {
  Cache cache;
  testing::TemporaryFolder here;
  const fs::path before = fs::current_path();
  fs::create_directories(here / "acme/small-1.5");
  fs::current_path(here.path());
  const ResolvedFolder alone = cache.find("acme/small-1.5");
  cache.add("main", kFirst);
  const ResolvedFolder beside = cache.find("acme/small-1.5");
  fs::current_path(before);
  CHECK(alone.folder == "acme/small-1.5");
  CHECK(alone.commit.empty());
  CHECK(!alone.hides_cached);
  CHECK(beside.folder == "acme/small-1.5");
  CHECK(beside.hides_cached);
  CHECK(cache.find("/no/such/model").folder ==
        "/no/such/model");  // its reader reports that it does not exist
}

TEST_CASE("a model that the cache lacks is reported with the command that downloads it") {
  Cache cache;
  const auto failure = [&](const std::string& name) {
    return testing::error_line_of([&] { cache.find(name); });
  };
  CHECK(
      failure("acme/small-1.5") ==
      "4: acme/small-1.5: there is no such folder, and no such model in the Hugging Face cache, " +
          cache.root.path() +
          " | download it: hf download acme/small-1.5; or name a folder on this machine, relative "
          "to the working directory");
  cache.add("main", kFirst);
  write_with_folders(cache.repository + "/refs/v1", kFirst);
  CHECK(
      failure("acme/small-1.5@v2") ==
      "4: acme/small-1.5@v2: the Hugging Face cache, " + cache.root.path() +
          ", has no revision v2 of it (it has main, v1) | download it: hf download "
          "acme/small-1.5 --revision v2; or name a folder on this machine, relative to the working "
          "directory");
  fs::remove(cache.repository + "/snapshots/" + kFirst + "/config.json");
  CHECK(failure("acme/small-1.5").find("4: acme/small-1.5: its download is not complete: ") == 0);
  fs::remove(cache.repository + "/blobs/" + kFirst);
  fs::create_symlink("../../blobs/" + kFirst,
                     cache.repository + "/snapshots/" + kFirst + "/config.json");
  CHECK(failure("acme/small-1.5").find(" has no config.json") !=
        std::string::npos);  // a link to a missing blob
}

TEST_CASE("a name that is similar to one in the cache is reported with that one") {
  Cache cache;
  cache.add("main", kFirst);
  CHECK(testing::error_line_of([&] {
          cache.find("acme/smal-1.5");
        }).find(cache.root.path() + " (did you mean \"acme/small-1.5\"?) | download it: hf") !=
        std::string::npos);
  const auto like = [&](const char* path) { return find_similar_hub_name(path, cache.lookup()); };
  for (const char* path : {"./acme/small-1.5", "acme/small-1.5/", "Small-1.5", "small-15",
                           "hf://acme/small-1.5", "acmee/small-1.5"}) {
    INFO(path);
    CHECK(like(path) == "acme/small-1.5");
  }
  CHECK(like("https://huggingface.co/other/model") == "other/model");
  for (const char* path : {"other/thing", "/acme/small-1.5", "acme/../small-1.5", "", "other"})
    CHECK(like(path).empty());
}

TEST_CASE("a shortened commit is reported with the full one") {
  Cache cache;
  cache.add("main", kFirst);
  const auto failure = [&](const std::string& name) {
    return testing::error_line_of([&] { cache.find(name); });
  };
  CHECK(failure("acme/small-1.5@aaaaaaa") ==
        "4: acme/small-1.5@aaaaaaa: the Hugging Face cache, " + cache.root.path() +
            ", has no revision aaaaaaa of it; it has the commit " + kFirst +
            " | name the commit with all of its digits: acme/small-1.5@" + kFirst);
  CHECK(failure("acme/small-1.5@bbbbbbb").find("(it has main)") != std::string::npos);
}

TEST_CASE("a symbolic link with the model's name that leads nowhere is refused, not ignored") {
  Cache cache;
  cache.add("main", kFirst);
  testing::TemporaryFolder here;
  const fs::path before = fs::current_path();
  fs::create_directories(here / "acme");
  fs::create_symlink("/nowhere", here / "acme/small-1.5");
  fs::current_path(here.path());
  const std::string failure = testing::error_line_of([&] { cache.find("acme/small-1.5"); });
  fs::current_path(before);
  CHECK(
      failure ==
      "4: acme/small-1.5: cannot be read: it is a link to /nowhere, which does not exist | correct "
      "the link, or remove it so that the name is looked up in the Hugging Face cache");
}

TEST_CASE("data sets have their own folders and download commands") {
  Cache cache;
  cache.repository = cache.root / "datasets--acme--texts";
  cache.add("main", kFirst, "train.bin");
  const auto find = [&](const std::string& name) {
    return find_hub_folder(name, "", cache.lookup(), HubKind::kDataset);
  };
  CHECK(find("acme/texts").folder == cache.repository + "/snapshots/" + kFirst);
  CHECK(testing::error_line_of([&] { cache.find("acme/texts"); }).find("no such model") !=
        std::string::npos);
  CHECK(testing::error_line_of([&] { find("acme/text@v1"); }) ==
        "4: acme/text@v1: there is no such file, and no such data set in the Hugging Face cache, " +
            cache.root.path() +
            " (did you mean \"acme/texts\"?) | download it: hf download acme/text --repo-type "
            "dataset --revision v1; or name a file on this machine, relative to the working "
            "directory");
  CHECK(hub_download_line(cache.repository + "/snapshots/" + kFirst) ==
        "hf download acme/texts --repo-type dataset --revision " + kFirst);
}

TEST_CASE("a file of a data set is named with a revision") {
  const auto file = parse_hub_file("acme/texts@refs/pr/1/train");
  REQUIRE(file);
  CHECK(file->name.repository == "acme/texts");
  CHECK(file->name.revision == "refs/pr/1");
  CHECK(file->file == "train");
  for (const char* path : {"acme/texts", "acme/texts/train", "acme/texts@main", "acme/texts@main/",
                           "train", "/a/b@c/d"})
    CHECK(!parse_hub_file(path));
  CHECK(find_hub_file("data/train.bin") == "data/train.bin");
}

TEST_CASE("a snapshot's folder gives the command that completes it") {
  CHECK(hub_download_line("/x/hub/models--acme--small/snapshots/" + kFirst) ==
        "hf download acme/small --revision " + kFirst);
  CHECK(hub_download_line("/x/hub/models--acme--small/snapshots/" + kFirst + "/") ==
        "hf download acme/small --revision " + kFirst);
  CHECK(parse_snapshot_path("models--acme--small/snapshots/abc")->commit == "abc");
  for (const char* folder :
       {"/x/models--acme--small", "/x/models--acme--small/snapshots",
        "/x/models--small/snapshots/abc", "/x/models--a--b/snapshots/abc/sub", "models/small", ""})
    CHECK(hub_download_line(folder).empty());
}

}  // namespace
}  // namespace ftrun
