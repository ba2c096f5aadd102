#include <dlfcn.h>

#include <iostream>
#include <string>

#include "base/error.h"
#include "catch_runner.h"
#include "kernels/cuda/cudnn_attention.h"
#include "ops/attention/attention.h"

#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>
#endif

#include <catch2/catch.hpp>

// These tests ask cuDNN itself for plans of attention on GPUs that this machine does not have.
// Descriptors, graphs and the choice of engines need a driver library (the stub of a CUDA toolkit,
// which does nothing, is enough) but no device; only executable plans need a device.

namespace ftrun {
namespace {

/// The properties of a device, in the form in which cuDNN serializes them.
struct Device {
  const char* name;
  int version, multiprocessors, shared_bytes;
  int64_t memory_bytes;
};
constexpr Device kHopper{"NVIDIA H100 80GB HBM3", 900, 132, 232448, int64_t{80} << 30};
constexpr Device kAmpere{"NVIDIA A100-SXM4-80GB", 800, 108, 166912, int64_t{80} << 30};
constexpr Device kAda{"NVIDIA GeForce RTX 4090", 890, 128, 101376, int64_t{24} << 30};

DeviceInfo info_of(const Device& device) {
  return {.compute_major = device.version / 100, .memory_bytes = device.memory_bytes};
}

std::string properties_of(const Device& device) {
  return cat(R"({"maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], )"
             R"("regsPerBlock": 65536, "warpSize": 32, )",
             R"("maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024, )"
             R"("maxRegistersPerSM": 65536, "maxCtasPerSM": 32, )",
             R"("maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 9008, )"
             R"("isTccDriver": 0, "supportCoopLaunch": 1, )",
             R"("smClockRateKHz": 1980000, "memClockRateKHz": 2619000, "l2CacheSize": 52428800, )"
             R"("driverVer": 13000, "cudaDeviceId": 0, )",
             R"("totalGlobalMem": 85000000000, "cudnnVersion": )", cuda::load_cudnn().version(),
             R"(, "schemaVersion": 1, "deviceName": ")", device.name, R"(", "deviceVer": )",
             device.version, R"(, "multiProcessorCount": )", device.multiprocessors,
             R"(, "maxSharedMemoryPerBlockOptin": )", device.shared_bytes, "}");
}

/// The number of cuDNN's deterministic engines for a part of attention, and the workspace of the
/// first one.
struct EngineCount {
  size_t engines = 0;
  int64_t workspace_bytes = 0;
};
EngineCount engines_of(const Device& device, const AttentionAttrs& attrs, const CudnnPart& part,
                       int64_t tokens, bool backward) {
  const cuda::CudnnApi& api = cuda::load_cudnn();
  const std::string text = properties_of(device);
  cuda::CudnnDescriptor properties(api, cuda::CudnnKind::kDeviceProperties);
  properties.set(cuda::CudnnAttribute::kDeviceJson, cuda::CudnnElement::kChar,
                 static_cast<int64_t>(text.size()), text.data());
  properties.finalize();
  const cuda::CudnnAttentionGraph made =
      cuda::make_cudnn_attention_graph(api, attrs, part, tokens, backward);
  const cuda::CudnnGraph::Engines found = made.graph.list_engines({.properties = &properties});
  EngineCount all{.engines = found.configs.size()};
  if (all.engines > 0)
    found.configs[0].get(cuda::CudnnAttribute::kEngineConfigWorkspaceBytes,
                         cuda::CudnnElement::kInt64, 1, &all.workspace_bytes);
  return all;
}

/// Returns the number of engines that compute all rows and heads at once, with any workspace.
size_t engines_of_rows(const Device& device, const AttentionAttrs& attrs, int64_t rows,
                       bool backward) {
  const CudnnPart part{
      .sequences = rows, .max_tokens = attrs.sequence_length, .kv_heads = attrs.kv_heads};
  return engines_of(device, attrs, part, rows * attrs.sequence_length, backward).engines;
}

AttentionAttrs attention_attrs(int64_t heads, int64_t kv_heads, int64_t head_size,
                               int64_t sequence_length, int64_t window = 0) {
  return {heads, kv_heads, head_size, sequence_length, 0.1, window};
}

