// RunDataIdentity tells a resumed run whether its data are those of the earlier start.
#include "training/run_data_identity.h"

#include <atomic>
#include <memory>
#include <string>

#include "../checkpoint/test_support.h"
#include "base/error.h"
#include "run_ranks.h"
#include "waiting.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::await_that;
using testing::MemoryFolder;
using testing::request_of;
using testing::require_error;
using testing::single_rank_session;
using testing::TemporaryFolder;
using testing::write_text;

/// Returns the request of a run in `folder` that resumes if it finds a run there.
TrainRequest resuming_request(const std::string& folder) {
  Config config;
  config.train_batch_size = 4;
  config.train.log.tensorboard = false;
  TrainRequest request = request_of(0, 1, config);
  request.config.output_dir = folder;
  request.resume.is_requested = true;
  return request;
}

/// IdentifiedRun is the start of a run of one rank that reads a small data set.
struct IdentifiedRun {
  explicit IdentifiedRun(const TemporaryFolder& folder)
      : request(resuming_request(folder / "run")) {
    write_text(folder / "data.bin", std::string(256, '\1'));
    SequenceSetOptions options;
    options.sequence_length = 8;
    options.dtype = DType::kU16;
    data.train =
        std::make_unique<SequenceSet>(std::vector<std::string>{folder / "data.bin"}, options);
  }

  /// Opens the run folder for a run whose record has this fingerprint.
  void open(const std::string& fingerprint) {
    journal.open_folder();
    journal.open(
        [&] {
          RunManifest manifest = make_manifest(request);
          manifest.data["train"].fingerprint = fingerprint;
          return manifest;
        },
        0, 9);
  }
  /// Returns the fingerprint of the training data in run.json.
  std::string recorded() const {
    return read_manifest(RunPaths(request.config.output_dir).manifest())
        .data.at("train")
        .fingerprint;
  }
  std::string computed() const {
    const std::atomic<bool> stop = false;
    return compute_fingerprint(data.train->data(), stop)->digest;
  }
  void await_fingerprint() {
    await_that(
        [&] {
          identity.record_known_fingerprints();
          return !identity.training_fingerprint().empty();
        },
        "the fingerprint of the data");
  }

  TrainRequest request;
  RunData data;
  std::unique_ptr<Session> session = single_rank_session(request);
  RunJournal journal{request, *session, [](const LogOptions&) {}};
  RunDataIdentity identity{request, *session, journal};
};

TEST_CASE("a resumed run does not ascribe the earlier fingerprint to data that it has not read") {
  const MemoryFolder folder;
  const std::string other = "0123456789abcdef";
  IdentifiedRun(folder).open(other);
  IdentifiedRun run(folder);
  run.open("");
  run.identity.set_checkpoint("step-00000004", other);
  run.identity.start(run.data);
  CHECK(run.identity.training_fingerprint().empty());
  CHECK(run.recorded() == other);
  CHECK(require_error(ExitCode::kUsage, [&] { run.await_fingerprint(); })
            .find(cat("data.train.fingerprint: was ", other, ", is now ", run.computed())) !=
        std::string::npos);
  CHECK(run.identity.training_fingerprint().empty());
  CHECK(run.recorded() == other);  // the refused start has removed nothing
}

TEST_CASE("a resumed run on the same data has their fingerprint once all are read") {
  const MemoryFolder folder;
  const std::string same = IdentifiedRun(folder).computed();
  IdentifiedRun(folder).open(same);
  IdentifiedRun run(folder);
  run.open("");
  run.identity.set_checkpoint("step-00000004", same);
  run.identity.start(run.data);
  CHECK(run.identity.training_fingerprint().empty());
  run.await_fingerprint();
  CHECK(run.identity.training_fingerprint() == same);
  CHECK(run.recorded() == same);
}

}  // namespace
}  // namespace ftrun
