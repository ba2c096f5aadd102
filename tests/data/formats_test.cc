#include "fixtures.h"

#include "data/loss_mask.h"
#include "data/token_dataset.h"

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace ftrun::testing;

namespace {

std::vector<int32_t> ids_of(const TokenDataset& data) {
  std::vector<int32_t> ids(static_cast<size_t>(data.tokens())), labels(ids.size());
  ReadScratch scratch;
  data.read(0, ids, labels, scratch);
  return ids;
}

std::vector<int32_t> labels_of(const TokenDataset& data) {
  std::vector<int32_t> ids(static_cast<size_t>(data.tokens())), labels(ids.size());
  ReadScratch scratch;
  data.read(0, ids, labels, scratch);
  return labels;
}

std::vector<int64_t> starts_of(const TokenDataset& data) {
  std::vector<int64_t> starts;
  for (int64_t d = 0; d <= data.documents(); ++d) starts.push_back(data.document_start(d));
  return starts;
}

std::string refusal(const std::string& path, const TokenFileOptions& options = {}) {
  return error_text_of([&] { TokenDataset({path}, options); });
}

constexpr char kPairRemedy[] =
    "\n  remedy: write the pair again with scripts/prepare_data.py or Megatron's "
    "preprocess_data.py, or copy both files again";

/// Writes x.bin with 5 uint16 tokens and this index, and returns the message with which opening
/// fails.
std::string refusal_of_index(const std::string& index, const TemporaryFolder& folder) {
  folder.write("x.bin", counting_u16(5));
  folder.write("x.idx", index);
  return refusal(folder / "x.bin");
}

std::string llmc_file(int32_t magic, int32_t version, int32_t tokens, const std::string& data) {
  std::vector<int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = tokens;
  return bytes_of(header) + data;
}

}  // namespace

TEST_CASE("a Megatron pair opens by .bin, .idx and prefix", "[formats]") {
  TemporaryFolder folder;
  folder.write("x.bin", raw_u16({1, 2, 3, 4, 5, 9, 8}));
  // The documents are [1..5], in sequences of 3 and 2, and [9, 8]; the index is unaligned, as
  // Megatron's own writer makes it.
  MegatronIndex index({3, 2, 2});
  index.documents = {0, 2, 3};
  folder.write("x.idx", index.bytes());
  for (const char* name : {"x.bin", "x.idx", "x"}) {
    const TokenDataset data({folder / name}, {});
    REQUIRE(ids_of(data) == std::vector<int32_t>{1, 2, 3, 4, 5, 9, 8});
    REQUIRE(starts_of(data) == std::vector<int64_t>{0, 5, 7});
    REQUIRE(data.files()[0]->format() == "Megatron .bin/.idx, uint16");
    REQUIRE(data.locate(6).offset == 12);
    REQUIRE(data.locate(6).value == 8);
  }
}

TEST_CASE("every integer type of a Megatron pair is read", "[formats]") {
  TemporaryFolder folder;
  const auto check = [&](uint8_t code, const std::string& bytes, int item,
                         const std::vector<int32_t>& expected) {
    MegatronIndex index({static_cast<int32_t>(expected.size())}, item);
    index.code = code;
    folder.write("x.bin", bytes);
    folder.write("x.idx", index.bytes());
    REQUIRE(ids_of(TokenDataset({folder / "x"}, {})) == expected);
  };
  check(1, bytes_of<uint8_t>({7, 255}), 1, {7, 255});
  check(2, bytes_of<int8_t>({7, -3}), 1, {7, -1});
  check(3, bytes_of<int16_t>({7, 300}), 2, {7, 300});
  check(4, bytes_of<int32_t>({70000, -100}), 4, {70000, -1});
  check(5, bytes_of<int64_t>({70000, int64_t{1} << 40}), 8, {70000, -1});
  check(8, bytes_of<uint16_t>({7, 65535}), 2, {7, 65535});
}