TEST_CASE(
    "cudnn plans: every shape of the table has engines that repeat their bits, in both "
    "directions") {
  for (const Device& device : {kHopper, kAmpere, kAda})
    for (const AttentionAttrs& attrs :
         {attention_attrs(9, 3, 64, 2048), attention_attrs(32, 8, 128, 4096),
          attention_attrs(32, 32, 128, 4096), attention_attrs(32, 8, 128, 4096, 1024),
          attention_attrs(4, 4, 80, 100), attention_attrs(4, 2, 40, 77, 16),
          attention_attrs(2, 1, 8, 2), attention_attrs(8, 4, 256, 4096),
          attention_attrs(32, 8, 128, 32768)})
      for (const int64_t rows : {1, 2})
        for (const bool documents : {false, true}) {
          const int64_t tokens = rows * attrs.sequence_length;
          if (documents && rows == 1) continue;  // the graphs have the same operations
          if (!cuda::cudnn_supports(info_of(device), attrs, DType::kBF16, tokens, documents))
            continue;
          for (const CudnnPart& part : cudnn_parts(attrs, tokens, documents))
            for (const bool backward : {false, true}) {
              CAPTURE(device.name, attrs.query_heads, attrs.kv_heads, attrs.head_size,
                      attrs.sequence_length, attrs.window, rows, documents, part.sequences,
                      part.max_tokens, part.kv_heads, backward);
              const EngineCount found = engines_of(device, attrs, part, tokens, backward);
              REQUIRE(found.engines > 0);
              // The workspace holds the scores and, in addition, some KiB of lists and marks.
              REQUIRE(found.workspace_bytes <= cudnn_workspace_bytes(attrs, part) + (1 << 20));
            }
        }
}

TEST_CASE(
    "cudnn plans: heads and rows are computed in parts that need little memory, and the memory is "
    "bounded") {
  struct Case {
    AttentionAttrs attrs;
    int64_t rows, sequences, kv_heads;
  };
  for (const Case& c : std::vector<Case>{{attention_attrs(9, 3, 64, 2048), 8, 8, 3},
                                         {attention_attrs(32, 8, 128, 4096), 1, 1, 8},
                                         {attention_attrs(32, 8, 128, 4096), 4, 1, 8},
                                         {attention_attrs(32, 8, 128, 8192), 2, 1, 2},
                                         {attention_attrs(32, 8, 128, 32768), 1, 1, 1},
                                         {attention_attrs(4, 2, 64, 8191), 3, 3, 2}}) {
    CAPTURE(c.attrs.sequence_length, c.rows);
    const std::vector<CudnnPart> parts =
        cudnn_parts(c.attrs, c.rows * c.attrs.sequence_length, false);
    REQUIRE(parts.size() == 1);
    REQUIRE(parts[0].sequences == c.sequences);
    REQUIRE(parts[0].kv_heads == c.kv_heads);
  }
  const AttentionAttrs whole = attention_attrs(32, 8, 128, 32768);
  REQUIRE(cudnn_workspace_bytes(whole, cudnn_parts(whole, 32768, false)[0]) ==
          (int64_t{8} << 30) + (int64_t{64} << 20));
  REQUIRE(cuda::cudnn_supports(info_of(kHopper), whole, DType::kBF16, 32768, false));
  REQUIRE_FALSE(cuda::cudnn_supports(info_of(kAda), whole, DType::kBF16, 32768, false));
}

TEST_CASE(
    "cudnn plans: shapes that the table leaves out because of their head size have no engine") {
  REQUIRE(engines_of_rows(kAmpere, attention_attrs(8, 4, 256, 4096), 1, true) == 0);
  REQUIRE(engines_of_rows(kHopper, attention_attrs(8, 4, 264, 4096), 1, true) == 0);
  const AttentionAttrs attrs = attention_attrs(32, 8, 128, 4096);
  REQUIRE(engines_of(kAmpere, attrs, cudnn_parts(attrs, 4096, true)[0], 4096, true).engines == 0);
}

