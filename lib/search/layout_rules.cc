#include "search/layout_rules.h"

#include <variant>

#include "search/enumerate.h"

namespace ftrun {
namespace {

constexpr const char* kNodeShards = "zero_optimization.zero_hpz_partition_size";

/// Replaces the number of replicas, if it is above 1, by the smallest allowed number above 1.
/// Whether a config is allowed does not depend on the exact number, except with secondary shards,
/// which must divide the number of shards; then the layout is returned unchanged.
Layout with_few_replicas(const SearchTask& task, Layout layout) {
  if (layout.replicas == 1 || task.written.get<int64_t>(kNodeShards) > 1) return layout;
  int64_t least = 2;
  while (layout.data % least != 0) ++least;
  layout.replicas = least;
  return layout;
}

void copy_state(const Layout& from, Layout& to) {
  to.zero = from.zero;
  to.replicas = from.replicas;
  to.optimizer_offload = from.optimizer_offload;
  to.parameter_offload = from.parameter_offload;
}

void copy_schedule(const Layout& from, Layout& to) {
  to.schedule = from.schedule;
  to.chunks = from.chunks;
  to.micro_batch = from.micro_batch;
  to.accumulation = from.accumulation;
}

}  // namespace

const LayoutRules::ResolveResult& LayoutRules::resolve_once(const Layout& layout) {
  const auto [known, added] = resolved_.try_emplace(layout);
  if (!added) return known->second;
  const std::variant<Config, std::string> tried = resolve_layout(task_, layout);
  if (const auto* refusal = std::get_if<std::string>(&tried))
    known->second.refusal = *refusal;
  else
    known->second.properties = state_properties(std::get<Config>(tried));
  return known->second;
}

/// Searches for an allowed layout on the mesh of `layout`. It tries each ZeRO stage without
/// offload, with the smallest and the largest micro-batch.
const LayoutRules::MeshTrial& LayoutRules::allowed_example_on_mesh_of(const Layout& layout) {
  const auto [known, added] =
      allowed_examples_.try_emplace({layout.data, layout.tensor, layout.pipeline});
  MeshTrial& example = known->second;
  if (!added) return example;
  const int64_t rows = layout.micro_batch * layout.accumulation;
  for (const int64_t micro_batch : {int64_t{1}, rows})
    for (int64_t zero = 0; zero <= 3; ++zero) {
      const Layout plain{.data = layout.data,
                         .tensor = layout.tensor,
                         .pipeline = layout.pipeline,
                         .zero = zero,
                         .micro_batch = micro_batch,
                         .accumulation = rows / micro_batch};
      const ResolveResult& tried = resolve_once(plain);
      if (example.first_tried == nullptr) example.first_tried = &tried;
      if (!tried.is_allowed()) continue;
      example.layout = plain;
      return example;
    }
  return example;
}

/// Judges all layouts of a kind by the first one that is asked for; its aspects are allowed one by
/// one.
const LayoutRules::ResolveResult& LayoutRules::result_of_kind(const Layout& layout) {
  const auto several = [](int64_t number) { return static_cast<int64_t>(number > 1); };
  Layout kind = layout;
  for (int64_t Layout::*number : {&Layout::data, &Layout::replicas, &Layout::tensor,
                                  &Layout::pipeline, &Layout::micro_batch, &Layout::accumulation})
    kind.*number = several(layout.*number);
  const ResolveResult*& known = kinds_[{layout.ranks(), kind}];
  if (known == nullptr) known = &resolve_once(layout);
  return *known;
}

LayoutRules::Judgement LayoutRules::judge(const Layout& layout) {
  const MeshTrial& example = allowed_example_on_mesh_of(layout);
  if (!example.layout) return {.refusal = &example.first_tried->refusal};
  Layout order = *example.layout, state = *example.layout, recompute = *example.layout;
  copy_schedule(layout, order);
  const Layout few = with_few_replicas(task_, layout);
  copy_state(few, state);
  recompute.recompute = layout.recompute;
  for (const Layout& aspect : {order, recompute})
    if (const ResolveResult& tried = resolve_once(aspect); !tried.is_allowed())
      return {.refusal = &tried.refusal};
  const ResolveResult& of_state = resolve_once(state);
  if (!of_state.is_allowed()) return {.refusal = &of_state.refusal};
  const ResolveResult& together = result_of_kind(few);
  if (!together.is_allowed()) return {.refusal = &together.refusal};
  return {.properties = &of_state.properties};
}

}  // namespace ftrun