TEST_CASE("an inconsistent Megatron index is refused with file and offset", "[formats]") {
  TemporaryFolder folder;
  const std::string idx = folder / "x.idx", bin = folder / "x.bin";
  const MegatronIndex good({3, 2});
  const auto refused = [&](const MegatronIndex& index) {
    return refusal_of_index(index.bytes(), folder);
  };
  REQUIRE(refused(good).empty());

  REQUIRE(refusal_of_index("", folder) ==
          idx + ": has 0 bytes; the header alone has 34" + kPairRemedy);
  REQUIRE(refusal_of_index(good.bytes().substr(0, 33), folder) ==
          idx + ": has 33 bytes; the header alone has 34" + kPairRemedy);
  REQUIRE(
      refusal_of_index(std::string("TNTIDX\0\0", 8) + std::string(40, 'x'), folder) ==
      idx +
          ": is an index of fairseq's old format (TNTIDX)\n  remedy: convert it with Megatron's "
          "preprocess_data.py --dataset-impl mmap");
  MegatronIndex bad = good;
  bad.magic[0] = 'N';
  REQUIRE(refused(bad) ==
          idx + ": offset 0: does not begin with Megatron's magic MMIDIDX" + kPairRemedy);
  bad = good;
  bad.version = 2;
  REQUIRE(refused(bad) == idx + ": offset 9: index version 2, expected 1" + kPairRemedy);
  bad = good;
  bad.code = 6;
  REQUIRE(refused(bad) == idx +
                              ": offset 17: type code 6 is a floating-point type, not token ids\n"
                              "  remedy: name the pair that holds token ids");
  bad.code = 99;
  REQUIRE(refused(bad) ==
          idx + ": offset 17: type code 99 is unknown (expected 1 to 5 or 8)" + kPairRemedy);
  REQUIRE(refusal_of_index(good.bytes().substr(0, 60), folder) ==
          idx +
              ": the header says 2 sequences and 3 document boundaries, that is 82 bytes; the file "
              "has 60" +
              kPairRemedy);
  bad = good;
  bad.tail = std::string(2, '\0');
  REQUIRE(refused(bad) == idx +
                              ": has a mode for each sequence (a multimodal data set)\n"
                              "  remedy: name a data set of text tokens");
  bad.tail = std::string(5, '\0');
  REQUIRE(refused(bad) ==
          idx +
              ": the header says 2 sequences and 3 document boundaries, that is 82 bytes; the file "
              "has 87" +
              kPairRemedy);
}

TEST_CASE("an index whose counts overflow is refused", "[formats]") {
  TemporaryFolder folder;
  for (const uint64_t count :
       {uint64_t{0xffffffffffffffff}, uint64_t{1} << 63, uint64_t{1} << 60}) {
    std::string bytes = MegatronIndex({3, 2}).bytes();
    std::memcpy(bytes.data() + 18, &count, sizeof count);
    REQUIRE(refusal_of_index(bytes, folder) ==
            folder / "x.idx" + ": offset 18: the header says " + std::to_string(count) +
                " sequences and 3 document boundaries; the file has only 82 bytes" + kPairRemedy);
    bytes = MegatronIndex({3, 2}).bytes();
    std::memcpy(bytes.data() + 26, &count, sizeof count);
    REQUIRE(refusal_of_index(bytes, folder) ==
            folder / "x.idx" + ": offset 18: the header says 2 sequences and " +
                std::to_string(count) + " document boundaries; the file has only 82 bytes" +
                kPairRemedy);
  }
}

TEST_CASE("sequences and documents that do not fit the .bin are refused", "[formats]") {
  TemporaryFolder folder;
  const std::string idx = folder / "x.idx", bin = folder / "x.bin";
  const MegatronIndex good({3, 2});
  const auto refused = [&](const MegatronIndex& index) {
    return refusal_of_index(index.bytes(), folder);
  };
  MegatronIndex bad = good;
  bad.lengths[1] = -2;
  REQUIRE(refused(bad) == idx + ": offset 38: sequence 1 has length -2" + kPairRemedy);
  bad = good;
  bad.pointers[1] = 8;
  REQUIRE(refused(bad) ==
          idx +
              ": offset 50: sequence 1 begins at byte 8 of the .bin file, expected 6 "
              "(sequences must follow one another)" +
              kPairRemedy);
  REQUIRE(refused(MegatronIndex({3, 1})) ==
          bin + ": has 10 bytes, its index " + idx + " describes 8" + kPairRemedy);
  REQUIRE(refused(MegatronIndex({3, 2147483647})) ==
          bin + ": has 10 bytes; sequence 1 of its index " + idx + " ends at byte 4294967300" +
              kPairRemedy);
  bad = good;
  bad.documents = {1, 1, 2};
  REQUIRE(refused(bad) ==
          idx + ": offset 58: document boundary 0 is sequence 1, expected 0" + kPairRemedy);
  bad.documents = {0, 9, 2};
  REQUIRE(refused(bad) ==
          idx + ": offset 66: document boundary 1 is sequence 9, expected 0 to 2" + kPairRemedy);
  bad.documents = {0, 1, 0};
  REQUIRE(refused(bad) ==
          idx + ": offset 74: document boundary 2 is sequence 0, expected 1 to 2" + kPairRemedy);
  bad.documents = {0, 1, 1};
  REQUIRE(refused(bad) ==
          idx + ": offset 74: the last document ends at sequence 1 of 2" + kPairRemedy);
  bad.documents = {};
  REQUIRE(refused(bad) ==
          idx + ": offset 26: no document boundaries, expected at least 1" + kPairRemedy);
  std::filesystem::remove(bin);
  REQUIRE(refusal(idx) == idx + ": its tokens " + bin + " do not exist" + kPairRemedy);
}

