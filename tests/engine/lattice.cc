#include "lattice.h"

#include <algorithm>
#include <span>
#include <utility>

#include "axes/pipeline/schedule.h"
#include "base/error.h"
#include "pairwise.h"

namespace ftrun::testing {
namespace {

using enum PipelineSchedule;
constexpr PipelineSchedule kLatticeSchedules[] = {kGpipe, k1F1B, kInterleaved, kZbH1, kZbV};
constexpr int kLatticeLayers = 8;

bool is_known_to_differ(const TrainingMesh& mesh, int64_t stage) {
  return stage == 0 && mesh.replicas > 1;
}

bool is_possible(const LatticeCell& cell) {
  const TrainingMesh& mesh = cell.mesh;
  if (is_known_to_differ(mesh, cell.stage)) return false;
  if (mesh.stages == 1 && cell.schedule != k1F1B) return false;
  if (cell.stage == 0 && cell.tier != OffloadDevice::kNone) return false;
  return cell.schedule != kInterleaved ||
         accepts_micro_batches(PipelineSchedule::kInterleaved, mesh.stages,
                               mesh.micro_batches / mesh.data());
}

std::vector<LatticeCell> possible_cells(const std::vector<TrainingMesh>& meshes) {
  std::vector<LatticeCell> cells{{}};
  // Replaces each cell by one copy for each value of an axis.
  const auto along = [&](const auto& values, const auto& set) {
    std::vector<LatticeCell> more;
    for (const LatticeCell& cell : cells)
      for (const auto& value : values) set(more.emplace_back(cell), value);
    cells = std::move(more);
  };
  along(meshes, [](LatticeCell& c, const TrainingMesh& mesh) { c.mesh = mesh; });
  along(std::vector{1, 2, 5, 8}, [](LatticeCell& c, int accumulation) {
    c.mesh.micro_batches = accumulation * c.mesh.data();
  });
  along(std::vector{0, 1, 2, 3}, [](LatticeCell& c, int stage) { c.stage = stage; });
  along(kLatticeSchedules,
        [](LatticeCell& c, PipelineSchedule schedule) { c.schedule = schedule; });
  along(std::vector{OffloadDevice::kNone, OffloadDevice::kCpu, OffloadDevice::kNvme},
        [](LatticeCell& c, OffloadDevice tier) { c.tier = tier; });
  std::erase_if(cells, [](const LatticeCell& cell) { return !is_possible(cell); });
  along(std::vector{RecomputeLevel::kNone, RecomputeLevel::kSelective, RecomputeLevel::kFull},
        [](LatticeCell& c, RecomputeLevel recompute) { c.recompute = recompute; });
  along(std::vector<std::string>{"llama", "mistral", "qwen2", "qwen3"},
        [](LatticeCell& c, const std::string& family) { c.family = family; });
  along(std::vector{false, true}, [](LatticeCell& c, bool tied) { c.tied = tied; });
  return cells;
}

}  // namespace

const std::vector<std::string>& lattice_axes() {
  static const std::vector<std::string> axes{
      "tensor", "pipeline",   "data",  "data_replicate",        "ZeRO", "schedule", "recompute",
      "family", "embeddings", "state", "micro-batches per rank"};
  return axes;
}

std::vector<std::string> LatticeCell::values() const {
  return {std::to_string(mesh.tensor),
          std::to_string(mesh.stages),
          std::to_string(mesh.shards),
          std::to_string(mesh.replicas),
          std::to_string(stage),
          mesh.stages == 1 ? "none" : std::string(name_of(schedule)),
          std::string(name_of(recompute)),
          family,
          tied ? "tied" : "untied",
          tier == OffloadDevice::kNone ? "device" : std::string(name_of(tier)),
          std::to_string(mesh.micro_batches / mesh.data())};
}

ModelConfig LatticeCell::model() const {
  ModelConfig model = small_model(tied);
  model.vocab_rows = 96;
  model.hidden = 32;
  model.feed_forward = 96;
  model.head_size = 8;
  model = with_layers(model, kLatticeLayers);
  if (family == "mistral") model.windows.assign(model.windows.size(), 3);
  model.qkv_bias = family == "qwen2";
  if (family == "qwen3") model.qk_norm = QkNorm::kEachHead;
  return model;
}

Config LatticeCell::config() const {
  Config config = config_of_stage(stage);
  config.parallel.schedule = schedule;
  config.parallel.virtual_stages = schedule == kInterleaved || schedule == kZbV ? 2 : 1;
  config.recompute.policy = recompute;
  offload_to(config, tier);
  return config;
}

std::vector<TrainingMesh> lattice_meshes() {
  std::vector<TrainingMesh> meshes;
  for (const int tensor : {1, 2, 4})
    for (const int stages : {1, 2, 4})
      for (const int shards : {1, 2, 3})
        for (const int replicas : {1, 2}) {
          const TrainingMesh mesh{tensor, shards, replicas, stages};
          if (mesh.ranks() > 1 && mesh.ranks() <= 8) meshes.push_back(mesh);
        }
  return meshes;
}

std::vector<LatticeCell> complete_cells() {
  std::vector<LatticeCell> cells;
  for (const TrainingMesh& mesh : lattice_meshes())
    for (const int64_t stage : {0, 1, 2, 3})
      for (const PipelineSchedule schedule : kLatticeSchedules) {
        const LatticeCell cell{.mesh = mesh, .stage = stage, .schedule = schedule};
        if (is_possible(cell)) cells.push_back(cell);
      }
  return cells;
}

std::vector<AxisPair> pairs_of(const LatticeCell& cell) {
  const std::vector<std::string> values = cell.values();
  std::vector<AxisPair> pairs;
  for (size_t a = 0; a < values.size(); ++a)
    for (size_t b = a + 1; b < values.size(); ++b) pairs.emplace_back(a, values[a], b, values[b]);
  return pairs;
}

std::vector<LatticeCell> covering_cells(const std::vector<TrainingMesh>& meshes) {
  const std::vector<LatticeCell> possible = possible_cells(meshes);
  std::map<AxisPair, int> numbers;
  std::vector<std::vector<int>> pairs(possible.size());
  for (size_t i = 0; i < possible.size(); ++i)
    for (AxisPair& pair : pairs_of(possible[i]))
      pairs[i].push_back(
          numbers.try_emplace(std::move(pair), static_cast<int>(numbers.size())).first->second);
  std::vector<LatticeCell> cells;
  for (const size_t chosen : cover_pairs(possible.size(), numbers.size(),
                                         [&](size_t i) { return std::span<const int>(pairs[i]); }))
    cells.push_back(possible[chosen]);
  return cells;
}

bool is_within(const Differences& found, bool norm) {
  return found.loss < kLossBound && norm &&
         std::all_of(found.weights.begin(), found.weights.end(),
                     [](const auto& one) { return one.second < weight_bound(one.first); });
}

Lattice::Reference& Lattice::reference(const LatticeCell& cell) {
  Reference& reference =
      references_[cat(cell.family, " ", cell.tied, " ", cell.mesh.micro_batches)];
  if (reference.one_process.losses.empty())
    reference.one_process = train_on_mesh(config_of_stage(0), cell.model(),
                                          {.micro_batches = cell.mesh.micro_batches}, steps_);
  return reference;
}

Differences Lattice::run(const LatticeCell& cell) {
  return differences(train_on_mesh(cell.config(), cell.model(), cell.mesh, steps_),
                     reference(cell).one_process);
}

LatticeFigures Lattice::measure(const LatticeCell& cell) {
  const ModelConfig model = cell.model();
  const Config one = config_of_stage(0);
  const int micro_batches = cell.mesh.micro_batches;
  Reference& of = reference(cell);
  if (of.exact_norms.empty()) of.exact_norms = exact_norms(one, model, micro_batches, steps_);
  const TrainingOutcome found = train_on_mesh(cell.config(), model, cell.mesh, steps_);
  const std::vector<double> errors = relative_errors(found.norms, of.exact_norms);
  const std::vector<double> own = relative_errors(of.one_process.norms, of.exact_norms);
  LatticeFigures figures;
  figures.differences = differences(found, of.one_process);
  figures.norm_error = *std::max_element(errors.begin(), errors.end());
  figures.one_process_norm_error = *std::max_element(own.begin(), own.end());
  bool norm = figures.differences.norm < kGradientNormBound;
  if (!norm) {
    if (!of.fresh) of.fresh = std::make_unique<FreshSteps>(one, model, micro_batches, steps_);
    figures.fresh_norm_error = of.fresh->largest_norm_error(cell.config(), cell.mesh);
    figures.one_process_fresh_norm_error =
        of.fresh->largest_norm_error(one, {.micro_batches = micro_batches});
    norm = is_no_worse(errors, own, kTimesOwnError) &&
           figures.fresh_norm_error < kFreshGradientNormBound;
  }
  figures.is_within_bounds = is_within(figures.differences, norm);
  return figures;
}

}  // namespace ftrun::testing
