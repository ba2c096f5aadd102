#include "search/enumerate.h"

#include <algorithm>
#include <set>
#include <utility>

#include "axes/model_fit.h"
#include "base/error.h"

namespace ftrun {
namespace {

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> found;
  for (int64_t d = 1; d * d <= number; ++d) {
    if (number % d != 0) continue;
    found.push_back(d);
    if (d * d != number) found.push_back(number / d);
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// Lists the numbers of ranks to try: all GPUs of the nodes, or, on CPUs, each number of ranks with
/// which the machine was measured.
std::vector<int64_t> list_rank_counts(const SearchTask& task) {
  if (task.machine.has_gpus) return {task.machine.devices * task.nodes};
  std::set<int64_t> counts;
  for (const Rates& rates : task.machine.rates)
    if (rates.ranks <= task.machine.devices) counts.insert(rates.ranks * task.nodes);
  return {counts.begin(), counts.end()};
}

struct StateOffload {
  OffloadDevice optimizer = OffloadDevice::kNone;
  OffloadDevice parameters = OffloadDevice::kNone;
};

/// Lists the offload targets of optimizer state and parameters that are possible at a ZeRO stage.
std::vector<StateOffload> list_state_offloads(const SearchTask& task, int64_t stage) {
  constexpr OffloadDevice kNone = OffloadDevice::kNone, kCpu = OffloadDevice::kCpu,
                          kNvme = OffloadDevice::kNvme;
  std::vector<StateOffload> all{{}};
  if (stage == 0 || !task.offloads) return all;
  const auto has_folder = [&](const char* key) {
    return !task.written.get<std::string>(key).empty();
  };
  const bool disk = has_folder("zero_optimization.offload_optimizer.nvme_path");
  const bool disk_of_parameters = has_folder("zero_optimization.offload_param.nvme_path");
  all.push_back({kCpu, kNone});
  if (disk) all.push_back({kNvme, kNone});
  if (stage < 3) return all;
  all.push_back({kNone, kCpu});
  all.push_back({kCpu, kCpu});
  if (disk) all.push_back({kNvme, kCpu});
  if (disk && disk_of_parameters) all.push_back({kNvme, kNvme});
  return all;
}

struct PipelineChoice {
  PipelineSchedule schedule = kDefaultSchedule;
  int64_t chunks = 1;
};

/// Lists the schedules and chunk counts that a search tries for a number of stages, the preferred
/// ones first: among equally fast and equally simple layouts the search keeps the first.
std::vector<PipelineChoice> list_pipelines(int64_t stages) {
  if (stages == 1) return {{}};
  std::vector<PipelineChoice> all;
  const auto add = [&](const PipelineScheduleTraits& traits) {
    all.push_back({traits.schedule, traits.default_chunks});
    if (traits.chunks_configurable) all.push_back({traits.schedule, 2 * traits.default_chunks});
  };
  add(traits_of(kDefaultSchedule));
  for (const PipelineScheduleTraits& traits : kPipelineScheduleTraits)
    if (traits.schedule != kDefaultSchedule) add(traits);
  return all;
}

/// LayoutsByComplexity groups layouts by complexity_score(), keeping the order in which they were
/// added.
class LayoutsByComplexity {
 public:
  void add(const Layout& layout) {
    const auto score = static_cast<size_t>(complexity_score(layout));
    if (score >= layouts_.size()) layouts_.resize(score + 1);
    layouts_[score].push_back(layout);
    ++count_;
  }

  /// Lists all layouts, the simplest first. There may be a million layouts, and sorting them would
  /// take seconds.
  std::vector<Layout> take_sorted() && {
    std::vector<Layout> all;
    all.reserve(count_);
    for (std::vector<Layout>& same : layouts_) {
      all.insert(all.end(), same.begin(), same.end());
      same = {};
    }
    return all;
  }

 private:
  std::vector<std::vector<Layout>> layouts_;  // [score]
  size_t count_ = 0;
};

/// MeshLayouts lists the layouts of one mesh (data, tensor and pipeline degree).
class MeshLayouts {
 public:
  MeshLayouts(const SearchTask& task, const Layout& mesh, LayoutsByComplexity& all)
      : task_(task), mesh_(mesh), all_(all) {}

  /// Adds all layouts of the mesh to `all`.
  void add_all() {
    for (const int64_t micro_batch : divisors(task_.batch / mesh_.data))
      for (const RecomputeLevel level :
           {RecomputeLevel::kNone, RecomputeLevel::kSelective, RecomputeLevel::kFull})
        for (const PipelineChoice& pipeline : list_pipelines(mesh_.pipeline))
          add(micro_batch, level, pipeline);
  }

 private:
  void add(int64_t micro_batch, RecomputeLevel level, const PipelineChoice& pipeline) {
    Layout layout = mesh_;
    layout.micro_batch = micro_batch;
    layout.accumulation = task_.batch / mesh_.data / micro_batch;
    layout.recompute = level;
    layout.schedule = pipeline.schedule;
    layout.chunks = pipeline.chunks;
    for (layout.zero = 0; layout.zero <= 3; ++layout.zero) add_state(layout);
  }

  void add_state(Layout layout) {
    for (const int64_t replicas : divisors(layout.data)) {
      // At stage 0 each rank has a copy of the state anyway. At other stages, as many replicas as
      // ranks would be the same as stage 0.
      if (layout.zero == 0 ? replicas > 1 : replicas > 1 && replicas == layout.data) continue;
      layout.replicas = replicas;
      for (const StateOffload& offload : list_state_offloads(task_, layout.zero)) {
        layout.optimizer_offload = offload.optimizer;
        layout.parameter_offload = offload.parameters;
        all_.add(layout);
      }
    }
  }

  const SearchTask& task_;
  const Layout mesh_;
  LayoutsByComplexity& all_;
};

}  // namespace

std::vector<Layout> list_layouts(const SearchTask& task) {
  LayoutsByComplexity all;
  for (const int64_t ranks : list_rank_counts(task))
    for (const int64_t tensor : divisors(ranks))
      for (const int64_t pipeline : divisors(ranks / tensor)) {
        Layout mesh;
        mesh.tensor = tensor;
        mesh.pipeline = pipeline;
        mesh.data = ranks / tensor / pipeline;
        if (task.batch % mesh.data == 0) MeshLayouts(task, mesh, all).add_all();
      }
  return std::move(all).take_sorted();
}

std::variant<Config, std::string> resolve_layout(const SearchTask& task, const Layout& layout) {
  WrittenConfig written = task.written;
  write_layout(layout, written);
  ResolveContext context = task.context;
  context.world_size = layout.ranks();
  context.local_ranks = layout.ranks() / task.nodes;
  ResolvedConfig resolution = resolve(written, context);
  for (const Problem& problem : resolution.problems)
    if (problem.severity == Severity::kError) return problem.message;
  if (!resolution.unsupported.empty())
    return cat("not supported yet: ", resolution.unsupported.front().feature);
  if (const auto problem = find_model_fit_problem(resolution.config, task.model))
    return problem->error.message();
  return std::move(resolution.config);
}

}  // namespace ftrun
