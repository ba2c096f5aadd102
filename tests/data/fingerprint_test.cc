#include "counting_new.h"
#include "fixtures.h"

#include "base/checksum.h"
#include "base/file.h"
#include "data/check_headers.h"
#include "data/dataset_report.h"
#include "data/fingerprint.h"

#include <chrono>
#include <memory>
#include <thread>

#include <nlohmann/json.hpp>

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace ftrun::testing;

namespace {

const std::atomic<bool> kHashAll = false;

/// Writes the sidecar that prepare_data.py would write, from what ftrun reads.
void write_sidecar_of(const TokenDataset& data, const std::string& path) {
  const auto found = compute_fingerprint(data, kHashAll);
  Sidecar side;
  side.statistics = found->statistics;
  side.files = found->files;
  for (FileRecord& file : side.files)
    file.path = std::filesystem::path(file.path).filename().string();
  write_file_atomic(posix_files(), path, sidecar_text(side));
}

/// Writes a pair with a mask: 40 tokens with ids 5 to 44, half of them trained. Returns its path.
std::string write_pair(const TemporaryFolder& folder) {
  std::vector<int> ids, trained;
  for (int i = 0; i < 40; ++i) {
    ids.push_back(i + 5);
    trained.push_back(i % 2);
  }
  folder.write("x.idx", MegatronIndex({20, 20}).bytes());
  folder.write("x.mask", mask_bytes(trained));
  return folder.write("x.bin", raw_u16(ids));
}

void touch_file(const std::string& path) {
  const auto time = std::filesystem::last_write_time(path);
  std::filesystem::last_write_time(path, time + std::chrono::seconds(5));
}

}  // namespace

TEST_CASE("a computed fingerprint counts and hashes every file", "[fingerprint]") {
  TemporaryFolder folder;
  const std::string path = write_pair(folder);
  const TokenDataset data({path}, {});
  const auto found = compute_fingerprint(data, kHashAll);
  REQUIRE(found->statistics.tokens == 40);
  REQUIRE(found->statistics.documents == 2);
  REQUIRE(found->statistics.trained_tokens == 20);
  REQUIRE(found->statistics.min_id == 5);
  REQUIRE(found->statistics.max_id == 44);
  REQUIRE(found->files.size() == 3);
  const std::string bytes = read_file(path);
  REQUIRE(found->files[0].xxh3 == xxh3(bytes.data(), bytes.size()));
  std::string lines;
  for (const FileRecord& file : found->files)
    lines += file.role + " " + std::to_string(file.bytes) + " " + hex64(file.xxh3) + "\n";
  REQUIRE(found->digest == hex64(xxh3(lines.data(), lines.size())));
}

TEST_CASE("the fingerprint follows from the content, not from names and folders", "[fingerprint]") {
  TemporaryFolder a, b;
  write_pair(a);
  write_pair(b);
  for (const char* extension : {".bin", ".idx", ".mask"})
    std::filesystem::rename(b / (std::string("x") + extension), b / (std::string("y") + extension));
  const TokenDataset one({a / "x"}, {}), two({b / "y"}, {});
  const std::string digest = compute_fingerprint(one, kHashAll)->digest;
  REQUIRE(compute_fingerprint(two, kHashAll)->digest == digest);
  std::string bytes = read_file(b / "y.bin");
  bytes[7] ^= 1;
  b.write("y.bin", bytes);
  REQUIRE(compute_fingerprint(TokenDataset({b / "y"}, {}), kHashAll)->digest != digest);
}

