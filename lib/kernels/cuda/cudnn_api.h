#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

// This header declares the part of cuDNN 9's backend interface (descriptors of tensors, operations,
// graphs and plans) that attention uses. The library is opened when it is first needed, so builds
// and machines without it lack nothing else. The numbers are part of its binary interface
// (tests/kernels/cuda/cudnn compares them with NVIDIA's header where there is one).
namespace ftrun::cuda {

/// CudnnHandle is a cudnnHandle_t.
using CudnnHandle = void*;

constexpr int kCudnnSuccess = 0;

enum class CudnnKind : int {
  kPointwise = 0,
  kEngine = 2,
  kEngineConfig = 3,
  kHeuristics = 4,
  kPlan = 5,
  kPointwiseOperation = 13,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kMatmul = 18,
  kMatmulOperation = 19,
  kReduction = 21,
  kReductionOperation = 22,
  kReshapeOperation = 31,
  kDeviceProperties = 38,
};

enum class CudnnAttribute : int {
  kPointwiseMode = 0,
  kPointwisePrecision = 1,
  kPointwiseAxis = 9,
  kHeuristicsMode = 200,
  kHeuristicsGraph = 201,
  kHeuristicsResults = 202,
  kHeuristicsDevice = 204,
  kEngineConfigEngine = 300,
  kEngineConfigWorkspaceBytes = 303,
  kPlanHandle = 400,
  kPlanEngineConfig = 401,
  kPlanWorkspaceBytes = 402,
  kPlanDevice = 407,
  kPointwiseDescriptor = 750,
  kPointwiseX = 751,
  kPointwiseB = 752,
  kPointwiseY = 753,
  kPointwiseT = 758,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorType = 901,
  kTensorDimensions = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
  kTensorOffsets = 913,
  kPackIds = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineNumericalNotes = 1303,
  kMatmulPrecision = 1500,
  kMatmulA = 1520,
  kMatmulB = 1521,
  kMatmulC = 1522,
  kMatmulDescriptor = 1523,
  kMatmulRows = 1525,
  kMatmulColumns = 1526,
  kMatmulDepth = 1527,
  kReductionOperator = 1600,
  kReductionPrecision = 1601,
  kReductionX = 1610,
  kReductionY = 1611,
  kReductionDescriptor = 1612,
  kReshapeX = 2200,
  kReshapeY = 2201,
  kDeviceJson = 2702,
};

/// CudnnElement is the type of an attribute's elements.
enum class CudnnElement : int {
  kHandle = 0,
  kDataType = 1,
  kBoolean = 2,
  kInt64 = 3,
  kPointer = 6,
  kHeuristicsMode = 8,
  kNumericalNote = 11,
  kPointwiseMode = 14,
  kDescriptor = 15,
  kReductionOperator = 18,
  kChar = 24,
};

enum class CudnnType : int { kFloat = 0, kInt32 = 4, kBFloat16 = 9, kBoolean = 11 };

enum class CudnnPointwise : int {
  kAdd = 0,
  kMultiply = 1,
  kDivide = 6,
  kSubtract = 9,
  kExp = 13,
  kLog = 15,
  kGreater = 302,
  kGreaterOrEqual = 303,
  kLess = 304,
  kAnd = 400,
  kIndex = 501,
  kSelect = 601,
};

enum class CudnnReduction : int { kAdd = 0, kMax = 3 };

/// The mode in which cuDNN ranks its engines itself, best first.
constexpr int kCudnnHeuristicsA = 3;
constexpr int kCudnnNoteNondeterministic = 4;

/// CudnnApi holds the functions that the library exports. Their status is 0 for success.
struct CudnnApi {
  size_t (*version)() = nullptr;
  const char* (*error_string)(int status) = nullptr;
  void (*last_error)(char* text, size_t bytes) = nullptr;
  int (*create)(CudnnHandle* handle) = nullptr;
  int (*destroy)(CudnnHandle handle) = nullptr;
  int (*set_stream)(CudnnHandle handle, cudaStream_t stream) = nullptr;
  int (*create_descriptor)(int kind, void** descriptor) = nullptr;
  int (*destroy_descriptor)(void* descriptor) = nullptr;
  int (*finalize)(void* descriptor) = nullptr;
  int (*set_attribute)(void* descriptor, int name, int element, int64_t count,
                       const void* elements) = nullptr;
  int (*get_attribute)(void* descriptor, int name, int element, int64_t room, int64_t* count,
                       void* elements) = nullptr;
  int (*execute)(CudnnHandle handle, void* plan, void* pack) = nullptr;
};

/// Opens libcudnn.so.9 of the pinned wheels, of the toolkit or of the system. Throws
/// Error(kEnvironment) when it cannot be loaded.
const CudnnApi& load_cudnn();

}  // namespace ftrun::cuda
