#include "cudnn.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "base/error.h"
#include "kernels/cuda/cudnn_api.h"

// This file emulates cuDNN's backend on the host. Descriptors hold what was set, and check what
// cuDNN's documentation requires. Running a plan runs the operations of its graph one after the
// other in fp64. A multiplication whose sequences come from lists has the rows, columns and depth
// that these lists give. A tensor with offsets has as many tokens in a sequence as the first list
// says; tokens beyond read as NaN and are not written.
namespace ftrun::emulator {

Cudnn& cudnn() {
  static Cudnn state;
  return state;
}

namespace {

using cuda::CudnnApi;
using cuda::CudnnAttribute;
using cuda::CudnnElement;
using cuda::CudnnKind;
using cuda::CudnnPointwise;
using cuda::CudnnReduction;
using cuda::CudnnType;

constexpr int kBadParameter = 2000, kNotSupported = 3000;
using Index = std::array<int64_t, 4>;

struct Descriptor {
  struct Value {
    CudnnElement element;
    int64_t count;
    std::vector<std::byte> bytes;
  };

  CudnnKind kind;
  bool finished = false;
  std::map<CudnnAttribute, Value> values;
  /// The index of the engine that a configuration selects.
  size_t engine = 0;
  const Descriptor* graph = nullptr;