TEST_CASE("every truncation of a good pair is refused, never read past", "[formats]") {
  TemporaryFolder folder;
  const std::string index = MegatronIndex({3, 2}).bytes(), tokens = counting_u16(5);
  for (size_t size = 0; size < index.size(); ++size)
    REQUIRE_FALSE(refusal_of_index(index.substr(0, size), folder).empty());
  folder.write("x.idx", index);
  for (size_t size = 0; size < tokens.size(); ++size) {
    folder.write("x.bin", tokens.substr(0, size));
    REQUIRE_FALSE(refusal(folder / "x.bin").empty());
  }
}

TEST_CASE("any one byte changed in an index is refused or harmless", "[formats]") {
  TemporaryFolder folder;
  const std::string index = MegatronIndex({3, 2}).bytes();
  for (size_t at = 0; at < index.size(); ++at) {
    for (const int flip : {1, 0x80, 0xff}) {
      std::string changed = index;
      changed[at] = static_cast<char>(changed[at] ^ flip);
      folder.write("x.bin", counting_u16(5));
      folder.write("x.idx", changed);
      try {
        const TokenDataset data({folder / "x.bin"}, {});
        REQUIRE(ids_of(data).size() <= 10);
        REQUIRE(starts_of(data).back() == data.tokens());
      } catch (const Error& error) {
        REQUIRE(error.code() == ExitCode::kBadInput);
      }
    }
  }
}

TEST_CASE("llm.c files of both magics are read", "[formats]") {
  TemporaryFolder folder;
  folder.write("a.bin", llmc_file(20240520, 1, 3, raw_u16({50256, 7, 8})));
  folder.write("b.bin", llmc_file(20240801, 7, 2, bytes_of<uint32_t>({128000, 9})));
  const TokenDataset data({folder / "a.bin", folder / "b.bin"}, {});
  REQUIRE(ids_of(data) == std::vector<int32_t>{50256, 7, 8, 128000, 9});
  REQUIRE(data.files()[0]->format() == "llm.c .bin, uint16");
  REQUIRE(data.files()[1]->format() == "llm.c .bin, uint32");
  REQUIRE(data.locate(4).file == folder / "b.bin");
  REQUIRE(data.locate(4).offset == 1028);
  REQUIRE(data.name() == folder / "a.bin" + " and 1 more");
}

TEST_CASE("inconsistent llm.c headers are refused", "[formats]") {
  TemporaryFolder folder;
  const std::string path = folder / "a.bin";
  const std::string again = "\n  remedy: write it again with llm.c's scripts, or copy it again";
  const auto refused = [&](const std::string& bytes) {
    return refusal(folder.write("a.bin", bytes));
  };
  REQUIRE(refused(llmc_file(20240520, 3, 1, raw_u16({1}))) ==
          path + ": offset 4: llm.c version 3, expected 1 with magic 20240520" + again);
  REQUIRE(refused(llmc_file(20240801, 1, 1, raw_u16({1, 0}))) ==
          path + ": offset 4: llm.c version 1, expected 7 with magic 20240801" + again);
  REQUIRE(
      refused(llmc_file(20240520, 1, 4, raw_u16({1, 2, 3}))) ==
      path +
          ": offset 8: the header says 4 tokens of uint16, that is 1032 bytes; the file has 1030" +
          again);
  REQUIRE(
      refused(llmc_file(20240520, 1, -4, raw_u16({1, 2, 3}))) ==
      path +
          ": offset 8: the header says -4 tokens of uint16, that is 1016 bytes; the file has 1030" +
          again);
  REQUIRE(refused(llmc_file(20240520, 1, 2, "").substr(0, 100)) ==
          path + ": has llm.c's magic but 100 bytes; its header alone has 1024" + again);
  REQUIRE(refused(llmc_file(20240522, 1, 2, "")) ==
          path +
              ": is an llm.c evaluation file (magic 20240522), not a stream of tokens\n"
              "  remedy: name the train or val file that was written beside it");
}

