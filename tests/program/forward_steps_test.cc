#include "models.h"
#include "partition/partition_text.h"
#include "program/buffer_names.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

std::string labels_text(const Program& program) {
  std::string text;
  for (const Instr& instr : program.instrs) text += instr_label(instr) + "\n";
  return text;
}

TEST_CASE("an evaluation step sums the loss of its micro-batches and reduces it once") {
  const PartitionedModel built = build(small_config(1, true), GraphMode::kEvaluate);
  StepOptions options{.micro_batches = 2};
  options.state.data.count = 2;
  const Program program = build_evaluation_step(built.model, built.partition, options).program;
  CHECK(labels_text(program) ==
        "begin\n"
        "load_batch mb 0\nforward layer 0 mb 0\nforward layer 1 mb 0\nforward layer 2 mb 0\n"
        "load_batch mb 1\nforward layer 0 mb 1\nforward layer 1 mb 1\nforward layer 2 mb 1\n"
        "all_reduce\n");
  CHECK(check(program).empty());
  const Instr& reduce = program.instrs.back();
  CHECK(reduce.writes ==
        std::vector<BufferRange>{{buffer_named(program, buffer_names::kLoss), 0, kLossSlots * 8}});
  CHECK(reduce.waits == std::vector<InstrId>{8});
}

TEST_CASE("an evaluation step has no gradients, optimizer states or saved values") {
  const PartitionedModel built = build(small_config(2, false), GraphMode::kEvaluate);
  const Program program = build_evaluation_step(built.model, built.partition, {}).program;
  for (const Buffer& buffer : program.buffers) {
    INFO(buffer.name);
    CHECK(buffer.category != Category::kGradients);
    CHECK(buffer.category != Category::kOptimizer);
    CHECK(buffer.name.find("saved") == std::string::npos);
  }
}

TEST_CASE("a generation step runs forward once and keeps one row of logits per token") {
  const PartitionedModel built =
      build(small_config(2, false), GraphMode::kLogits, UnitGranularity::kLayer, {1, 6});
  const Program program = build_generation_step(built.model, built.partition, {}).program;
  CHECK(labels_text(program) ==
        "load_batch mb 0\nforward layer 0 mb 0\nforward layer 1 mb 0\nforward layer 2 mb "
        "0\nforward layer 3 mb 0\n");
  const Buffer& logits = program.at(buffer_named(program, buffer_names::kLogits));
  CHECK(logits.is_result);
  CHECK(&logits == &program.at(find_result_buffer(program)));
  CHECK(logits.bytes == 6 * 32 * 4);
  CHECK(program.instrs.back().writes.back() ==
        BufferRange{buffer_named(program, buffer_names::kLogits), 0, 6 * 32 * 4});
  CHECK(check(program).empty());
}

TEST_CASE("evaluation of one more micro-batch needs no more arena") {
  const PartitionedModel built = build(small_config(3, false), GraphMode::kEvaluate);
  const auto arena = [&](int32_t n) {
    return arena_total(
        build_evaluation_step(built.model, built.partition, {.micro_batches = n}).program);
  };
  CHECK(arena(1) == arena(2));
  CHECK(arena(1) == arena(4));
}

TEST_CASE("forward and generation steps of random models pass the checker") {
  std::mt19937_64 random(51);
  for (int round = 0; round < 30; ++round) {
    const ModelConfig config = random_config(random);
    const PartitionedModel evaluate =
        build(config, GraphMode::kEvaluate, kGranularities[round % 3]);
    REQUIRE(check(build_evaluation_step(evaluate.model, evaluate.partition,
                                        {.micro_batches = 1 + round % 3})
                      .program)
                .empty());
    const PartitionedModel logits = build(config, GraphMode::kLogits, kGranularities[round % 3]);
    REQUIRE(check(build_generation_step(logits.model, logits.partition, {}).program).empty());
  }
}

TEST_CASE(
    "train, evaluation and logits have one layout of parameters, so that they can share them") {
  std::mt19937_64 random(52);
  for (int round = 0; round < 12; ++round) {
    const ModelConfig config = random_config(random);
    const PartitionedModel train = build(config, GraphMode::kTrain, kGranularities[round % 3]);
    for (const GraphMode mode : {GraphMode::kEvaluate, GraphMode::kLogits}) {
      const PartitionedModel other = build(config, mode, kGranularities[round % 3]);
      REQUIRE(partition_text(other.partition) == partition_text(train.partition));
      for (const Unit& unit : train.partition.units)
        REQUIRE(other.partition.unit(unit.id).slices == unit.slices);
    }
  }
}

}  // namespace
}  // namespace ftrun
