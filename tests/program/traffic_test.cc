#include "program/traffic.h"

#include <cmath>

#include "model/size.h"
#include "step_cases.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

/// Returns the number of ranks of a group along axes of a mesh. A group of neighbors has its size
/// in its name ("tensor/2"); axes are joined by "+" ("data+tensor").
int64_t ranks_along(const std::string& axes, const Mesh& mesh) {
  if (const size_t slash = axes.find('/'); slash != std::string::npos)
    return std::stoll(axes.substr(slash + 1));
  int64_t ranks = 1;
  for (const auto& [name, size] :
       {std::pair("data_replicate", mesh.replicas), std::pair("data", mesh.shards),
        std::pair("tensor", mesh.tensor)})
    if (("+" + axes + "+").find("+" + std::string(name) + "+") != std::string::npos) ranks *= size;
  return ranks;
}

/// Returns the bytes that Communicator::stats() would count, summed over all collectives.
int64_t expected_bytes(const Program& program, Mesh mesh) {
  int64_t bytes = 0;
  for (const Instr& instr : program.instrs) {
    if (!instr.is_collective()) continue;
    const int64_t n = ranks_along(axes_in(program, instr.group()), mesh);
    for (size_t i = 0; i < instr.writes.size(); ++i) {
      if (instr.kind == InstrKind::kAllReduce) {
        const int64_t count = instr.reads[i].bytes / dtype_bytes(instr.communication().dtype);
        bytes += 2 * count * dtype_bytes(instr.communication().dtype) * (n - 1) / n;
      } else if (instr.kind == InstrKind::kReduceScatter) {
        bytes += instr.writes[i].bytes / dtype_bytes(instr.communication().dtype) *
                 dtype_bytes(instr.communication().dtype) * (n - 1);
      } else {
        bytes += instr.reads[i].bytes / dtype_bytes(instr.communication().dtype) *
                 dtype_bytes(instr.communication().dtype) * (n - 1);
      }
    }
  }
  return bytes;
}

TEST_CASE(
    "the published formulas and the listed deviations add up to the bytes that a program sends") {
  std::mt19937_64 random(301);
  for (int round = 0; round < 150; ++round) {
    StepCase step_case = random_step_case(random);
    if (round % 3 == 2) step_case = with_frozen(step_case, random, 40);
    if (round % 3 == 1) step_case = with_frozen_below(step_case, random);
    const std::vector<StepProgram> steps = step_case.steps();
    const Program& program = steps.back().program;
    const StepOptions options = step_case.options_of_rank(step_case.mesh.ranks() - 1);
    const Traffic traffic = program_traffic(program);
    const TrafficTheory theory = compare_traffic_with_theory(program, step_case.built.model,
                                                             step_case.built.partition, options);
    INFO("round " << round << ": " << step_case.text() << "\n"
                  << planned_traffic_text(traffic, theory));
    REQUIRE(traffic.bytes == expected_bytes(program, step_case.mesh));
    int64_t rows = 0;
    int64_t calls = 0;
    for (const TrafficRow& row : traffic.rows) {
      rows += row.bytes;
      calls += row.calls;
    }
    REQUIRE(rows == traffic.bytes);
    int64_t sum = theory.bytes;
    for (const TrafficDeviation& deviation : theory.deviations) {
      REQUIRE(deviation.bytes != 0);
      sum += deviation.bytes;
      // The formulas omit less than a byte per call and unit.
      const auto parts = calls + static_cast<int64_t>(step_case.built.partition.units.size()) *
                                     step_case.options.micro_batches;
      if (deviation.cause.find("rounding") == 0)
        REQUIRE(std::abs(static_cast<double>(deviation.bytes)) <= static_cast<double>(parts));
    }
    REQUIRE(sum == traffic.bytes);
  }
}

TEST_CASE("disk traffic is every copy's range on the disk, in its direction") {
  Program program;
  program.buffers.resize(3);
  program.buffers[1].tier = Tier::kDisk;
  program.buffers[2].tier = Tier::kHost;
  const auto copy = [&](BufferRange from, BufferRange to) {
    Instr instr;
    instr.kind = InstrKind::kCopy;
    instr.reads = {from};
    instr.writes = {to};
    program.instrs.push_back(instr);
  };
  copy({1, 0, 4096}, {2, 0, 4096});
  copy({2, 0, 8192}, {1, 4096, 8192});
  copy({1, 8192, 100}, {2, 0, 100});
  copy({0, 0, 5000}, {2, 0, 5000});
  CHECK(disk_traffic(program).bytes_read == 4196);
  CHECK(disk_traffic(program).bytes_written == 8192);
}

/// Returns a model whose units have no padding on 2 and 4 ranks. The norms, whose units would have
/// some, are made small units instead.
PartitionedModel model_without_padding(UnitGranularity granularity = UnitGranularity::kLayer) {
  ModelConfig c = small_config(2, false);
  c.vocab_rows = 128;
  c.hidden = 128;
  c.feed_forward = 128;
  c.query_heads = c.kv_heads = 4;
  c.head_size = 32;
  PartitionedModel built;
  built.model = build_model(c, {1, 4}, GraphMode::kTrain);
  built.partition = build_units(built.model, granularity, {128, INT64_MAX});
  return built;
}

