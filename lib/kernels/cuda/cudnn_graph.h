#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/cudnn_api.h"

namespace ftrun::cuda {

/// CudnnDescriptor owns a descriptor of cuDNN. Its calls throw Error(kEnvironment) with cuDNN's
/// message.
class CudnnDescriptor {
 public:
  CudnnDescriptor(const CudnnApi& api, CudnnKind kind);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& other) noexcept
      : api_(other.api_), raw_(std::exchange(other.raw_, nullptr)) {}
  CudnnDescriptor& operator=(CudnnDescriptor&&) = delete;
  CudnnDescriptor(const CudnnDescriptor&) = delete;

  void* raw() const { return raw_; }
  void set(CudnnAttribute name, CudnnElement element, int64_t count, const void* elements);
  template <class T>
  void set(CudnnAttribute name, CudnnElement element, const T& value) {
    set(name, element, 1, &value);
  }
  void set(CudnnAttribute name, const CudnnDescriptor& other) {
    set(name, CudnnElement::kDescriptor, other.raw_);
  }
  void finalize();
  /// Finalizes a descriptor that cuDNN may refuse; returns cuDNN's message, or nothing.
  std::optional<std::string> try_finalize();
  /// Reads at most `max_count` elements of an attribute, and returns how many there are.
  int64_t get(CudnnAttribute name, CudnnElement element, int64_t max_count, void* elements) const;

 private:
  void check(int status, const char* what) const;

  const CudnnApi& api_;
  void* raw_ = nullptr;
};

/// Returns a version as text: "9.19.0".
std::string cudnn_version_text(size_t version);

/// CudnnTarget is the device for which a plan is made: a handle's device, or a device that is
/// described by its properties and need not be present.
struct CudnnTarget {
  CudnnHandle handle = nullptr;
  const CudnnDescriptor* properties = nullptr;
};

/// CudnnArgument is the address of a tensor in memory, or of a number on the host.
struct CudnnArgument {
  int64_t id;
  const void* address;
};

/// CudnnPlan runs one graph on one device. The graph must outlive it.
class CudnnPlan {
 public:
  /// Owns a plan with the descriptors from which it was made.
  CudnnPlan(const CudnnApi& api, std::vector<CudnnDescriptor> parts, CudnnDescriptor plan);

  int64_t workspace_bytes() const { return workspace_bytes_; }
  /// Enqueues the plan on the handle's stream. `workspace` must have workspace_bytes() bytes.
  void run(CudnnHandle handle, std::span<const CudnnArgument> arguments, void* workspace) const;

 private:
  const CudnnApi& api_;
  std::vector<CudnnDescriptor> parts_;
  CudnnDescriptor plan_;
  int64_t workspace_bytes_ = 0;
};

/// CudnnShape holds a tensor's dimensions, and its strides in elements: batch, heads, rows,
/// columns.
struct CudnnShape {
  std::array<int64_t, 4> dims;
  std::array<int64_t, 4> strides;
  CudnnType type = CudnnType::kFloat;
  /// The id of a list of offsets in elements, one for each batch, which replaces strides[0].
  std::optional<int64_t> offsets = {};
};

/// CudnnMatmulLengths holds the ids of lists with the rows, columns and depth of a matrix
/// multiplication in each batch, if they are fewer than its dimensions.
struct CudnnMatmulLengths {
  std::optional<int64_t> rows = {};
  std::optional<int64_t> columns = {};
  std::optional<int64_t> depth = {};
};

/// CudnnGraph is a list of operations on tensors, computed in fp32, which cuDNN turns into kernels.
class CudnnGraph {
 public:
  explicit CudnnGraph(const CudnnApi& api) : api_(api) {}

  /// Adds a tensor: one in memory (16 bytes aligned, lists 4), one that exists only inside the
  /// graph, or a number that is given by its address.
  int64_t add_memory_tensor(const CudnnShape& shape) {
    return add_tensor(shape, TensorStorage::kMemory);
  }
  int64_t add_virtual_tensor(const CudnnShape& shape) {
    return add_tensor(shape, TensorStorage::kVirtual);
  }
  int64_t add_scalar() { return add_tensor({{1, 1, 1, 1}, {1, 1, 1, 1}}, TensorStorage::kByValue); }
  /// Adds an I32[count] in memory.
  int64_t add_list(int64_t count) {
    return add_memory_tensor({{count, 1, 1, 1}, {1, 1, 1, 1}, CudnnType::kInt32});
  }

  void matmul(int64_t a, int64_t b, int64_t c, const CudnnMatmulLengths& lengths = {});
  /// Pointwise is y = mode(x), mode(x, b) or mode(x, b, t); kSelect is t ? x : b, kIndex the index
  /// along `axis`. `precision` is the type of the arithmetic.
  struct Pointwise {
    CudnnPointwise mode;
    int64_t x;
    int64_t y;
    std::optional<int64_t> b = {};
    std::optional<int64_t> t = {};
    CudnnType precision = CudnnType::kFloat;
    int64_t axis = -1;
  };
  void pointwise(const Pointwise& p);
  /// Reduces over the dimensions in which y has 1 element, or fewer than x.
  void reduce(CudnnReduction mode, int64_t x, int64_t y);
  /// Reorders the dimensions of the same elements.
  void reshape(int64_t x, int64_t y);

  /// Engines are cuDNN's engines that have the same bits from run to run, best first. No device is
  /// needed where the target is given by its properties.
  struct Engines {
    CudnnDescriptor graph;
    std::vector<CudnnDescriptor> configs;
  };
  Engines list_engines(const CudnnTarget& target) const;
  /// Makes a plan with the first of cuDNN's engines that has the same bits from run to run. Throws
  /// Error(kUnsupported) if there is none; its message names `what` and has cuDNN's message.
  CudnnPlan make_plan(const CudnnTarget& target, const std::string& what) const;

 private:
  enum class TensorStorage { kMemory, kVirtual, kByValue };

  int64_t add_tensor(const CudnnShape& shape, TensorStorage storage);
  const CudnnDescriptor& at(int64_t id) const { return tensors_[static_cast<size_t>(id - 1)]; }
  CudnnDescriptor& add_operation(CudnnKind kind);
  CudnnDescriptor finalize_graph(const CudnnTarget& target) const;

  const CudnnApi& api_;
  std::vector<CudnnDescriptor> tensors_;
  /// The descriptors to which operations refer.
  std::vector<CudnnDescriptor> modes_;
  std::vector<CudnnDescriptor> operations_;
};

}  // namespace ftrun::cuda