TEST_CASE("an up-to-date sidecar is used, a stale one is not", "[fingerprint]") {
  TemporaryFolder folder;
  const std::string path = write_pair(folder);
  const TokenDataset data({path}, {});
  REQUIRE_FALSE(recorded_fingerprint(data).has_value());
  write_sidecar_of(data, folder / "x.json");
  const auto recorded = recorded_fingerprint(data);
  REQUIRE(recorded->origin == "recorded by prepare_data.py");
  REQUIRE(recorded->digest == compute_fingerprint(data, kHashAll)->digest);
  REQUIRE(recorded->statistics.max_id == 44);

  SECTION("another time: computed again") {
    touch_file(path);
    REQUIRE_FALSE(recorded_fingerprint(data).has_value());
  }
  SECTION("another size: not used") {
    folder.write("x.idx", MegatronIndex({20, 10, 10}).bytes());
    REQUIRE_FALSE(recorded_fingerprint(TokenDataset({path}, {})).has_value());
  }
  SECTION("one more file: not used") {
    const std::string mask = read_file(folder / "x.mask");
    for (const char* name : {"x.mask", "x.json"}) std::filesystem::remove(folder / name);
    write_sidecar_of(TokenDataset({path}, {}), folder / "x.json");
    folder.write("x.mask", mask);
    REQUIRE_FALSE(recorded_fingerprint(TokenDataset({path}, {})).has_value());
  }
}