TEST_CASE("shards are taken by pattern, in sorted order", "[formats]") {
  TemporaryFolder folder;
  folder.write("t_000002.bin", llmc_file(20240520, 1, 2, raw_u16({3, 4})));
  folder.write("t_000001.bin", llmc_file(20240520, 1, 2, raw_u16({1, 2})));
  const TokenDataset data({folder / "t_*.bin"}, {});
  REQUIRE(ids_of(data) == std::vector<int32_t>{1, 2, 3, 4});
  REQUIRE(refusal(folder / "v_*.bin") ==
          folder / "v_*.bin" +
              ": no file matches this pattern\n"
              "  remedy: check the pattern; it is relative to the working directory");
}

TEST_CASE(
    "an existing path is used literally, whatever its characters; only a missing one is a pattern",
    "[formats]") {
  TemporaryFolder folder;
  const std::string odd = folder / "run [v2] a*b {x} 日本 \"q\" #1 \xe9";
  namespace fs = std::filesystem;
  fs::create_directories(odd + "/shards-1");
  const auto write = [&](const std::string& name, int first) {
    std::ofstream(odd + name, std::ios::binary)
        << llmc_file(20240520, 1, 2, raw_u16({static_cast<uint16_t>(first), 9}));
  };
  write("/train[1].bin", 1);
  write("/train1.bin", 2);
  write("/shards-1/train.bin", 3);
  const auto firsts = [&](const std::string& name) {
    std::vector<int32_t> found;
    const std::vector<int32_t> all = ids_of(TokenDataset({odd + name}, {}));
    for (size_t i = 0; i < all.size(); i += 2) found.push_back(all[i]);
    return found;
  };
  REQUIRE(firsts("/train[1].bin") == std::vector<int32_t>{1});
  REQUIRE(firsts("/train[1]") ==
          std::vector<int32_t>{1});  // train[1] is a prefix here, not a pattern for train1.bin
  REQUIRE(firsts("/train*.bin") == std::vector<int32_t>{2, 1});
  REQUIRE(firsts("/train[0-9].bin") == std::vector<int32_t>{2});
  REQUIRE(firsts("/*[0-9]/train") == std::vector<int32_t>{3});
  REQUIRE(firsts("/shards-?/*.bin") == std::vector<int32_t>{3});
  REQUIRE(list_matching_files(folder / "run*/train[1].bin") ==
          std::vector<std::string>{odd + "/train[1].bin"});
  REQUIRE(refusal(odd + "/trian1.bin") ==
          odd + "/trian1.bin: no such file\n  remedy: did you mean " + odd + "/train1.bin?");
  REQUIRE(refusal(odd + "/[x].bin") ==
          odd +
              "/[x].bin: no file matches this pattern\n"
              "  remedy: check the pattern; it is relative to the working directory");
  const fs::path before = fs::current_path();
  fs::current_path(odd);
  const auto there = list_matching_files("train*.bin"),
             deep = list_matching_files("shards-[1]/train"), plain = list_matching_files("none");
  fs::current_path(before);
  REQUIRE(there == std::vector<std::string>{"train1.bin", "train[1].bin"});
  REQUIRE(deep == std::vector<std::string>{"shards-1/train"});
  REQUIRE(plain == std::vector<std::string>{"none"});
}

