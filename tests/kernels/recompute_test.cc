#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph/blocks.h"
#include "graph/scratch.h"
#include "operation_runner.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::BlockShape;

/// Memory that is aligned to 64 bytes and filled with NaN patterns.
class Memory {
 public:
  explicit Memory(int64_t bytes) : bytes_(bytes), owner_(static_cast<size_t>(bytes) + 64) {
    void* begin = owner_.data();
    size_t room = owner_.size();
    begin_ = static_cast<std::byte*>(std::align(64, static_cast<size_t>(bytes), begin, room));
    poison();
  }
  void poison() { std::memset(begin_, 0xFF, static_cast<size_t>(bytes_)); }
  std::byte* at(int64_t offset) { return begin_ + offset; }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_;
  std::vector<std::byte> owner_;
  std::byte* begin_ = nullptr;
};

/// Runs the forward and backward lists of a block in planned memory. Scratch memory is shared, and
/// is filled with NaN between the lists, so that backward cannot use what it may not read.
class BlockRun {
 public:
  explicit BlockRun(const LayerGraph& graph)
      : graph_(graph), saved_(plan_saved(graph).bytes), storage_(graph.values.size(), nullptr) {
    for (size_t i = 0; i < graph.values.size(); ++i) {
      const Value& value = graph.values[i];
      if (testing::lives_in_list(value) || value.role == ValueRole::kSaved) continue;
      own_.emplace(i, Memory(value.bytes()));
      storage_[i] = own_.at(i).at(0);
      fill(i, value);
    }
    place(plan_saved(graph), saved_);
  }

  void run(const std::vector<Op>& list) {
    const ScratchPlan plan = plan_scratch(graph_, list);
    Memory scratch(plan.bytes);
    place(plan, scratch);
    for (const Op& op : list) run_op(graph_, op, storage_, {false, &scalars_});
  }

  std::string bits(ValueId id) {
    const auto& value = graph_.at(id);
    return {static_cast<const char*>(storage_[static_cast<size_t>(id)]),
            static_cast<size_t>(value.bytes())};
  }

 private:
  void fill(size_t i, const Value& value) {
    const bool given = value.role == ValueRole::kInput || value.role == ValueRole::kParam ||
                       value.role == ValueRole::kOutputGrad;
    if (!given) return;
    if (value.dtype == DType::kI32) {  // starts: each sequence is one document
      std::memset(storage_[i], 0, static_cast<size_t>(value.bytes()));
      return;
    }
    auto numbers = testing::random_array(value.dims, std::hash<std::string>{}(value.name) % 1000);
    // Small weights keep every value within fp16's range.
    if (value.role == ValueRole::kParam)
      for (double& number : numbers.data) number /= 8;
    for (size_t k = 0; k < numbers.data.size(); ++k)
      put(value.dtype, storage_[i], k, numbers.data[k]);
  }

  static void put(DType dtype, void* to, size_t k, double number) {
    if (dtype == DType::kF32)
      static_cast<float*>(to)[k] = static_cast<float>(number);
    else
      static_cast<uint16_t*>(to)[k] = testing::bits_of(testing::rounded(number, dtype), dtype);
  }

  void place(const ScratchPlan& plan, Memory& memory) {
    for (size_t i = 0; i < plan.offset.size(); ++i)
      if (plan.offset[i] >= 0) storage_[i] = memory.at(plan.offset[i]);
  }

  const LayerGraph& graph_;
  Memory saved_;
  std::map<size_t, Memory> own_;
  std::vector<void*> storage_;
  StepScalars scalars_;
};

/// Returns the bits of the output and of every gradient of a block, by name.
std::map<std::string, std::string> block_results(BlockShape shape, const RecomputePolicy& policy) {
  shape.recompute = policy;
  const LayerGraph graph = testing::block_graph(shape);
  BlockRun run(graph);
  run.run(graph.forward);
  run.run(graph.backward);
  std::map<std::string, std::string> found;
  for (const ValueRole role : {ValueRole::kOutput, ValueRole::kParamGrad, ValueRole::kInputGrad})
    for (const ValueId id : graph.values_with_role(role)) found[graph.at(id).name] = run.bits(id);
  return found;
}

/// Returns whether a value of the graph contains a NaN: the poison of unwritten memory, or a number
/// computed from it.
bool has_nan(DType dtype, const std::string& bits) {
  const auto size = static_cast<size_t>(dtype_bytes(dtype));
  for (size_t i = 0; i + size <= bits.size(); i += size) {
    float number = 0;
    uint16_t narrow = 0;
    std::memcpy(size == 4 ? static_cast<void*>(&number) : &narrow, bits.data() + i, size);
    if (std::isnan(size == 4 ? static_cast<double>(number) : testing::number_of(narrow, dtype)))
      return true;
  }
  return false;
}

const BlockShape kLayerShapes[] = {
    {},
    {.rows = 2, .sequence_length = 80, .hidden = 64, .head_size = 16, .feed_forward = 96},
    {.rows = 1,
     .sequence_length = 130,
     .hidden = 48,
     .head_size = 12,
     .feed_forward = 80,
     .window = 33},
    {.rows = 2,
     .sequence_length = 65,
     .hidden = 64,
     .head_size = 16,
     .feed_forward = 72,
     .biases = true,
     .qk_norm = true},
    {.rows = 1,
     .sequence_length = 192,
     .hidden = 576,
     .query_heads = 9,
     .kv_heads = 3,
     .head_size = 64,
     .feed_forward = 1536}};

TEST_CASE("gradients have the same bits whatever is recomputed in backward") {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (BlockShape shape : kLayerShapes) {
      INFO(dtype_name(dtype) << ", rows of " << shape.sequence_length);
      shape.dtypes = {dtype, dtype};
      const auto plain = block_results(shape, {});
      REQUIRE(plain.size() >= 8);
      for (const auto& [name, bits] : plain) {
        INFO(name);
        REQUIRE_FALSE(has_nan(dtype, bits));
      }
      for (const double budget : {0.0, 0.1, 0.3, 0.6, 1.0}) {
        INFO("selective within " << budget);
        REQUIRE(block_results(shape, {RecomputeLevel::kSelective, budget}) == plain);
      }
      REQUIRE(block_results(shape, {RecomputeLevel::kFull}) == plain);
    }
  }
}

TEST_CASE("the NaN in scratch memory shows a value that backward reads but forward did not save") {
  BlockShape shape;
  LayerGraph graph = testing::block_graph(shape);
  graph.values[static_cast<size_t>(testing::value_named(graph, "gu.out"))].role = ValueRole::kTemp;
  BlockRun run(graph);
  run.run(graph.forward);
  run.run(graph.backward);
  REQUIRE(has_nan(DType::kF32, run.bits(testing::value_named(graph, "d_gu"))));
}

}  // namespace
}  // namespace ftrun