TEST_CASE("raw data in a .json next to a data file is not read as a sidecar", "[fingerprint]") {
  TemporaryFolder folder;
  const std::string path = write_pair(folder);
  std::string raw = "[";
  for (int i = 0; i < 60'000; ++i) raw += "{\"text\": \"hello\"},\n";
  REQUIRE(raw.size() > 1 << 20);
  for (const char* name : {"x.json", "meta.json"}) folder.write(name, raw + "{}]");
  const int64_t before = allocations_so_far();
  REQUIRE_FALSE(read_sidecar(path).has_value());
  REQUIRE(read_flat_file_info(path).origin.empty());
  REQUIRE(allocations_so_far() - before < 100);
}

TEST_CASE("a large sidecar is recognized by its beginning, and one above the limit is refused",
          "[fingerprint]") {
  TemporaryFolder folder;
  const std::string path = write_pair(folder);
  const TokenDataset data({path}, {});
  write_sidecar_of(data, folder / "x.json");
  const std::string text = read_file(folder / "x.json");
  // A sidecar may be large because it names a hundred thousand inputs.
  folder.write("x.json", text + std::string(2 << 20, ' '));
  REQUIRE(read_sidecar(path).has_value());
  REQUIRE(recorded_fingerprint(data).has_value());
  // A file with another beginning than ours is ignored.
  folder.write("x.json", std::string(4096, ' ') + text + std::string(1 << 20, ' '));
  REQUIRE_FALSE(read_sidecar(path).has_value());
  folder.write("x.json", text);
  std::filesystem::resize_file(folder / "x.json", 65 << 20);
  REQUIRE_THROWS_WITH(read_sidecar(path),
                      Catch::Contains("x.json: is 65.00 MiB, larger than the limit of 64.00 MiB"));
}

TEST_CASE("a .json of another program is ignored, a damaged sidecar is refused", "[fingerprint]") {
  TemporaryFolder folder;
  const std::string path = write_pair(folder);
  const TokenDataset data({path}, {});
  for (const char* other :
       {"not json", "[1]", "{}", "{\"format\": \"other\"}", "{\"format\": 5}"}) {
    folder.write("x.json", other);
    REQUIRE_FALSE(recorded_fingerprint(data).has_value());
  }
  const auto refused = [&](const std::string& key, const nlohmann::json& value) {
    std::filesystem::remove(folder / "x.json");
    write_sidecar_of(data, folder / "x.json");
    auto object = nlohmann::json::parse(read_file(folder / "x.json"));
    object[nlohmann::json::json_pointer(key)] = value;
    folder.write("x.json", object.dump());
    return error_text_of([&] { recorded_fingerprint(data); });
  };
  const std::string json = folder / "x.json",
                    remedy =
                        "\n  remedy: write the data again with scripts/prepare_data.py, or remove "
                        "this file";
  REQUIRE(refused("/version", 2) == json + ": version 2, but this build reads version 1" + remedy);
  REQUIRE(refused("/tokens", "many") == json + ": \"tokens\" must be an integer" + remedy);
  REQUIRE(refused("/tokens", 18446744073709551615ULL) ==
          json + ": \"tokens\" is too large" + remedy);
  REQUIRE(refused("/files", 5) == json + ": has no list \"files\"" + remedy);
  REQUIRE(refused("/files/0", 5) == json + ": \"files\" must hold objects" + remedy);
  REQUIRE(refused("/files/0/xxh3", "xyz") ==
          json + ": \"xxh3\" must be 16 hexadecimal digits" + remedy);
  REQUIRE(refused("/files/0/role", nullptr) == json + ": has no string \"role\"" + remedy);
}

TEST_CASE("an unrecorded fingerprint is computed in the background and cached", "[fingerprint]") {
  TemporaryFolder folder;
  const std::string path = write_pair(folder), cache = folder / "run-data.json";
  const TokenDataset data({path}, {});
  std::string digest;
  {
    FingerprintJob job(data, cache);
    const DataFingerprint found = job.wait();
    REQUIRE(found.origin == "computed");
    REQUIRE(job.result()->digest == found.digest);
    digest = found.digest;
  }
  {
    FingerprintJob job(data, cache);
    REQUIRE(job.result().has_value());  // available at once
    REQUIRE(job.result()->origin == "cached");
    REQUIRE(job.result()->digest == digest);
    REQUIRE(job.result()->statistics.trained_tokens == 20);
  }
  SECTION("a touched file is hashed again") {
    touch_file(path);
    FingerprintJob job(data, cache);
    REQUIRE(job.wait().origin == "computed");
  }
  SECTION("a damaged cache is ignored") {
    folder.write("run-data.json", read_file(cache).substr(0, 100));
    FingerprintJob job(data, cache);
    REQUIRE(job.wait().digest == digest);
    folder.write("run-data.json", R"({"format": "ftrun-data", "version": 7})");
    FingerprintJob again(data, cache);
    REQUIRE(again.wait().digest == digest);
  }
  SECTION("a recorded fingerprint needs no thread and no cache") {
    write_sidecar_of(data, folder / "x.json");
    FingerprintJob job(data, "");
    REQUIRE(job.result()->origin == "recorded by prepare_data.py");
  }
}

TEST_CASE("data that an interrupted prepare_data.py was moving are refused", "[fingerprint]") {
  const TemporaryFolder folder;
  const std::string path = folder / "train.bin";
  std::ofstream(path) << "ab";
  folder.write("train.json", R"({"format": "ftrun-data-unfinished", "version": 1, "files": []})");
  const std::string message = error_text_of([&] { TokenDataset({path}, {}); });
  REQUIRE(message.find(folder / "train.json" + ": prepare_data.py was stopped while it moved "
                                               "its files here: old and new may be mixed") == 0);
}

TEST_CASE("canceling a fingerprint does not wait for it", "[fingerprint]") {
  TemporaryFolder folder;
  const std::string path = folder / "train.bin";
  { std::ofstream file(path); }
  std::filesystem::resize_file(path, int64_t{4} << 30);  // sparse
  const TokenDataset data({path}, {.dtype = DType::kU16});
  { FingerprintJob job(data, folder / "cache.json"); }
  REQUIRE_FALSE(std::filesystem::exists(folder / "cache.json"));
}

TEST_CASE("a fingerprint whose data do not answer is left behind", "[fingerprint]") {
  TemporaryFolder folder;
  // The thread that is left behind uses these data until it ends.
  static const auto* const data = new TokenDataset({write_pair(folder)}, {});
  // The thread cannot allocate memory, as if its file did not answer.
  auto held = std::make_unique<HeldAllocations>();
  { FingerprintJob job(*data, "", std::chrono::milliseconds(1)); }
  held.reset();
  // The thread gets time to end, so that no other test counts its allocations.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

TEST_CASE("recorded ids outside the model are refused before the first step", "[fingerprint]") {
  TemporaryFolder folder;
  const std::string path = write_pair(folder);
  const TokenDataset data({path}, {});
  check_recorded_ids(data, 10);  // nothing is recorded, so the loader checks later
  write_sidecar_of(data, folder / "x.json");
  check_recorded_ids(data, 45);
  REQUIRE(error_text_of([&] { check_recorded_ids(data, 44); }) ==
          path + ": its largest token id is 44 (as " + folder / "x.json" +
              " recorded), outside the model's vocabulary of 44 ids\n"
              "  remedy: prepare the data with this model's own tokenizer");
  // `ftrun check` finds the ids without reading the data.
  REQUIRE(check_headers({path}, {}, 45).empty());
  REQUIRE(check_headers({path}, {}, std::nullopt).empty());
  REQUIRE(check_headers({path}, {}, 44).at(0).message() ==
          path + ": its largest token id is 44 (as " + folder / "x.json" +
              " recorded), outside the model's vocabulary of 44 ids");
}

TEST_CASE(
    "the first document of a large JSONL file is checked, at the position where its reader finds "
    "it",
    "[check]") {
  TemporaryFolder folder;
  const std::string rest((1 << 20) + 1, ' '), good = R"({"input_ids": [1]})", mark = "\xEF\xBB\xBF";
  REQUIRE(check_headers({folder.write("a.jsonl", "\n\n" + good + "\n" + rest)}, {}, std::nullopt)
              .empty());
  REQUIRE(check_headers({folder.write("b.jsonl", mark + good + "\n" + rest)}, {}, std::nullopt)
              .empty());
  folder.write("c.jsonl", mark + "\n{}\n" + rest);
  REQUIRE(check_headers({folder / "c"}, {}, std::nullopt).at(0).message() ==
          folder / "c.jsonl" + ":2: has no \"input_ids\"");
}

TEST_CASE("a whole-file check reports statistics and every bad id", "[check]") {
  TemporaryFolder folder;
  const std::string path = write_pair(folder);
  const DataReport good = check_dataset({path}, {.sequence_length = 8}, 100);
  REQUIRE(good.problems.empty());
  REQUIRE(good.sequences == 4);
  REQUIRE(check_dataset({path}, {.sequence_length = 8}, 100, 4).problems.empty());
  REQUIRE(check_dataset({path}, {.sequence_length = 8}, 100, 5).problems ==
          std::vector<std::string>{path +
                                   ": gives 4 sequences, fewer than one global batch of 5, and "
                                   "dataloader_drop_last leaves out what does not "
                                   "fill one\n  remedy: set dataloader_drop_last: false, "
                                   "use a smaller batch, or use more text"});
  REQUIRE(good.padding_share == 0);
  REQUIRE(data_report_text(good) ==
          "40 tokens in 2 documents, 20 count in the loss; ids 5 to 44\n4 sequences, 0% padding\n");
  const DataReport bad = check_dataset({path}, {.sequence_length = 8}, 43);
  REQUIRE(bad.problems ==
          std::vector<std::string>{path + ": sequence 3, token 14 (file offset 76): id 43 is "
                                          "outside the model's vocabulary of 43 ids",
                                   path + ": sequence 3, token 15 (file offset 78): id 44 is "
                                          "outside the model's vocabulary of 43 ids"});
  const DataReport packed =
      check_dataset({path}, {.sequence_length = 8, .packing = SequencePacking::kDocuments}, 44);
  REQUIRE(packed.problems ==
          std::vector<std::string>{path + ": document 1, token 19 (file offset 78): id 44 is "
                                          "outside the model's vocabulary of 44 ids"});
  const auto text = [&](SequencePacking packing) {
    return data_report_text(check_dataset({path}, {.sequence_length = 8, .packing = packing}, 100));
  };
  const std::string counts = "40 tokens in 2 documents, 20 count in the loss; ids 5 to 44\n";
  REQUIRE(text(SequencePacking::kNone) ==
          counts + "2 sequences, 0% padding, 2 documents longer than a sequence cut\n");
  REQUIRE(text(SequencePacking::kDocuments) ==
          counts + "5 sequences, 5% padding, 2 documents longer than a sequence split\n");
  const DataReport many = check_dataset({path}, {.sequence_length = 8}, 5);
  REQUIRE(many.bad_ids == 40);
  REQUIRE(many.problems.size() == 21);
  REQUIRE(many.problems.back() == "and 20 more ids outside the model's vocabulary of 5 ids");
}

TEST_CASE("a check warns of documents that are skipped", "[check]") {
  TemporaryFolder folder;
  // Documents 0-3 and 7-9 have no label that counts, 4-6 have two.
  const std::string path = folder.write("x.bin", raw_u16({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  folder.write("x.idx", MegatronIndex({4, 3, 3}).bytes());
  folder.write("x.mask", mask_bytes({1, 0, 0, 0, 0, 1, 1, 0, 0, 0}));
  const auto text = [&](SequencePacking packing) {
    return data_report_text(check_dataset({path}, {.sequence_length = 8, .packing = packing}, 100));
  };
  const std::string counts =
      "10 tokens in 3 documents, 3 count in the loss; ids 1 to 10\n1 sequence, ";
  REQUIRE(text(SequencePacking::kConcat) == counts + "0% padding\n");
  REQUIRE(
      text(SequencePacking::kNone) ==
      counts +
          "75% padding\nwarning: 2 documents left out: none of their labels counts in the loss\n");
  REQUIRE(text(SequencePacking::kDocuments) ==
          counts +
              "75% padding\nwarning: 2 documents, or pieces of them, left out: none of their "
              "labels counts in the loss\n");
}

TEST_CASE("a check of damaged data reports the damage and does not throw", "[check]") {
  TemporaryFolder folder;
  const std::string path = write_pair(folder);
  folder.write("x.mask", "short");
  const DataReport report = check_dataset({path}, {.sequence_length = 8}, 100);
  REQUIRE(report.problems == std::vector<std::string>{
                                 folder / "x.mask" +
                                 ": a mask file begins with a header of 24 bytes, this file has 5\n"
                                 "  remedy: write the mask again with scripts/prepare_data.py, or "
                                 "remove it to train on every token"});
}

TEST_CASE("a data set is described in text", "[check]") {
  TemporaryFolder folder;
  const std::string path = write_pair(folder);
  REQUIRE(
      describe_dataset(path) ==
      path + "\n  format     Megatron .bin/.idx, uint16\n  file       " + path +
          " (tokens, 80 B)\n  file       " + folder / "x.idx" + " (index, 82 B)\n  file       " +
          folder / "x.mask" +
          " (mask, 29 B)\n  tokens     40\n  documents  2 (shortest 20, mean 20, longest 20 "
          "tokens)\n  loss mask  20 of 40 tokens count (50%)\n  first ids  5 6 7 8 9 10 11 12 13 "
          "14 15 16 17 18 19 20\nrecorded     nothing current (no .json of prepare_data.py next to "
          "it, or files were copied or changed since)\n");
}

TEST_CASE("a missing mask or index that the sidecar lists is reported", "[fingerprint]") {
  for (const std::string lost : {"mask", "idx"}) {
    TemporaryFolder folder;
    const std::string path = write_pair(folder);
    write_sidecar_of(TokenDataset({path}, {}), folder / "x.json");
    REQUIRE(TokenDataset({path}, {}).files().size() == 1);
    std::filesystem::remove(folder / ("x." + lost));
    for (const std::string& name : {path, folder / "x"})
      REQUIRE_THROWS_WITH(
          TokenDataset({name}, {}),
          path + ": its " + (lost == "mask" ? "loss mask" : "index") + ", " +
              folder / ("x." + lost) + ", does not exist, although " + folder / "x.json" +
              " lists it\n  remedy: restore it; if the data no longer has one, remove " +
              folder / "x.json");
    std::filesystem::remove(folder / "x.json");
    if (lost == "mask") REQUIRE(TokenDataset({path}, {}).files().size() == 1);
  }
}