TEST_CASE("units whose gradients lie next to each other without padding are all reduced") {
  for (const UnitGranularity granularity : kGranularities)
    for (int stage = 0; stage < 4; ++stage)
      for (const int ranks : {1, 2, 4})
        for (const int32_t micro_batches : {1, 2}) {
          const PartitionedModel built = model_without_padding(granularity);
          StepOptions options{.micro_batches = micro_batches, .bucket_elements = 1};
          options.state.zero_stage = stage;
          const Program program = built.step(options, ranks);
          INFO(program_text(program));
          REQUIRE(check(program) == std::vector<std::string>{});
          if (ranks == 1) continue;
          std::map<UnitId, int> reduced;
          for (const Instr& instr : program.instrs)
            if (instr.unit >= 0 &&
                (instr.kind == InstrKind::kAllReduce || instr.kind == InstrKind::kReduceScatter))
              ++reduced[instr.unit];
          REQUIRE(reduced.size() == built.partition.units.size());
          for (const auto& [unit, times] : reduced)
            REQUIRE(times == (stage < 2 ? 1 : micro_batches));
        }
}

int64_t deviation_bytes(const TrafficTheory& theory, const std::string& cause) {
  int64_t bytes = 0;
  for (const TrafficDeviation& deviation : theory.deviations)
    if (deviation.cause.find(cause) == 0) bytes += deviation.bytes;
  return bytes;
}

TEST_CASE(
    "gathering weights while they are quantized is a separate deviation, because the formulas "
    "count "
    "dequantized weights") {
  ModelConfig c = small_config(2, false);
  c.vocab_rows = c.hidden = c.feed_forward = 128;
  c.query_heads = c.kv_heads = 4;
  c.head_size = 32;
  ModelDtypes dtypes;
  dtypes.quantized.type = QuantizationType::kNf4;
  PartitionedModel built;
  built.model =
      freeze(build_model(c, {1, 4}, GraphMode::kTrain, dtypes), [](const TensorInfo& tensor) {
        return tensor.name.find("layers.0.input_layernorm") != std::string::npos;
      });
  built.partition = build_units(built.model, UnitGranularity::kLayer, {128, INT64_MAX});
  StepOptions options;
  options.state.zero_stage = 3;
  options.state.data = {2, 0};
  const Program program = built.step(options, 2);
  const TrafficTheory theory =
      compare_traffic_with_theory(program, built.model, built.partition, options);
  INFO(planned_traffic_text(program_traffic(program), theory));
  CHECK(theory.bytes == 3 * count_parameters(built.model).total * 4 / 2);
  // The quantized units of the two blocks are gathered in forward and in backward, half from the
  // other rank.
  int64_t elements = 0;
  for (const Unit& unit : built.partition.units)
    if (unit.quantized) elements += unit.numel;
  REQUIRE(elements == 2 * 7 * 128 * 128);
  const int64_t saved =
      elements * 4 - elements / kQuantizedRecord * dtypes.quantized.record_bytes();
  CHECK(deviation_bytes(theory, "quantized weights (quantization)") == -2 * saved / 2);
  int64_t sum = theory.bytes;
  for (const TrafficDeviation& deviation : theory.deviations) sum += deviation.bytes;
  CHECK(sum == program_traffic(program).bytes);
}

TEST_CASE("without padding, stages send 2 Psi (N-1)/N elements, ZeRO-3 3 Psi (N-1)/N") {
  const PartitionedModel built = model_without_padding();
  for (const int ranks : {2, 4}) {
    for (int stage = 0; stage < 4; ++stage) {
      StepOptions options;
      options.state.zero_stage = stage;
      options.state.data = {ranks, 0};
      const Program program = built.step(options, ranks);
      const Traffic traffic = program_traffic(program);
      const TrafficTheory theory =
          compare_traffic_with_theory(program, built.model, built.partition, options);
      INFO(planned_traffic_text(traffic, theory));
      const int64_t psi = count_parameters(built.model).total;
      CHECK(theory.parameters == psi);
      CHECK(theory.bytes == (stage == 3 ? 3 : 2) * psi * 4 * (ranks - 1) / ranks);
      // Large units send exactly what theory says.
      int64_t large = 0;
      for (const TrafficRow& row : traffic.rows)
        if (row.kind != InstrKind::kAllReduce) large += row.bytes;
      int64_t even_elements = 0;
      for (const Unit& unit : built.partition.units) {
        if (unit.holds_small_tensors) continue;
        CHECK(unit.numel == unit.padded_numel);
        even_elements += unit.numel;
      }
      if (stage == 3) {
        // Backward reads neither the embedding's matrix nor the head's, whose gradients are
        // computed in forward.
        const int64_t forward_only = 2 * 128 * 128;
        CHECK(large == (3 * even_elements - forward_only) * 4 * (ranks - 1) / ranks);
        CHECK(deviation_bytes(theory, "units that are read by other than") ==
              -forward_only * 4 * (ranks - 1) / ranks);
      }
      for (const char* cause :
           {"gathered parameters that were kept", "repetition", "replicas", "gradients summed"})
        CHECK(deviation_bytes(theory, cause) == 0);
    }
  }
}