  bool has(CudnnAttribute name) const { return values.contains(name); }
  template <class T>
  T get(CudnnAttribute name, size_t i = 0) const {
    T value;
    std::memcpy(&value, values.at(name).bytes.data() + i * sizeof(T), sizeof value);
    return value;
  }
  int64_t count(CudnnAttribute name) const { return values.at(name).count; }
  const Descriptor& at(CudnnAttribute name, size_t i = 0) const {
    return *get<const Descriptor*>(name, i);
  }
  int64_t id() const { return get<int64_t>(CudnnAttribute::kTensorId); }
  Index dims(CudnnAttribute name) const {
    Index found;
    for (size_t i = 0; i < found.size(); ++i) found[i] = get<int64_t>(name, i);
    return found;
  }
};

std::string last_error;

int refuse(const std::string& why, int status = kBadParameter) {
  last_error = why;
  return status;
}

Descriptor& descriptor_at(void* raw) {
  return *static_cast<Descriptor*>(raw);
}

int64_t element_bytes(CudnnElement element) {
  switch (element) {
    case CudnnElement::kBoolean:
    case CudnnElement::kChar:
      return 1;
    case CudnnElement::kHandle:
    case CudnnElement::kInt64:
    case CudnnElement::kPointer:
    case CudnnElement::kDescriptor:
      return 8;
    default:
      return 4;
  }
}

/// Lists the attributes that must be set before a descriptor can be finalized.
std::vector<CudnnAttribute> required_attributes(CudnnKind kind) {
  using A = CudnnAttribute;
  switch (kind) {
    case CudnnKind::kTensor:
      return {A::kTensorType, A::kTensorDimensions, A::kTensorStrides, A::kTensorId,
              A::kTensorAlignment};
    case CudnnKind::kMatmul:
      return {A::kMatmulPrecision};
    case CudnnKind::kPointwise:
      return {A::kPointwiseMode, A::kPointwisePrecision};
    case CudnnKind::kReduction:
      return {A::kReductionOperator, A::kReductionPrecision};
    case CudnnKind::kMatmulOperation:
      return {A::kMatmulDescriptor, A::kMatmulA, A::kMatmulB, A::kMatmulC};
    case CudnnKind::kPointwiseOperation:
      return {A::kPointwiseDescriptor, A::kPointwiseX, A::kPointwiseY};
    case CudnnKind::kReductionOperation:
      return {A::kReductionDescriptor, A::kReductionX, A::kReductionY};
    case CudnnKind::kReshapeOperation:
      return {A::kReshapeX, A::kReshapeY};
    case CudnnKind::kOperationGraph:
      return {A::kGraphHandle, A::kGraphOperations};
    case CudnnKind::kHeuristics:
      return {A::kHeuristicsGraph, A::kHeuristicsMode};
    case CudnnKind::kPlan:
      return {A::kPlanHandle, A::kPlanEngineConfig};
    case CudnnKind::kVariantPack:
      return {A::kPackIds, A::kPackPointers, A::kPackWorkspace};
    default:
      return {};
  }
}

int create_descriptor(int kind, void** made) {
  *made = new Descriptor{static_cast<CudnnKind>(kind)};
  ++cudnn().descriptors;
  return 0;
}

int destroy_descriptor(void* raw) {
  delete &descriptor_at(raw);
  --cudnn().descriptors;
  return 0;
}

int set_attribute(void* raw, int name, int element, int64_t count, const void* elements) {
  if (descriptor_at(raw).finished) return refuse("a finished descriptor does not change");
  const auto type = static_cast<CudnnElement>(element);
  const auto* bytes = static_cast<const std::byte*>(elements);
  if (type == CudnnElement::kDescriptor)
    for (int64_t i = 0; i < count; ++i)
      if (!(*static_cast<Descriptor* const*>(static_cast<const void*>(bytes + 8 * i)))->finished)
        return refuse("a descriptor is finished before others refer to it");
  descriptor_at(raw).values[static_cast<CudnnAttribute>(name)] = {
      type, count, {bytes, bytes + count * element_bytes(type)}};
  return 0;
}

std::vector<const Descriptor*> tensors_of(const Descriptor& operation) {
  using A = CudnnAttribute;
  std::vector<const Descriptor*> found;
  for (const A name : {A::kMatmulA, A::kMatmulB, A::kMatmulC, A::kMatmulRows, A::kMatmulColumns,
                       A::kMatmulDepth, A::kPointwiseX, A::kPointwiseB, A::kPointwiseT,
                       A::kPointwiseY, A::kReductionX, A::kReductionY, A::kReshapeX, A::kReshapeY})
    if (operation.has(name)) found.push_back(&operation.at(name));
  for (size_t i = 0; i < found.size(); ++i)
    if (found[i]->has(A::kTensorOffsets)) found.push_back(&found[i]->at(A::kTensorOffsets));
  return found;
}

int finalize(void* raw) {
  Descriptor& made = descriptor_at(raw);
  for (const CudnnAttribute name : required_attributes(made.kind))
    if (!made.has(name)) return refuse(cat("attribute ", static_cast<int>(name), " is missing"));
  if (made.kind == CudnnKind::kPlan) {
    made.engine = made.at(CudnnAttribute::kPlanEngineConfig).engine;
    made.graph = made.at(CudnnAttribute::kPlanEngineConfig).graph;
    if (const int status = cudnn().engines[made.engine].refuses; status != 0)
      return refuse("the engine refuses", status);
  }
  if (made.kind == CudnnKind::kTensor && made.count(CudnnAttribute::kTensorDimensions) != 4)
    return refuse("tensors have four dimensions");
  made.finished = true;
  return 0;
}

int get_attribute(void* raw, int name, int, int64_t room, int64_t* count, void* elements) {
  const Descriptor& of = descriptor_at(raw);
  switch (static_cast<CudnnAttribute>(name)) {
    case CudnnAttribute::kHeuristicsResults:
      *count = static_cast<int64_t>(cudnn().engines.size());
      for (int64_t i = 0; i < std::min(room, *count); ++i) {
        Descriptor& config = descriptor_at(static_cast<void**>(elements)[i]);
        config.engine = static_cast<size_t>(i);
        config.graph = &of.at(CudnnAttribute::kHeuristicsGraph);
        config.finished = true;
      }
      return 0;
    case CudnnAttribute::kEngineConfigEngine:
      descriptor_at(*static_cast<void**>(elements)).engine = of.engine;
      *count = 1;
      return 0;
    case CudnnAttribute::kEngineNumericalNotes: {
      const std::vector<int>& notes = cudnn().engines[of.engine].notes;
      *count = static_cast<int64_t>(notes.size());
      std::copy(notes.begin(), notes.end(), static_cast<int*>(elements));
      return 0;
    }
    case CudnnAttribute::kPlanWorkspaceBytes:
      if (!of.finished) return refuse("the plan is not finished");
      *static_cast<int64_t*>(elements) = cudnn().workspace_bytes;
      *count = 1;
      return 0;
    default:
      return refuse("not an attribute that can be asked for");
  }
}

// --- running a graph -----------------------------------------------------------------------------

/// Storage is the memory of a tensor's elements: the caller's, or an array of the emulator.
struct Storage {
  void* given = nullptr;
  std::shared_ptr<std::vector<double>> made;
};

/// Returns an array with a NaN for each element of a tensor.
std::shared_ptr<std::vector<double>> elements_of(const Descriptor& tensor) {
  const Index dims = tensor.dims(CudnnAttribute::kTensorDimensions),
              strides = tensor.dims(CudnnAttribute::kTensorStrides);
  int64_t last = 0;
  for (size_t d = 0; d < dims.size(); ++d) last += (dims[d] - 1) * strides[d];
  return std::make_shared<std::vector<double>>(last + 1, std::nan(""));
}

float from_bf16(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

uint16_t to_bf16(double x) {
  const auto narrow = static_cast<float>(x);
  uint32_t bits;
  std::memcpy(&bits, &narrow, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

/// Sequences holds where each sequence of a tensor begins, in elements, and its number of tokens.
struct Sequences {
  const int32_t* offsets = nullptr;
  const int32_t* lengths = nullptr;
};

class Tensor {
 public:
  Tensor(const Descriptor& of, Storage storage, Sequences sequences)
      : dims(of.dims(CudnnAttribute::kTensorDimensions)),
        strides_(of.dims(CudnnAttribute::kTensorStrides)),
        type_(of.get<CudnnType>(CudnnAttribute::kTensorType)),
        storage_(std::move(storage)),
        sequences_(sequences) {}

  const Index dims;

  /// Reads the element that is broadcast to `place` in a tensor of size `whole`: a dimension of 1
  /// applies to all indices, a smaller one to groups of neighboring indices.
  double read(const Index& place, const Index& whole) const {
    Index own;
    for (size_t d = 0; d < own.size(); ++d) own[d] = place[d] * dims[d] / whole[d];
    return read(own);
  }
  double read(const Index& place) const {
    if (is_beyond(place)) return std::nan("");
    const int64_t at = offset(place);
    if (storage_.given == nullptr) {
      const double value = (*storage_.made)[at];
      return type_ == CudnnType::kBFloat16 ? from_bf16(to_bf16(value)) : value;
    }
    if (type_ == CudnnType::kInt32) return static_cast<const int32_t*>(storage_.given)[at];
    if (type_ == CudnnType::kBFloat16)
      return from_bf16(static_cast<const uint16_t*>(storage_.given)[at]);
    return static_cast<const float*>(storage_.given)[at];
  }
  void write(const Index& place, double value) const {
    if (is_beyond(place)) return;
    const int64_t at = offset(place);
    if (storage_.given == nullptr)
      (*storage_.made)[at] = value;
    else if (type_ == CudnnType::kBFloat16)
      static_cast<uint16_t*>(storage_.given)[at] = to_bf16(value);
    else
      static_cast<float*>(storage_.given)[at] = static_cast<float>(value);
  }

 private:
  int64_t offset(const Index& place) const {
    int64_t at =
        sequences_.offsets != nullptr ? sequences_.offsets[place[0]] : place[0] * strides_[0];
    for (size_t d = 1; d < place.size(); ++d) at += place[d] * strides_[d];
    return at;
  }
  /// Returns whether `place` is beyond the tokens of its sequence. Tokens are the rows of a tensor,
  /// or the columns if it is transposed.
  bool is_beyond(const Index& place) const {
    const size_t token = dims[3] > 1 && strides_[3] > strides_[2] ? 3 : 2;
    return sequences_.offsets != nullptr && place[token] >= sequences_.lengths[place[0]];
  }

  const Index strides_;
  const CudnnType type_;
  Storage storage_;
  Sequences sequences_;
};

/// Calls `body` for each index of a tensor; skips sequences without tokens.
template <class Body>
void for_each(const Index& dims, const int32_t* lengths, Body body) {
  Index at;
  for (at[0] = 0; at[0] < dims[0]; ++at[0])
    for (at[1] = lengths != nullptr && lengths[at[0]] == 0 ? dims[1] : 0; at[1] < dims[1]; ++at[1])
      for (at[2] = 0; at[2] < dims[2]; ++at[2])
        for (at[3] = 0; at[3] < dims[3]; ++at[3]) body(at);
}

double pointwise(CudnnPointwise mode, double x, double b, double t) {
  switch (mode) {
    case CudnnPointwise::kAdd:
      return x + b;
    case CudnnPointwise::kMultiply:
      return x * b;
    case CudnnPointwise::kDivide:
      return x / b;
    case CudnnPointwise::kSubtract:
      return x - b;
    case CudnnPointwise::kExp:
      return std::exp(x);
    case CudnnPointwise::kLog:
      return std::log(x);
    case CudnnPointwise::kGreater:
      return x > b ? 1.0 : 0.0;
    case CudnnPointwise::kGreaterOrEqual:
      return x >= b ? 1.0 : 0.0;
    case CudnnPointwise::kLess:
      return x < b ? 1.0 : 0.0;
    case CudnnPointwise::kAnd:
      return x != 0.0 && b != 0.0 ? 1.0 : 0.0;
    case CudnnPointwise::kSelect:
      return t != 0.0 ? x : b;
    case CudnnPointwise::kIndex:
      break;
  }
  bug("a pointwise mode that the emulator does not know");
}

class Run {
 public:
  Run(const Descriptor& graph, const Descriptor& pack) {
    for (int64_t i = 0; i < pack.count(CudnnAttribute::kPackIds); ++i)
      given_[pack.get<int64_t>(CudnnAttribute::kPackIds, static_cast<size_t>(i))] =
          pack.get<void*>(CudnnAttribute::kPackPointers, static_cast<size_t>(i));
    for (int64_t i = 0; i < graph.count(CudnnAttribute::kGraphOperations) && lengths_ == nullptr;
         ++i) {
      const Descriptor& operation =
          graph.at(CudnnAttribute::kGraphOperations, static_cast<size_t>(i));
      if (operation.kind == CudnnKind::kMatmulOperation)
        lengths_ = list(operation, CudnnAttribute::kMatmulRows);
    }
  }

  void run(const Descriptor& operation) {
    switch (operation.kind) {
      case CudnnKind::kMatmulOperation:
        return matmul(operation);
      case CudnnKind::kPointwiseOperation:
        return pointwise_operation(operation);
      case CudnnKind::kReductionOperation:
        return reduce(operation);
      case CudnnKind::kReshapeOperation:
        return reshape(operation);
      default:
        bug("an operation that the emulator does not know");
    }
  }

 private:
  Tensor tensor(const Descriptor& of) {
    const bool within = of.get<bool>(CudnnAttribute::kTensorIsVirtual);
    if (!within) return {of, {given_.at(of.id()), nullptr}, sequences(of)};
    auto& made = made_[of.id()];
    if (made.given == nullptr && !made.made) made.made = elements_of(of);
    const auto view = views_.find(of.id());
    return {of, made, view == views_.end() ? Sequences{} : view->second};
  }

  const int32_t* list(const Descriptor& of, CudnnAttribute name) const {
    return of.has(name) ? static_cast<const int32_t*>(given_.at(of.at(name).id())) : nullptr;
  }
  Sequences sequences(const Descriptor& tensor) const {
    const int32_t* const offsets = list(tensor, CudnnAttribute::kTensorOffsets);
    require(offsets == nullptr || lengths_ != nullptr, "a graph of sequences has their lengths");
    return {offsets, lengths_};
  }

  void matmul(const Descriptor& operation) {
    cudnn().ran.emplace_back("matmul");
    const Tensor a = tensor(operation.at(CudnnAttribute::kMatmulA)),
                 b = tensor(operation.at(CudnnAttribute::kMatmulB)),
                 c = tensor(operation.at(CudnnAttribute::kMatmulC));
    require(a.dims[3] == b.dims[2] && a.dims[2] == c.dims[2] && b.dims[3] == c.dims[3],
            "matrices fit each other");
    const int32_t *const rows = list(operation, CudnnAttribute::kMatmulRows),
                         *const columns = list(operation, CudnnAttribute::kMatmulColumns),
                         *const depth = list(operation, CudnnAttribute::kMatmulDepth);
    for_each(c.dims, lengths_, [&](const Index& at) {
      const bool has = (rows == nullptr || at[2] < rows[at[0]]) &&
                       (columns == nullptr || at[3] < columns[at[0]]);
      if (!has) return c.write(at, 0);
      double sum = 0;
      for (int64_t k = 0; k < (depth == nullptr ? a.dims[3] : depth[at[0]]); ++k)
        sum += a.read({at[0], at[1] * a.dims[1] / c.dims[1], at[2], k}) *
               b.read({at[0], at[1] * b.dims[1] / c.dims[1], k, at[3]});
      c.write(at, sum);
    });
  }

  void pointwise_operation(const Descriptor& operation) {
    const Descriptor& how = operation.at(CudnnAttribute::kPointwiseDescriptor);
    const auto mode = how.get<CudnnPointwise>(CudnnAttribute::kPointwiseMode);
    cudnn().ran.push_back(cat("pointwise ", static_cast<int>(mode)));
    const Tensor x = tensor(operation.at(CudnnAttribute::kPointwiseX)),
                 y = tensor(operation.at(CudnnAttribute::kPointwiseY));
    const auto operand = [&](CudnnAttribute name) {
      return operation.has(name) ? std::optional<Tensor>(tensor(operation.at(name))) : std::nullopt;
    };
    const std::optional<Tensor> b = operand(CudnnAttribute::kPointwiseB),
                                t = operand(CudnnAttribute::kPointwiseT);
    if (mode == CudnnPointwise::kIndex) {
      const auto axis = static_cast<size_t>(how.get<int64_t>(CudnnAttribute::kPointwiseAxis));
      return for_each(y.dims, lengths_,
                      [&](const Index& at) { y.write(at, static_cast<double>(at[axis])); });
    }
    for_each(y.dims, lengths_, [&](const Index& at) {
      y.write(at, pointwise(mode, x.read(at, y.dims), b ? b->read(at, y.dims) : 0,
                            t ? t->read(at, y.dims) : 0));
    });
  }

  void reduce(const Descriptor& operation) {
    const auto mode = operation.at(CudnnAttribute::kReductionDescriptor)
                          .get<CudnnReduction>(CudnnAttribute::kReductionOperator);
    cudnn().ran.push_back(cat("reduction ", static_cast<int>(mode)));
    const Tensor x = tensor(operation.at(CudnnAttribute::kReductionX)),
                 y = tensor(operation.at(CudnnAttribute::kReductionY));
    std::map<Index, double> sums;
    for_each(x.dims, lengths_, [&](const Index& at) {
      Index to;
      for (size_t d = 0; d < to.size(); ++d) to[d] = at[d] * y.dims[d] / x.dims[d];
      const auto [sum, first] = sums.emplace(to, x.read(at));
      if (!first)
        sum->second = mode == CudnnReduction::kAdd ? sum->second + x.read(at)
                                                   : std::max(sum->second, x.read(at));
    });
    for (const auto& [at, sum] : sums) y.write(at, sum);
  }

  /// Makes the result of a reshape: another view of the same elements.
  void reshape(const Descriptor& operation) {
    cudnn().ran.emplace_back("reshape");
    const Descriptor &x = operation.at(CudnnAttribute::kReshapeX),
                     &y = operation.at(CudnnAttribute::kReshapeY);
    made_[y.id()] = x.get<bool>(CudnnAttribute::kTensorIsVirtual)
                        ? made_.at(x.id())
                        : Storage{given_.at(x.id()), nullptr};
    if (y.has(CudnnAttribute::kTensorOffsets)) views_[y.id()] = sequences(y);
  }

  std::map<int64_t, void*> given_;
  std::map<int64_t, Storage> made_;
  /// The sequences of tensors that are views of other tensors' elements.
  std::map<int64_t, Sequences> views_;
  const int32_t* lengths_ = nullptr;
};

/// Checks that each tensor in memory has a pointer with the alignment that its descriptor says.
int check_pack(const Descriptor& graph, const Descriptor& pack) {
  std::set<int64_t> ids;
  for (int64_t i = 0; i < pack.count(CudnnAttribute::kPackIds); ++i) {
    ids.insert(pack.get<int64_t>(CudnnAttribute::kPackIds, static_cast<size_t>(i)));
    if (pack.get<void*>(CudnnAttribute::kPackPointers, static_cast<size_t>(i)) == nullptr)
      return refuse("an address is null");
  }
  if (static_cast<int64_t>(ids.size()) != pack.count(CudnnAttribute::kPackPointers))
    return refuse("ids are not unique");
  for (int64_t i = 0; i < graph.count(CudnnAttribute::kGraphOperations); ++i)
    for (const Descriptor* tensor :
         tensors_of(graph.at(CudnnAttribute::kGraphOperations, static_cast<size_t>(i))))
      if (!tensor->get<bool>(CudnnAttribute::kTensorIsVirtual) && !ids.contains(tensor->id()))
        return refuse(cat("tensor ", tensor->id(), " has no address"));
  auto* const workspace = pack.get<void*>(CudnnAttribute::kPackWorkspace);
  if (cudnn().workspace_bytes > 0 && workspace == nullptr) return refuse("there is no workspace");
  std::memset(workspace, 0xFF, static_cast<size_t>(cudnn().workspace_bytes));
  return 0;
}

int execute(void*, void* plan, void* pack) {
  const Descriptor& graph = *descriptor_at(plan).graph;
  if (cudnn().execution != 0) return refuse("the emulator was told to", cudnn().execution);
  if (const int status = check_pack(graph, descriptor_at(pack)); status != 0) return status;
  cudnn().engine = descriptor_at(plan).engine;
  Run run(graph, descriptor_at(pack));
  for (int64_t i = 0; i < graph.count(CudnnAttribute::kGraphOperations); ++i)
    run.run(graph.at(CudnnAttribute::kGraphOperations, static_cast<size_t>(i)));
  return 0;
}

}  // namespace

}  // namespace ftrun::emulator

namespace ftrun::cuda {

const CudnnApi& load_cudnn() {
  namespace e = emulator;
  static const CudnnApi api{
      .version = [] { return e::cudnn().version; },
      .error_string =
          [](int status) { return status == e::kNotSupported ? "NOT_SUPPORTED" : "BAD_PARAM"; },
      .last_error = [](char* text,
                       size_t bytes) { std::strncpy(text, e::last_error.c_str(), bytes - 1); },
      .create =
          [](CudnnHandle* handle) {
            static char place;
            *handle = &place;
            ++e::cudnn().handles;
            return 0;
          },
      .destroy =
          [](CudnnHandle) {
            --e::cudnn().handles;
            return 0;
          },
      .set_stream = [](CudnnHandle, cudaStream_t) { return 0; },
      .create_descriptor = e::create_descriptor,
      .destroy_descriptor = e::destroy_descriptor,
      .finalize = e::finalize,
      .set_attribute = e::set_attribute,
      .get_attribute = e::get_attribute,
      .execute = e::execute,
  };
  return api;
}

}  // namespace ftrun::cuda