TEST_CASE("a raw file's type comes from the options, its .json, meta.json or its name",
          "[formats]") {
  TemporaryFolder folder;
  const std::string path = folder.write("x.bin", bytes_of<uint32_t>({70000, 5}));
  REQUIRE(
      refusal(path) ==
      path +
          ": nothing says what type its tokens have\n  remedy: set data.token_dtype: uint16 or "
          "uint32, or write a meta.json next to it, such as {\"dtype\": \"uint16\"}");
  REQUIRE(ids_of(TokenDataset({path}, {.dtype = DType::kU32})) == std::vector<int32_t>{70000, 5});
  folder.write("meta.json", R"({"dtype": "uint32", "eos": 5})");
  const TokenDataset data({path}, {});
  REQUIRE(ids_of(data) == std::vector<int32_t>{70000, 5});
  REQUIRE(data.files()[0]->format() == "raw .bin, uint32 (as " + folder / "meta.json" + " says)");
  std::filesystem::remove(folder / "meta.json");
  const TokenDataset named({folder.write("train.bin", raw_u16({9, 70, 800}))}, {});
  REQUIRE(named.files()[0]->format() == "raw .bin, uint16 (assumed from its name)");
  std::vector<uint32_t> wide(20, 1234);
  REQUIRE(refusal(folder.write("val.bin", bytes_of(wide))) ==
          folder / "val.bin" +
              ": nothing says what type its tokens have, and they look like uint32, not uint16\n"
              "  remedy: set data.token_dtype: uint32, or write a meta.json next to it: "
              "{\"dtype\": \"uint32\"}");
  REQUIRE(refusal(folder.write("train.bin", "abc")) ==
          folder / "train.bin" +
              ": has 3 bytes, not a whole number of uint16 tokens (assumed from its name)\n"
              "  remedy: correct the type, or copy the file again if it was cut short");
}

TEST_CASE("a flat file is divided into documents after each end id", "[formats]") {
  TemporaryFolder folder;
  const std::string path = folder.write("train.bin", raw_u16({1, 2, 0, 3, 0, 4, 5}));
  const TokenDataset data({path}, {.end_of_document = 0, .find_documents = true});
  REQUIRE(starts_of(data) == std::vector<int64_t>{0, 3, 5, 7});
  REQUIRE(refusal(path, {.find_documents = true}) ==
          path +
              ": has no document boundaries, and this packing needs them\n  remedy: write a "
              "meta.json next to it with the id that ends a document, such as {\"dtype\": "
              "\"uint16\", \"eos\": 2}, or set data.packing: concat");
  folder.write("meta.json", R"({"dtype": "uint16", "eos": 0})");
  REQUIRE(TokenDataset({path}, {.find_documents = true}).documents() == 3);
}

TEST_CASE("a data file's mask file determines the labels", "[formats]") {
  TemporaryFolder folder;
  const std::string path = folder.write("train.bin", counting_u16(11));
  folder.write("train.mask", mask_bytes({0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 1}));
  const TokenDataset data({path}, {});
  REQUIRE_FALSE(data.all_trained());
  REQUIRE(labels_of(data) ==
          std::vector<int32_t>{-100, 1, 2, -100, -100, -100, -100, -100, 8, -100, 10});
  REQUIRE(data.count_trained(0, 11) == 4);
  REQUIRE(data.count_trained(2, 6) == 1);
  REQUIRE(data.files()[0]->list_files().size() == 2);
}

TEST_CASE("counting mask bits agrees with testing each bit", "[formats]") {
  std::vector<std::byte> bytes(40);
  uint32_t state = 1;
  for (std::byte& b : bytes)
    b = static_cast<std::byte>((state = state * 1664525 + 1013904223) >> 24);
  const LossMask bits(bytes);
  for (int64_t first = 0; first < 80; ++first) {
    for (int64_t count : {0, 1, 7, 8, 63, 64, 65, 130, 200}) {
      int64_t expected = 0;
      for (int64_t i = first; i < first + count; ++i) expected += bits.is_trained(i) ? 1 : 0;
      REQUIRE(bits.count_trained(first, count) == expected);
    }
  }
}