TEST_CASE(
    "without deviations, a program sends the bytes of the published formulas, plus loss and norm") {
  // Every tensor has a multiple of 4096 x 4 elements. Two forward lists read the tied matrix.
  ModelConfig c = small_config(2, true);
  c.hidden = 16384;
  c.feed_forward = 4;
  c.query_heads = 2;
  c.head_size = 2;
  c.kv_heads = 1;
  const PartitionedModel built = build(c);
  for (const int ranks : {1, 2, 4}) {
    for (int stage = 0; stage < 4; ++stage) {
      StepOptions options;
      options.state.zero_stage = stage;
      options.state.data = {ranks, 0};
      const Program program = built.step(options, ranks);
      const TrafficTheory theory =
          compare_traffic_with_theory(program, built.model, built.partition, options);
      INFO("stage " << stage << " on " << ranks);
      const int64_t psi = count_parameters(built.model).total;
      const int64_t expected = (stage == 3 ? 3 : 2) * psi * 4 * (ranks - 1) / ranks;
      CHECK(theory.bytes == expected);
      const int64_t slots = 4 * ranks * 8;  // slots of the norm
      const int64_t numbers =
          2 * kLossSlots * 8 * (ranks - 1) / ranks + 2 * slots * (ranks - 1) / ranks;
      CHECK(program_traffic(program).bytes == expected + numbers);
      REQUIRE(theory.deviations.size() == (ranks > 1 ? 1 : 0));
      if (ranks > 1) CHECK(theory.deviations[0].cause == "loss and gradient norm");
    }
  }
}

TEST_CASE("parameters kept for their next use are not sent again") {
  const PartitionedModel built = build(small_config(2, false));
  StepOptions options;
  options.state.zero_stage = 3;
  options.state.data = {4, 0};
  const auto kept = [&](int64_t distance) {
    options.reuse_distance = distance;
    const Program program = built.step(options, 4);
    return deviation_bytes(
        compare_traffic_with_theory(program, built.model, built.partition, options),
        "gathered parameters that were kept");
  };
  CHECK(kept(0) == 0);
  // The head and two blocks, 4096 elements per rank, are still gathered when backward begins.
  CHECK(kept(1'000'000) == -3 * 4096 * 4 * 3);
}

TEST_CASE("the table of a small ZeRO-3 step") {
  const PartitionedModel built = build(small_config(1, true));
  StepOptions options{.micro_batches = 2};
  options.state.zero_stage = 3;
  options.state.data = {2, 0};
  const Program program = built.step(options);
  CHECK(planned_traffic_text(
            program_traffic(program),
            compare_traffic_with_theory(program, built.model, built.partition, options)) ==
        "bytes that a rank sends each time the program runs\n"
        "  all_reduce over 2 ranks along data, 2 calls                                120 B\n"
        "  reduce_scatter over 2 ranks along data, 6 calls                          98304 B\n"
        "  all_gather over 2 ranks along data, 12 calls                            196608 B\n"
        "  sum, 288.12 KiB                                                         295032 B\n"
        "  theory: 3 x 2480 elements x 1/2                                          14880 B\n"
        "  padding of units and shards                                             132576 B\n"
        "  repetition for each micro-batch                                         147456 B\n"
        "  loss and gradient norm                                                     120 B\n");
}

TEST_CASE("the table of tensor ranks shows what their layers exchange") {
  const PartitionedModel built = build(small_config(1, true), GraphMode::kTrain,
                                       UnitGranularity::kLayer, {1, 4}, {2, 0, true});
  StepOptions options;
  options.state.tensor = {2, 0};
  const Program program = built.step(options, 1);
  CHECK(planned_traffic_text(
            program_traffic(program),
            compare_traffic_with_theory(program, built.model, built.partition, options)) ==
        "bytes that a rank sends each time the program runs\n"
        "  all_reduce over 2 ranks along tensor, 5 calls                              360 B\n"
        "  reduce_scatter over 2 ranks along tensor, 6 calls                          768 B\n"
        "  all_gather over 2 ranks along tensor, 9 calls                             1056 B\n"
        "  sum, 2.13 KiB                                                             2184 B\n"
        "  theory: 1264 elements, whole on one rank                                     0 B\n"
        "  loss and gradient norm                                                     168 B\n"
        "  values of layers that tensor-parallel ranks share                         1824 B\n"
        "  gradients of what tensor-parallel ranks use together                       192 B\n");
}

}  // namespace
}  // namespace ftrun