#if __has_include(<cudnn_graph.h>)
template <class Own, class Theirs>
constexpr bool same_value(Own own, Theirs theirs) {
  return static_cast<int>(own) == static_cast<int>(theirs);
}
using A = cuda::CudnnAttribute;
using K = cuda::CudnnKind;
using E = cuda::CudnnElement;
using P = cuda::CudnnPointwise;
static_assert(same_value(K::kPointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR) &&
              same_value(K::kEngine, CUDNN_BACKEND_ENGINE_DESCRIPTOR) &&
              same_value(K::kEngineConfig, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) &&
              same_value(K::kHeuristics, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) &&
              same_value(K::kPlan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) &&
              same_value(K::kPointwiseOperation, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) &&
              same_value(K::kOperationGraph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) &&
              same_value(K::kVariantPack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) &&
              same_value(K::kTensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR) &&
              same_value(K::kMatmul, CUDNN_BACKEND_MATMUL_DESCRIPTOR) &&
              same_value(K::kMatmulOperation, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) &&
              same_value(K::kReduction, CUDNN_BACKEND_REDUCTION_DESCRIPTOR) &&
              same_value(K::kReductionOperation, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) &&
              same_value(K::kReshapeOperation, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR) &&
              same_value(K::kDeviceProperties, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR));
static_assert(same_value(A::kPointwiseMode, CUDNN_ATTR_POINTWISE_MODE) &&
              same_value(A::kPointwisePrecision, CUDNN_ATTR_POINTWISE_MATH_PREC) &&
              same_value(A::kPointwiseAxis, CUDNN_ATTR_POINTWISE_AXIS) &&
              same_value(A::kHeuristicsMode, CUDNN_ATTR_ENGINEHEUR_MODE) &&
              same_value(A::kHeuristicsGraph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH) &&
              same_value(A::kHeuristicsResults, CUDNN_ATTR_ENGINEHEUR_RESULTS) &&
              same_value(A::kHeuristicsDevice, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP) &&
              same_value(A::kEngineConfigEngine, CUDNN_ATTR_ENGINECFG_ENGINE) &&
              same_value(A::kEngineConfigWorkspaceBytes, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE) &&
              same_value(A::kPlanHandle, CUDNN_ATTR_EXECUTION_PLAN_HANDLE) &&
              same_value(A::kPlanEngineConfig, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG) &&
              same_value(A::kPlanWorkspaceBytes, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) &&
              same_value(A::kPlanDevice, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP) &&
              same_value(A::kPointwiseDescriptor, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR) &&
              same_value(A::kPointwiseX, CUDNN_ATTR_OPERATION_POINTWISE_XDESC) &&
              same_value(A::kPointwiseB, CUDNN_ATTR_OPERATION_POINTWISE_BDESC) &&
              same_value(A::kPointwiseY, CUDNN_ATTR_OPERATION_POINTWISE_YDESC) &&
              same_value(A::kPointwiseT, CUDNN_ATTR_OPERATION_POINTWISE_TDESC));
static_assert(same_value(A::kGraphHandle, CUDNN_ATTR_OPERATIONGRAPH_HANDLE) &&
              same_value(A::kGraphOperations, CUDNN_ATTR_OPERATIONGRAPH_OPS) &&
              same_value(A::kTensorAlignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT) &&
              same_value(A::kTensorType, CUDNN_ATTR_TENSOR_DATA_TYPE) &&
              same_value(A::kTensorDimensions, CUDNN_ATTR_TENSOR_DIMENSIONS) &&
              same_value(A::kTensorStrides, CUDNN_ATTR_TENSOR_STRIDES) &&
              same_value(A::kTensorId, CUDNN_ATTR_TENSOR_UNIQUE_ID) &&
              same_value(A::kTensorIsVirtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL) &&
              same_value(A::kTensorIsByValue, CUDNN_ATTR_TENSOR_IS_BY_VALUE) &&
              same_value(A::kTensorOffsets, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC) &&
              same_value(A::kPackIds, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS) &&
              same_value(A::kPackPointers, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS) &&
              same_value(A::kPackWorkspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE) &&
              same_value(A::kEngineNumericalNotes, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) &&
              same_value(A::kMatmulPrecision, CUDNN_ATTR_MATMUL_COMP_TYPE) &&
              same_value(A::kMatmulA, CUDNN_ATTR_OPERATION_MATMUL_ADESC) &&
              same_value(A::kMatmulB, CUDNN_ATTR_OPERATION_MATMUL_BDESC) &&
              same_value(A::kMatmulC, CUDNN_ATTR_OPERATION_MATMUL_CDESC) &&
              same_value(A::kMatmulDescriptor, CUDNN_ATTR_OPERATION_MATMUL_DESC) &&
              same_value(A::kMatmulRows, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC) &&
              same_value(A::kMatmulColumns, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC) &&
              same_value(A::kMatmulDepth, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC) &&
              same_value(A::kReductionOperator, CUDNN_ATTR_REDUCTION_OPERATOR) &&
              same_value(A::kReductionPrecision, CUDNN_ATTR_REDUCTION_COMP_TYPE) &&
              same_value(A::kReductionX, CUDNN_ATTR_OPERATION_REDUCTION_XDESC) &&
              same_value(A::kReductionY, CUDNN_ATTR_OPERATION_REDUCTION_YDESC) &&
              same_value(A::kReductionDescriptor, CUDNN_ATTR_OPERATION_REDUCTION_DESC) &&
              same_value(A::kReshapeX, CUDNN_ATTR_OPERATION_RESHAPE_XDESC) &&
              same_value(A::kReshapeY, CUDNN_ATTR_OPERATION_RESHAPE_YDESC) &&
              same_value(A::kDeviceJson, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION));