TEST_CASE("an invalid mask is refused with its offset", "[formats]") {
  TemporaryFolder folder;
  const std::string path = folder.write("train.bin", counting_u16(11)),
                    mask = folder / "train.mask";
  const std::string good = mask_bytes(std::vector<int>(11, 1));
  const std::string remedy =
      "\n  remedy: write the mask again with scripts/prepare_data.py, or remove it to train on "
      "every token";
  const auto refused = [&](const std::string& bytes) {
    folder.write("train.mask", bytes);
    return refusal(path);
  };
  REQUIRE(refused(good).empty());
  REQUIRE(refused("FTR") ==
          mask + ": a mask file begins with a header of 24 bytes, this file has 3" + remedy);
  REQUIRE(refused("X" + good.substr(1)) ==
          mask + ": is not a mask file (offset 0: expected the letters FTRMASK)" + remedy);
  std::string bad = good;
  bad[8] = 9;
  REQUIRE(refused(bad) ==
          mask + ": offset 8: mask version 9, but this build reads version 1" + remedy);
  REQUIRE(refused(mask_bytes(std::vector<int>(12, 1))) ==
          mask + ": offset 16: the mask is for 12 tokens, the token file has 11" + remedy);
  REQUIRE(refused(good + "x") == mask + ": the file has 27 bytes, but 11 tokens need 26" + remedy);
  bad = good;
  bad[25] = static_cast<char>(0xff);
  REQUIRE(refused(bad) == mask + ": offset 25: bits after the last token are set" + remedy);
}

TEST_CASE("missing files, folders and files of other kinds are refused with a remedy",
          "[formats]") {
  TemporaryFolder folder;
  folder.write("train.bin", counting_u16(4));
  REQUIRE(refusal(folder / "tran.bin") == folder / "tran.bin" +
                                              ": no such file\n  remedy: did you mean " +
                                              folder / "train.bin" + "?");
  REQUIRE(refusal(folder / "other-name.bin") ==
          folder / "other-name.bin" +
              ": no such file\n  remedy: check the path, or write the data "
              "with scripts/prepare_data.py");
  REQUIRE(refusal(folder / "none/x.bin") ==
          folder / "none/x.bin" + ": no such file (and no folder " + folder / "none" +
              ")\n  remedy: check the path; it is relative to the working directory");
  REQUIRE(refusal(folder.path()) == folder.path() +
                                        ": is a folder, expected a data file\n"
                                        "  remedy: name one of its files: train.bin");
  REQUIRE(refusal(folder.write("a.txt", "hello")) ==
          folder / "a.txt" +
              ": not a data file that ftrun reads (expected .bin, .idx or .jsonl)\n  remedy: turn "
              "text or chats into tokens with scripts/prepare_data.py");
  REQUIRE(refusal(folder.write("val.bin", "")) ==
          folder / "val.bin" +
              ": holds no tokens\n  remedy: write the data again with scripts/prepare_data.py");
}

TEST_CASE("a file that is truncated while in use is noticed before its pages are read",
          "[formats]") {
  TemporaryFolder folder;
  const std::string path = folder.write("train.bin", counting_u16(4096));
  const TokenDataset data({path}, {});
  data.check_not_truncated();
  std::filesystem::resize_file(path, 100);
  REQUIRE(error_text_of([&] { data.check_not_truncated(); }) ==
          path +
              ": was cut from 8192 to 100 bytes while in use\n  remedy: write new data to a new "
              "file; do not change a file that a run is reading");
}

TEST_CASE("data.format decides if name and content are ambiguous", "[formats]") {
  TemporaryFolder folder;
  const std::string path = folder.write("x.bin", counting_u16(6));
  folder.write("x.idx", MegatronIndex({4, 2}).bytes());
  const auto format_of = [&](const TokenFileOptions& options) {
    return TokenDataset({path}, options).files()[0]->format();
  };
  REQUIRE(format_of({}) == "Megatron .bin/.idx, uint16");
  REQUIRE(format_of({.format = DataFormat::kNanogpt, .dtype = DType::kU16}) ==
          "raw .bin, uint16 (as data.token_dtype says)");
  REQUIRE(refusal(path, {.format = DataFormat::kLlmc}) ==
          path +
              ": offset 0: has 65536 where llm.c writes 20240520 or 20240801\n"
              "  remedy: set data.format: auto, or name an llm.c file");
  std::filesystem::remove(folder / "x.idx");
  REQUIRE(refusal(path, {.format = DataFormat::kMegatron}) ==
          path + ": its index " + folder / "x.idx" +
              " does not exist\n"
              "  remedy: set data.format: auto, or copy both files of the pair");
  // Raw tokens whose first bytes are llm.c's magic number.
  const std::string odd = folder.write("odd.bin", bytes_of<int32_t>({20240520, 5}));
  REQUIRE(TokenDataset({odd}, {.format = DataFormat::kNanogpt, .dtype = DType::kU16}).tokens() ==
          4);
}
