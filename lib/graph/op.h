#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace ftrun {

/// ValueId is the index of a value in its LayerGraph.
using ValueId = int32_t;

/// OpKind specifies what an operation computes. Its values are positions in the list ops/kinds.inc,
/// to which a new kind is added.
enum class OpKind : uint8_t;

/// NoAttrs stands for the attributes of a kind that has none.
struct NoAttrs {
  bool operator==(const NoAttrs&) const = default;
};

/// OpAttrs holds the attributes of an operation: a value of the type that its kind defines
/// (ops/KIND), or none. Copies share the value, which never changes.
class OpAttrs {
 public:
  OpAttrs() = default;
  OpAttrs(NoAttrs) {}
  template <class A>
  requires(!std::is_same_v<A, OpAttrs>) OpAttrs(A attrs)
      : attrs_(std::make_shared<const AttrsOf<A>>(std::move(attrs))) {}

  /// Returns the value, or null where the attributes are of another type.
  template <class A>
  const A* get_if() const {
    const bool has = attrs_ != nullptr && attrs_->type == typeid(A);
    return has ? &static_cast<const AttrsOf<A>*>(attrs_.get())->value : nullptr;
  }
  /// Returns the value; throws std::bad_cast where the attributes are of another type.
  template <class A>
  const A& get() const {
    const A* const attrs = get_if<A>();
    if (attrs == nullptr) throw std::bad_cast();
    return *attrs;
  }
  /// Returns the value, or `other` where the attributes are of another type.
  template <class A>
  A get_or(A other = {}) const {
    const A* const attrs = get_if<A>();
    return attrs == nullptr ? other : *attrs;
  }
  template <class A>
  bool holds() const {
    return get_if<A>() != nullptr;
  }
  bool operator==(const OpAttrs& other) const {
    if (attrs_ == nullptr || other.attrs_ == nullptr) return attrs_ == other.attrs_;
    return attrs_->type == other.attrs_->type && attrs_->equals(*other.attrs_);
  }

 private:
  /// AttrsBase is the base of all AttrsOf, which hides the type of the value.
  struct AttrsBase {
    explicit AttrsBase(const std::type_info& of) : type(of) {}
    virtual ~AttrsBase() = default;
    /// Returns whether the values are equal; `other` holds the same type.
    virtual bool equals(const AttrsBase& other) const = 0;
    const std::type_info& type;
  };
  template <class A>
  struct AttrsOf final : AttrsBase {
    explicit AttrsOf(A attrs) : AttrsBase(typeid(A)), value(std::move(attrs)) {}
    bool equals(const AttrsBase& other) const override {
      return value == static_cast<const AttrsOf&>(other).value;
    }
    A value;
  };

  std::shared_ptr<const AttrsBase> attrs_;
};

/// Op is one operation of a list, with its operands, results and attributes.
struct Op {
  OpKind kind;
  std::vector<ValueId> in;
  std::vector<ValueId> out;
  OpAttrs attrs;
  /// The kWorkspace value that holds the operation's scratch memory while it runs; -1: it needs
  /// none.
  ValueId workspace = -1;
};

/// Returns the name of a kind in programs, messages and traces: "linear_dgrad", ...
std::string_view op_name(OpKind kind);

/// Returns whether a kind is cheap: backward recomputes its results instead of saving them.
bool is_cheap(OpKind kind);

/// Returns whether a kind is communication among the tensor-parallel ranks, which no kernel runs.
bool is_collective(OpKind kind);

/// Returns the input whose storage output 0 may reuse if nothing reads that input later; -1: none.
ValueId in_place_input(const Op& op);

}  // namespace ftrun