static_assert(same_value(E::kHandle, CUDNN_TYPE_HANDLE) &&
              same_value(E::kDataType, CUDNN_TYPE_DATA_TYPE) &&
              same_value(E::kBoolean, CUDNN_TYPE_BOOLEAN) &&
              same_value(E::kInt64, CUDNN_TYPE_INT64) &&
              same_value(E::kPointer, CUDNN_TYPE_VOID_PTR) &&
              same_value(E::kHeuristicsMode, CUDNN_TYPE_HEUR_MODE) &&
              same_value(E::kNumericalNote, CUDNN_TYPE_NUMERICAL_NOTE) &&
              same_value(E::kPointwiseMode, CUDNN_TYPE_POINTWISE_MODE) &&
              same_value(E::kDescriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR) &&
              same_value(E::kReductionOperator, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE) &&
              same_value(E::kChar, CUDNN_TYPE_CHAR));
static_assert(same_value(cuda::CudnnType::kFloat, CUDNN_DATA_FLOAT) &&
              same_value(cuda::CudnnType::kInt32, CUDNN_DATA_INT32) &&
              same_value(cuda::CudnnType::kBFloat16, CUDNN_DATA_BFLOAT16) &&
              same_value(cuda::CudnnType::kBoolean, CUDNN_DATA_BOOLEAN));
static_assert(same_value(P::kAdd, CUDNN_POINTWISE_ADD) &&
              same_value(P::kMultiply, CUDNN_POINTWISE_MUL) &&
              same_value(P::kDivide, CUDNN_POINTWISE_DIV) &&
              same_value(P::kSubtract, CUDNN_POINTWISE_SUB) &&
              same_value(P::kExp, CUDNN_POINTWISE_EXP) &&
              same_value(P::kLog, CUDNN_POINTWISE_LOG) &&
              same_value(P::kGreater, CUDNN_POINTWISE_CMP_GT) &&
              same_value(P::kGreaterOrEqual, CUDNN_POINTWISE_CMP_GE) &&
              same_value(P::kLess, CUDNN_POINTWISE_CMP_LT) &&
              same_value(P::kAnd, CUDNN_POINTWISE_LOGICAL_AND) &&
              same_value(P::kIndex, CUDNN_POINTWISE_GEN_INDEX) &&
              same_value(P::kSelect, CUDNN_POINTWISE_BINARY_SELECT));
static_assert(same_value(cuda::CudnnReduction::kAdd, CUDNN_REDUCE_TENSOR_ADD) &&
              same_value(cuda::CudnnReduction::kMax, CUDNN_REDUCE_TENSOR_MAX));
static_assert(same_value(cuda::kCudnnHeuristicsA, CUDNN_HEUR_MODE_A) &&
              same_value(cuda::kCudnnNoteNondeterministic, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC));
#endif

/// Returns why cuDNN cannot be used here; "" if it can.
std::string cudnn_refusal() {
  if (::dlopen("libcuda.so.1", RTLD_NOW) == nullptr)
    return cat("no driver's library, nor a toolkit's: ", ::dlerror());
  try {
    cuda::load_cudnn();
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

}  // namespace
}  // namespace ftrun

/// The exit code that CTest counts as skipped.
constexpr int kSkipped = 77;

int main(int argc, char** argv) {
  if (const std::string why = ftrun::cudnn_refusal(); !why.empty()) {
    std::cout << "skipped: " << why << "\n";
    return kSkipped;
  }
  return ftrun::testing::run_test_cases(argc, argv);
}
