#include "kernels/cuda/cudnn_graph.h"

#include <algorithm>

#include "base/error.h"
#include "base/library_error.h"

namespace ftrun::cuda {

namespace {

/// Returns cuDNN's message for a status, followed by the last error message that it recorded.
std::string status_text(const CudnnApi& api, int status) {
  char noted[512] = "";
  api.last_error(noted, sizeof noted);
  return cat(api.error_string(status), noted[0] == '\0' ? "" : ": ", noted);
}

void add_target(CudnnDescriptor& to, const CudnnTarget& target, CudnnAttribute handle) {
  if (target.handle != nullptr) to.set(handle, CudnnElement::kHandle, target.handle);
}

std::vector<CudnnDescriptor> make_descriptors(const CudnnApi& api, CudnnKind kind, int64_t count) {
  std::vector<CudnnDescriptor> descriptors;
  for (int64_t i = 0; i < count; ++i) descriptors.emplace_back(api, kind);
  return descriptors;
}

/// Lists the engine configurations that cuDNN's heuristics propose for the graph, best first.
std::vector<CudnnDescriptor> list_engine_configs(const CudnnApi& api, const CudnnDescriptor& graph,
                                                 const CudnnTarget& target) {
  CudnnDescriptor heuristics(api, CudnnKind::kHeuristics);
  heuristics.set(CudnnAttribute::kHeuristicsGraph, graph);
  heuristics.set(CudnnAttribute::kHeuristicsMode, CudnnElement::kHeuristicsMode, kCudnnHeuristicsA);
  if (target.properties != nullptr)
    heuristics.set(CudnnAttribute::kHeuristicsDevice, *target.properties);
  heuristics.finalize();
  const int64_t count =
      heuristics.get(CudnnAttribute::kHeuristicsResults, CudnnElement::kDescriptor, 0, nullptr);
  std::vector<CudnnDescriptor> configs = make_descriptors(api, CudnnKind::kEngineConfig, count);
  std::vector<void*> raw;
  for (const CudnnDescriptor& config : configs) raw.push_back(config.raw());
  const int64_t returned_count = heuristics.get(CudnnAttribute::kHeuristicsResults,
                                                CudnnElement::kDescriptor, count, raw.data());
  while (static_cast<int64_t>(configs.size()) > returned_count) configs.pop_back();
  return configs;
}

bool is_deterministic(const CudnnApi& api, const CudnnDescriptor& config) {
  CudnnDescriptor engine(api, CudnnKind::kEngine);
  void* raw = engine.raw();
  config.get(CudnnAttribute::kEngineConfigEngine, CudnnElement::kDescriptor, 1, &raw);
  std::array<int, 16> notes{};
  const int64_t count =
      engine.get(CudnnAttribute::kEngineNumericalNotes, CudnnElement::kNumericalNote,
                 static_cast<int64_t>(notes.size()), notes.data());
  return std::find(notes.begin(), notes.begin() + count, kCudnnNoteNondeterministic) ==
         notes.begin() + count;
}

}  // namespace

std::string cudnn_version_text(size_t version) {
  return cat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

CudnnDescriptor::CudnnDescriptor(const CudnnApi& api, CudnnKind kind) : api_(api) {
  check(api_.create_descriptor(static_cast<int>(kind), &raw_), "making a descriptor");
}

CudnnDescriptor::~CudnnDescriptor() {
  if (raw_ != nullptr) api_.destroy_descriptor(raw_);
}

void CudnnDescriptor::check(int status, const char* what) const {
  if (status == kCudnnSuccess) return;
  throw_library_error(what, "cuDNN", status_text(api_, status));
}

void CudnnDescriptor::set(CudnnAttribute name, CudnnElement element, int64_t count,
                          const void* elements) {
  check(
      api_.set_attribute(raw_, static_cast<int>(name), static_cast<int>(element), count, elements),
      "describing attention");
}

void CudnnDescriptor::finalize() {
  check(api_.finalize(raw_), "describing attention");
}

std::optional<std::string> CudnnDescriptor::try_finalize() {
  const int status = api_.finalize(raw_);
  if (status == kCudnnSuccess) return std::nullopt;
  return status_text(api_, status);
}

int64_t CudnnDescriptor::get(CudnnAttribute name, CudnnElement element, int64_t max_count,
                             void* elements) const {
  int64_t count = 0;
  check(api_.get_attribute(raw_, static_cast<int>(name), static_cast<int>(element), max_count,
                           &count, elements),
        "asking about attention");
  return count;
}

CudnnPlan::CudnnPlan(const CudnnApi& api, std::vector<CudnnDescriptor> parts, CudnnDescriptor plan)
    : api_(api), parts_(std::move(parts)), plan_(std::move(plan)) {
  plan_.get(CudnnAttribute::kPlanWorkspaceBytes, CudnnElement::kInt64, 1, &workspace_bytes_);
}

void CudnnPlan::run(CudnnHandle handle, std::span<const CudnnArgument> arguments,
                    void* workspace) const {
  std::vector<int64_t> ids;
  std::vector<const void*> addresses;
  for (const CudnnArgument& argument : arguments) {
    ids.push_back(argument.id);
    addresses.push_back(argument.address);
  }
  CudnnDescriptor pack(api_, CudnnKind::kVariantPack);
  const auto count = static_cast<int64_t>(ids.size());
  pack.set(CudnnAttribute::kPackIds, CudnnElement::kInt64, count, ids.data());
  pack.set(CudnnAttribute::kPackPointers, CudnnElement::kPointer, count, addresses.data());
  pack.set(CudnnAttribute::kPackWorkspace, CudnnElement::kPointer, workspace);
  pack.finalize();
  const int status = api_.execute(handle, plan_.raw(), pack.raw());
  if (status != kCudnnSuccess) throw_library_error("attention", "cuDNN", status_text(api_, status));
}

int64_t CudnnGraph::add_tensor(const CudnnShape& shape, TensorStorage storage) {
  const bool is_list = storage == TensorStorage::kMemory && shape.type == CudnnType::kInt32;
  const int64_t alignment = is_list ? 4 : 16;
  const auto id = static_cast<int64_t>(tensors_.size()) + 1;
  const auto dims = static_cast<int64_t>(shape.dims.size());
  CudnnDescriptor tensor(api_, CudnnKind::kTensor);
  tensor.set(CudnnAttribute::kTensorType, CudnnElement::kDataType, shape.type);
  tensor.set(CudnnAttribute::kTensorDimensions, CudnnElement::kInt64, dims, shape.dims.data());
  tensor.set(CudnnAttribute::kTensorStrides, CudnnElement::kInt64, dims, shape.strides.data());
  tensor.set(CudnnAttribute::kTensorId, CudnnElement::kInt64, id);
  tensor.set(CudnnAttribute::kTensorAlignment, CudnnElement::kInt64, alignment);
  tensor.set(CudnnAttribute::kTensorIsVirtual, CudnnElement::kBoolean,
             storage == TensorStorage::kVirtual);
  tensor.set(CudnnAttribute::kTensorIsByValue, CudnnElement::kBoolean,
             storage == TensorStorage::kByValue);
  if (shape.offsets) tensor.set(CudnnAttribute::kTensorOffsets, at(*shape.offsets));
  tensor.finalize();
  tensors_.push_back(std::move(tensor));
  return id;
}

CudnnDescriptor& CudnnGraph::add_operation(CudnnKind kind) {
  return operations_.emplace_back(api_, kind);
}

void CudnnGraph::matmul(int64_t a, int64_t b, int64_t c, const CudnnMatmulLengths& lengths) {
  CudnnDescriptor& mode = modes_.emplace_back(api_, CudnnKind::kMatmul);
  mode.set(CudnnAttribute::kMatmulPrecision, CudnnElement::kDataType, CudnnType::kFloat);
  mode.finalize();
  CudnnDescriptor& operation = add_operation(CudnnKind::kMatmulOperation);
  operation.set(CudnnAttribute::kMatmulDescriptor, mode);
  operation.set(CudnnAttribute::kMatmulA, at(a));
  operation.set(CudnnAttribute::kMatmulB, at(b));
  operation.set(CudnnAttribute::kMatmulC, at(c));
  if (lengths.rows) operation.set(CudnnAttribute::kMatmulRows, at(*lengths.rows));
  if (lengths.columns) operation.set(CudnnAttribute::kMatmulColumns, at(*lengths.columns));
  if (lengths.depth) operation.set(CudnnAttribute::kMatmulDepth, at(*lengths.depth));
  operation.finalize();
}

void CudnnGraph::pointwise(const Pointwise& p) {
  CudnnDescriptor& mode = modes_.emplace_back(api_, CudnnKind::kPointwise);
  mode.set(CudnnAttribute::kPointwiseMode, CudnnElement::kPointwiseMode, p.mode);
  mode.set(CudnnAttribute::kPointwisePrecision, CudnnElement::kDataType, p.precision);
  if (p.axis >= 0) mode.set(CudnnAttribute::kPointwiseAxis, CudnnElement::kInt64, p.axis);
  mode.finalize();
  CudnnDescriptor& operation = add_operation(CudnnKind::kPointwiseOperation);
  operation.set(CudnnAttribute::kPointwiseDescriptor, mode);
  operation.set(CudnnAttribute::kPointwiseX, at(p.x));
  if (p.b) operation.set(CudnnAttribute::kPointwiseB, at(*p.b));
  if (p.t) operation.set(CudnnAttribute::kPointwiseT, at(*p.t));
  operation.set(CudnnAttribute::kPointwiseY, at(p.y));
  operation.finalize();
}

void CudnnGraph::reduce(CudnnReduction mode, int64_t x, int64_t y) {
  CudnnDescriptor& reduction = modes_.emplace_back(api_, CudnnKind::kReduction);
  reduction.set(CudnnAttribute::kReductionOperator, CudnnElement::kReductionOperator, mode);
  reduction.set(CudnnAttribute::kReductionPrecision, CudnnElement::kDataType, CudnnType::kFloat);
  reduction.finalize();
  CudnnDescriptor& operation = add_operation(CudnnKind::kReductionOperation);
  operation.set(CudnnAttribute::kReductionDescriptor, reduction);
  operation.set(CudnnAttribute::kReductionX, at(x));
  operation.set(CudnnAttribute::kReductionY, at(y));
  operation.finalize();
}

void CudnnGraph::reshape(int64_t x, int64_t y) {
  CudnnDescriptor& operation = add_operation(CudnnKind::kReshapeOperation);
  operation.set(CudnnAttribute::kReshapeX, at(x));
  operation.set(CudnnAttribute::kReshapeY, at(y));
  operation.finalize();
}

CudnnDescriptor CudnnGraph::finalize_graph(const CudnnTarget& target) const {
  std::vector<void*> raw;
  for (const CudnnDescriptor& each : operations_) raw.push_back(each.raw());
  CudnnDescriptor graph(api_, CudnnKind::kOperationGraph);
  add_target(graph, target, CudnnAttribute::kGraphHandle);
  graph.set(CudnnAttribute::kGraphOperations, CudnnElement::kDescriptor,
            static_cast<int64_t>(raw.size()), raw.data());
  graph.finalize();
  return graph;
}

CudnnGraph::Engines CudnnGraph::list_engines(const CudnnTarget& target) const {
  Engines engines{finalize_graph(target), {}};
  for (CudnnDescriptor& config : list_engine_configs(api_, engines.graph, target))
    if (is_deterministic(api_, config)) engines.configs.push_back(std::move(config));
  return engines;
}

CudnnPlan CudnnGraph::make_plan(const CudnnTarget& target, const std::string& what) const {
  Engines engines = list_engines(target);
  std::string reason = "it has no deterministic engine";
  for (CudnnDescriptor& config : engines.configs) {
    CudnnDescriptor plan(api_, CudnnKind::kPlan);
    add_target(plan, target, CudnnAttribute::kPlanHandle);
    if (target.properties != nullptr) plan.set(CudnnAttribute::kPlanDevice, *target.properties);
    plan.set(CudnnAttribute::kPlanEngineConfig, config);
    const std::optional<std::string> refusal = plan.try_finalize();
    if (refusal) {
      reason = *refusal;
      continue;
    }
    std::vector<CudnnDescriptor> parts;
    parts.push_back(std::move(engines.graph));
    parts.push_back(std::move(config));
    return {api_, std::move(parts), std::move(plan)};
  }
  throw Error(
      ExitCode::kUnsupported,
      cat("cuDNN ", cudnn_version_text(api_.version()), " has no plan for ", what, ": ", reason),
      "set kernels.attention: own");
}

}  // namespace ftrun::cuda
