#include "training/export_weights.h"

#include <exception>
#include <optional>
#include <span>
#include <vector>

#include "base/as_error.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hub_cache.h"
#include "base/log.h"
#include "engine/changed_tensors.h"
#include "inputs/export_options.h"
#include "inputs/weights_check.h"

namespace ftrun {
namespace {

/// InitialWeightsReader reads the initial values of the trained tensors, which ChangedTensors
/// compares with the trained values. If they can no longer be read, nothing is compared, because
/// the export must not fail for this reason.
class InitialWeightsReader {
 public:
  InitialWeightsReader(const Config& config, const TrainingSetup& setup, DType dtype) {
    if (!setup.folder().has_intact_files()) return;
    try {
      const std::string& begun_from = config.adapter.path;
      if (!begun_from.empty()) adapter_.emplace(find_adapter_folder(begun_from).folder);
      initial_.emplace(setup.folder(), static_cast<uint64_t>(config.train.seed),
                       adapter_ ? &*adapter_ : nullptr);
      initial_->check_fit(setup.train_plan().model);
      changed_tensors_.emplace(setup.train_plan().model, *initial_, dtype);
    } catch (const Error& error) {
      log_debug(cat("cannot check whether trained tensors changed: ", error.message()));
    }
  }
  ChangedTensors* changed_tensors() { return changed_tensors_ ? &*changed_tensors_ : nullptr; }

 private:
  std::optional<AdapterFolder> adapter_;
  std::optional<InitialWeights> initial_;
  std::optional<ChangedTensors> changed_tensors_;
};

/// ExportStopped is thrown through export_model(), which then removes the files that it has
/// written.
struct ExportStopped {};

/// PieceCollector does one rank's part of the joint work on each piece of the export: all ranks
/// agree on whether to stop, and the writing rank receives the piece.
class PieceCollector {
 public:
  /// Keeps references to all arguments. `changed_tensors` is null except on the writing rank.
  PieceCollector(TrainingSetup& setup, bool writes, const std::function<bool()>& stop,
                 ChangedTensors* changed_tensors)
      : setup_(setup), writes_(writes), stop_(stop), changed_tensors_(changed_tensors) {}

  /// Collects a piece. Collective. If this rank fails, it aborts all groups, because the other
  /// ranks would wait for it.
  void collect(const ExportPiece& piece, std::span<float> out) {
    ++next_piece_;
    try {
      if (stop_()) throw ExportStopped{};
      if (is_sender())
        setup_.state().gather_elements(piece.tensor, piece.begin, piece.end, writes_,
                                       *setup_.communicators().host_model, out,
                                       setup_.save_buffers().sectors());
      if (changed_tensors_ != nullptr && !out.empty())
        changed_tensors_->compare(piece.tensor, piece.begin, out);
    } catch (const std::exception& exception) {
      has_failed_ = true;
      const std::string reason =
          cat("it failed at exporting ", piece.tensor, ": ", as_error(exception).message());
      for (Communicator* group : setup_.communicators().distinct_communicators())
        group->abort(reason);
      throw;
    }
  }

  /// Takes part in collecting the remaining pieces, and drops them.
  void collect_remaining(const std::vector<ExportPiece>& pieces) {
    std::vector<float> dropped;
    for (size_t i = next_piece_; i < pieces.size(); ++i) {
      if (writes_) dropped.resize(static_cast<size_t>(pieces[i].end - pieces[i].begin));
      collect(pieces[i], dropped);
    }
  }

  bool has_failed() const { return has_failed_; }

 private:
  /// Returns whether this rank sends its state. All replicas hold the same state, so only the ranks
  /// of the first replica send; the others only take part in the agreement.
  bool is_sender() const { return setup_.plan().options.state.replica == 0; }

  TrainingSetup& setup_;
  const bool writes_;
  const std::function<bool()>& stop_;
  ChangedTensors* changed_tensors_;
  size_t next_piece_ = 0;
  bool has_failed_ = false;
};

/// Throws an Error unless the export can be opened as a run would open it, and has every tensor in
/// its shape.
void check_loads(const ExportOptions& options, const ModelDescription& model) {
  if (options.format == ExportFormat::kAdapter) {
    locate_adapter_tensors(model, AdapterFolder(options.folder));
    return;
  }
  ModelFolder folder(options.folder);
  map_to_model_names(folder, model, /*logs_notices=*/false);
  check_model_weights(model, folder);
}

/// Writes the export on the writing rank. Returns an exception that occurred between pieces, which
/// the other ranks do not notice.
std::exception_ptr write_export(const ExportOptions& options,
                                const std::vector<ExportTensor>& tensors,
                                const ModelDescription& model, PieceCollector& pieces) {
  try {
    export_model(
        posix_files(), options, tensors,
        [&](const ExportPiece& piece, std::span<float> out) { pieces.collect(piece, out); });
    check_loads(options, model);
  } catch (const std::exception&) {
    if (pieces.has_failed()) throw;
    return std::current_exception();
  }
  return nullptr;
}

/// The number of elements of a piece of a run's export. The values of a piece are in the memory
/// that saves use, because no save is in progress. All other memory of the export is small compared
/// with that of a step.
constexpr int64_t kPieceElements = int64_t{1} << 18;

/// Returns the export options of the config, with pieces in the memory of the save buffers.
ExportOptions options_of_run(const Config& config, const TrainingSetup& setup) {
  ExportOptions options = export_options(config, setup.model_config());
  options.piece_elements = kPieceElements;
  options.piece_buffer = setup.save_buffers().file();
  return options;
}

}  // namespace

int64_t export_working_bytes(const Config& config, TrainingSetup& setup) {
  if (!config.model_export.enabled) return 0;
  const bool receives = setup.communicators().host_model->size() > 1;
  return setup.state().gather_bytes(kPieceElements) +
         (receives ? kPieceElements * dtype_bytes(DType::kF32) : 0) +
         export_whole_bytes(
             export_tensors(options_of_run(config, setup), setup.train_plan().model));
}

ExportResult export_weights(const Config& config, TrainingSetup& setup, bool writes,
                            const std::function<bool()>& stop) {
  ExportOptions options = options_of_run(config, setup);
  if (options.format == ExportFormat::kModel) options.config_json = setup.folder().config_json();
  const std::vector<ExportTensor> tensors = export_tensors(options, setup.train_plan().model);
  std::optional<InitialWeightsReader> initial_weights;
  if (writes) initial_weights.emplace(config, setup, options.dtype);
  PieceCollector pieces(setup, writes, stop,
                        initial_weights ? initial_weights->changed_tensors() : nullptr);
  ExportResult result;
  try {
    if (writes) result.failure = write_export(options, tensors, setup.train_plan().model, pieces);
    // After a failure of the writing rank the other ranks continue to send. It receives and drops
    // the remaining pieces, so that all ranks reach the point where the failure is reported.
    const bool alone = setup.communicators().host_world->size() == 1;
    if (!writes || (result.failure && !alone))
      pieces.collect_remaining(export_pieces(options, tensors));
  } catch (const ExportStopped&) {
    result.stopped = true;
  }
  if (initial_weights && initial_weights->changed_tensors() != nullptr)
    result.unchanged_warning = initial_weights->changed_tensors()->warning();
  return result;
}

}  // namespace ftrun
