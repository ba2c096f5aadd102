// These tests read files that scripts/prepare_data.py wrote and that are kept in the repository:
// both programs must keep agreeing on the formats (tests/data/prepare_data_test.py writes the files
// again and compares).
#include "fixtures.h"

#include "data/fingerprint.h"
#include "data/sequence_reader.h"
#include "data/sequence_set.h"
#include "source_paths.h"

#include <algorithm>

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace ftrun::testing;

namespace {
const std::string kPrefix = testing::source_dir() + "/tests/data/fixtures/chats";
const std::atomic<bool> kNeverStop = false;
}  // namespace

TEST_CASE("prepare_data.py's own files are read back", "[fixture]") {
  const TokenDataset data({kPrefix}, {});
  REQUIRE(data.tokens() == 143);
  REQUIRE(data.documents() == 3);
  REQUIRE(data.count_trained(0, 143) == 43);
  REQUIRE(data.count_trained(data.document_start(2), 143 - data.document_start(2)) ==
          143 - data.document_start(2));  // all of a plain text counts
  REQUIRE(data.files()[0]->format() == "Megatron .bin/.idx, uint16");
  REQUIRE(data.locate(142).value == 0);  // the end id
}

TEST_CASE("prepare_data.py's fingerprint and ftrun's are the same", "[fixture]") {
  const TokenDataset data({kPrefix + ".bin"}, {});
  const auto computed = compute_fingerprint(data, kNeverStop);
  const auto side = read_sidecar(kPrefix + ".bin");
  REQUIRE(side.has_value());
  REQUIRE(side->statistics.max_id == computed->statistics.max_id);
  REQUIRE(side->statistics.trained_tokens == computed->statistics.trained_tokens);
  REQUIRE(side->files.size() == computed->files.size());
  for (size_t i = 0; i < side->files.size(); ++i)
    REQUIRE(side->files[i].xxh3 == computed->files[i].xxh3);
  REQUIRE(fingerprint_digest(side->files) == "934dfc5dbcf09e56");
  REQUIRE(computed->digest == "934dfc5dbcf09e56");
  // A checkout has other file times than those that were recorded.
  REQUIRE_FALSE(recorded_fingerprint(data).has_value());
}

TEST_CASE("a masked chat trains only on its answers", "[fixture]") {
  const SequenceSet sequences({kPrefix},
                              {.sequence_length = 128, .packing = SequencePacking::kNone});
  SequenceReader reader(sequences, 300);
  MicroBatch batch;
  reader.reset(batch, 1);
  reader.fill(batch, 0, 0);
  // The counted tokens are "Four.", the end mark and the line break after it.
  REQUIRE(batch.counted_tokens == 7);
  const auto last = std::find_if(batch.labels.rbegin(), batch.labels.rend(),
                                 [](int32_t label) { return label != kIgnoredLabel; });
  REQUIRE(batch.labels.size() - static_cast<size_t>(last - batch.labels.rbegin()) ==
          static_cast<size_t>(sequences.data().document_start(1) - 1));
}
