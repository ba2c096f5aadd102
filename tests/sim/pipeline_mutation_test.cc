#include <algorithm>
#include <functional>
#include <map>

#include "mutants.h"
#include "program/conflicts.h"
#include "sweep.h"

#include <catch2/catch.hpp>

// These tests break programs of three axes (stages, shards, tensor ranks): one transfer between
// stages, or one collective next to one, at a time. The checker must refuse the mutant, and name
// rank, instruction and reason, or the interpreter must show that it computes the same.

namespace ftrun {
namespace {

using namespace testing;

MutatedCase staged_case(PipelineSchedule kind, int zero, bool overlap, Mesh mesh, int64_t layers) {
  ModelConfig config = small_config(layers, true);
  config.feed_forward = 48;
  config.vocab_rows = 64;
  StepCase step_case{
      build(config, GraphMode::kTrain, UnitGranularity::kLayer, {1, 4}, {mesh.tensor, 0, true}),
      {},
      mesh,
      config};
  step_case.built.partition =
      build_units(step_case.built.model, UnitGranularity::kLayer, {64, INT64_MAX});
  step_case.options.micro_batches = 3;
  step_case.options.overlap = overlap;
  step_case.options.bucket_elements = 1;
  step_case.options.gather_bucket_elements = 10'000;
  step_case.options.state.zero_stage = zero;
  step_case.options.state.decays = decays_matrices;
  step_case.options.state.optimizer_states.resize(1);
  while (!accepts_micro_batches(kind, mesh.stages, step_case.options.micro_batches))
    ++step_case.options.micro_batches;
  std::mt19937_64 random(7);
  const int fixed = required_chunks(kind);
  add_pipeline(random, step_case, kind, mesh.stages, fixed > 0 ? fixed : 2);
  const std::string name =
      cat(schedule_text(make_schedule(kind, mesh.stages, step_case.options.state.pipeline.chunks(),
                                      0, step_case.options.micro_batches)),
          ", stage ", zero, overlap ? ", overlap" : "");
  return {name, std::move(step_case)};
}

constexpr PipelineSchedule kKinds[] = {PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved,
                                       PipelineSchedule::kZbH1, PipelineSchedule::kZbV};

std::vector<MutatedCase> three_axes() {
  std::vector<MutatedCase> all;
  for (const PipelineSchedule kind : kKinds)
    for (const int zero : {1, 3})
      all.push_back(staged_case(kind, zero, (static_cast<int>(kind) + zero) % 4 != 0,
                                {.shards = 2, .tensor = 2, .stages = 2}, 2));
  return all;
}

// Positions of transfers.

BufferId moved_buffer(const Instr& transfer) {
  return (transfer.kind == InstrKind::kSend ? transfer.reads : transfer.writes)[0].buffer;
}

BufferRange& moved_range(Instr& transfer) {
  return (transfer.kind == InstrKind::kSend ? transfer.reads : transfer.writes)[0];
}

/// Returns the other end of a transfer: its rank, and its position in that rank's list.
std::pair<size_t, size_t> other_end(const std::vector<StepProgram>& steps, size_t rank, size_t at) {
  const Program& program = steps[rank].program;
  const Instr& own = program.instrs[at];
  for (const int member : program.group(own.group()).members.ranks) {
    if (static_cast<size_t>(member) == rank) continue;
    const Program& other = steps[static_cast<size_t>(member)].program;
    for (size_t i = 0; i < other.instrs.size(); ++i) {
      const Instr& instr = other.instrs[i];
      if (instr.is_transfer() && instr.kind != own.kind && instr.layer == own.layer &&
          instr.micro_batch == own.micro_batch &&
          other.at(moved_buffer(instr)).name == program.at(moved_buffer(own)).name)
        return {static_cast<size_t>(member), i};
    }
  }
  throw std::logic_error("a transfer has two ends");
}

/// Returns the position of the next transfer on the same link, or the end of the list.
size_t next_on_link(const Program& program, size_t at) {
  size_t next = at + 1;
  while (next < program.instrs.size() && program.instrs[next].lane != program.instrs[at].lane)
    ++next;
  return next;
}

size_t first_reader(const Program& program, BufferId buffer, size_t after) {
  for (size_t i = after + 1; i < program.instrs.size(); ++i)
    for (const BufferRange& range : program.instrs[i].reads)
      if (range.buffer == buffer) return i;
  return program.instrs.size();
}

size_t last_writer(const Program& program, BufferId buffer, size_t before) {
  for (size_t i = before; i-- > 0;)
    for (const BufferRange& range : program.instrs[i].writes)
      if (range.buffer == buffer) return i;
  return program.instrs.size();
}

/// Returns the buffer in which another micro-batch makes the same transfer; -1 if there is none.
BufferId of_another_micro_batch(const Program& program, const Instr& transfer,
                                int32_t micro_batches) {
  const std::string& name = program.at(moved_buffer(transfer)).name;
  const std::string other =
      cat(name.substr(0, name.rfind('.') + 1), (transfer.micro_batch + 1) % micro_batches);
  for (size_t i = 0; i < program.buffers.size(); ++i)
    if (program.buffers[i].name == other) return static_cast<BufferId>(i);
  return -1;
}

/// A way to break the transfer at position `at` of a list. `apply` returns false if it is
/// impossible there.
struct TransferBreak {
  std::string name;
  std::function<bool(Program&, size_t at)> apply;
  /// The break may be harmless: then the interpreter must find the same results.
  bool may_be_harmless = false;
};

std::vector<TransferBreak> transfer_breaks(const StepCase& step_case) {
  const int32_t micro_batches = step_case.options.micro_batches;
  const bool overlap = step_case.options.overlap;
  const auto on_instr = [](auto change) {
    return [=](Program& p, size_t at) { return change(p, p.instrs[at]); };
  };
  return {
      {"dropped", [](Program& p, size_t at) { return p = without_instruction(p, at), true; }},
      {"doubled", [](Program& p, size_t at) { return p = with_instruction_twice(p, at), true; }},
      {"swapped with the next on its link",
       [=](Program& p, size_t at) {
         const size_t next = next_on_link(p, at);
         if (next == p.instrs.size()) return false;
         p = testing::with_instruction_moved(std::move(p), at, next, overlap);
         return true;
       }},
      {"at the end of the list",
       [=](Program& p, size_t at) {
         return p = testing::with_instruction_moved(std::move(p), at, p.instrs.size() - 1, overlap),
                true;
       },
       true},
      {"at the beginning",
       [=](Program& p, size_t at) {
         return p = testing::with_instruction_moved(std::move(p), at, 0, overlap), true;
       },
       true},
      {"before what it sends is made, or after what it brings is read",
       [=](Program& p, size_t at) {
         const Instr& instr = p.instrs[at];
         const bool sends = instr.kind == InstrKind::kSend;
         const size_t to = sends ? last_writer(p, moved_buffer(instr), at)
                                 : first_reader(p, moved_buffer(instr), at);
         if (to == p.instrs.size()) return false;
         p = testing::with_instruction_moved(std::move(p), at, to, overlap);
         return true;
       }},
      {"of another micro-batch", on_instr([=](Program&, Instr& i) {
         i.micro_batch = (i.micro_batch + 1) % micro_batches;
         return true;
       })},
      {"of another micro-batch's buffer", on_instr([=](Program& p, Instr& i) {
         const BufferId other = of_another_micro_batch(p, i, micro_batches);
         if (other < 0 || p.at(other).bytes != p.at(moved_buffer(i)).bytes) return false;
         moved_range(i).buffer = other;
         return true;
       })},
      {"of another layer", on_instr([](Program&, Instr& i) { return i.layer += 1, true; })},
      {"of half the bytes",
       on_instr([](Program&, Instr& i) { return moved_range(i).bytes /= 2, true; })},
      {"of another dtype",
       on_instr([](Program&, Instr& i) { return i.communication().dtype = DType::kBF16, true; })},
      {"over another group", on_instr([](Program& p, Instr& i) {
         const GroupId other = (i.group() + 1) % static_cast<GroupId>(p.groups.size());
         i.communication().group = other;
         i.lane = lane_of(other);
         return true;
       })},
      {"on another lane",
       on_instr([](Program&, Instr& i) { return i.lane = Lane::kCompute, true; })},
      {"in the other direction", on_instr([](Program&, Instr& i) {
         i.kind = i.kind == InstrKind::kSend ? InstrKind::kReceive : InstrKind::kSend;
         std::swap(i.reads, i.writes);
         return true;
       })},
      {"in finite steps alone", on_instr([](Program&, Instr& i) { return i.if_finite = true; })},
      {"without its waits", on_instr([](Program&, Instr& i) {
         if (i.waits.empty()) return false;
         i.waits.clear();
         return true;
       }),
       true},
      {"not waited for",
       [](Program& p, size_t at) {
         size_t erased = 0;
         for (Instr& instr : p.instrs) erased += std::erase(instr.waits, static_cast<InstrId>(at));
         return erased > 0;
       },
       true},
  };
}

struct Verdicts {
  size_t refused = 0;
  size_t harmless = 0;
  std::map<std::string, size_t> refused_by_name;

  void judge(const TransferBreak& broken, Mutants& mutants, const std::vector<StepProgram>& steps,
             bool both) {
    const std::vector<std::string> faults = check_programs(programs_of(steps));
    if (!faults.empty()) {
      ++refused;
      ++refused_by_name[broken.name];
      INFO(faults.front());
      CHECK(names_place_and_reason(faults.front()));
    } else {
      ++harmless;
      // Applied to both ends, another order or size may be valid.
      CHECK((broken.may_be_harmless || both));
      CHECK_FALSE(mutants.compute_other_results(steps));
    }
  }
};

TEST_CASE("each broken transfer between stages is refused with its position, or changes no weight",
          "[long]") {
  Verdicts verdicts;
  size_t turn = 0;
  for (const MutatedCase& c : three_axes()) {
    Mutants mutants(c, 1400);
    const std::vector<StepProgram>& good = mutants.good();
    REQUIRE(check_programs(programs_of(good)) == std::vector<std::string>{});
    // Rank 1 is in the first stage, rank 6 in the last.
    for (const size_t rank : {size_t{1}, size_t{6}})
      for (size_t at = 0; at < good[rank].program.instrs.size(); ++at) {
        if (!good[rank].program.instrs[at].is_transfer()) continue;
        const auto [other, there] = other_end(good, rank, at);
        for (const TransferBreak& broken : transfer_breaks(c.step_case))
          for (const bool both : {false, true}) {
            if (++turn % 7 != 0) continue;  // a sample: each kind occurs in some case
            std::vector<StepProgram> steps = good;
            if (!broken.apply(steps[rank].program, at)) continue;
            if (both && !broken.apply(steps[other].program, there)) continue;
            INFO(c.name << ": " << instr_label(good[rank].program.instrs[at]) << " of rank " << rank
                        << " " << broken.name << (both ? " at both ends" : ""));
            verdicts.judge(broken, mutants, steps, both);
          }
      }
  }
  INFO(verdicts.refused << " refused, " << verdicts.harmless << " harmless");
  for (const TransferBreak& broken : transfer_breaks(three_axes().front().step_case)) {
    INFO(broken.name << " is refused nowhere");
    CHECK(verdicts.refused_by_name[broken.name] > 0);
  }
  CHECK(verdicts.refused > 300);
  CHECK(verdicts.harmless > 0);
}

TEST_CASE("a moved sum of the loss or of a tied gradient is refused, or no rank waits for it") {
  size_t refused = 0;
  size_t harmless = 0;
  for (const MutatedCase& c : three_axes()) {
    Mutants mutants(c, 1500);
    const std::vector<StepProgram>& good = mutants.good();
    const size_t rank = c.step_case.options.state.ties_first_and_last_stage ? 6 : 1;
    const Program& program = good[rank].program;
    size_t turn = 0;
    for (size_t at = 0; at < program.instrs.size(); ++at) {
      const Instr& sum = program.instrs[at];
      if (sum.kind != InstrKind::kAllReduce || sum.layer >= 0) continue;
      for (size_t to = 0; to < program.instrs.size(); ++to) {
        if (!program.instrs[to].is_transfer() || ++turn % sweep_stride(3) != 0) continue;
        std::vector<StepProgram> steps = good;
        Program& mutant = steps[rank].program;
        mutant =
            testing::with_instruction_moved(std::move(mutant), at, to, c.step_case.options.overlap);
        INFO(c.name << ": " << instr_label(sum) << " of rank " << rank << " at " << at
                    << " moved to " << to);
        const std::vector<std::string> faults = check_programs(programs_of(steps));
        if (!faults.empty()) {
          ++refused;
          INFO(faults.front());
          CHECK(names_place_and_reason(faults.front()));
        } else if (!mutants.compute_other_results(steps)) {
          ++harmless;
        } else {
          // The sum changed places with an instruction that writes or reads the same bytes, so its
          // result differs although the order of collectives is valid.
          bool crosses = false;
          for (size_t k = std::min(at, to); k <= std::max(at, to); ++k)
            crosses |= k != at && share_written_bytes(program, sum, program.instrs[k]);
          CHECK(crosses);
        }
      }
    }
  }
  INFO(refused << " refused, " << harmless << " harmless");
  CHECK(refused > sweep_rounds(20));
  CHECK(harmless > 0);
}

TEST_CASE(
    "a stage that adds up its parameters where the other adds up a tied matrix's gradient is "
    "refused") {
  std::vector<StepProgram> steps =
      staged_case(PipelineSchedule::k1F1B, 0, true, {.stages = 2}, 2).step_case.steps();
  REQUIRE(check_programs(programs_of(steps)).empty());
  Program& last = steps[1].program;
  const auto sum = std::find_if(last.instrs.begin(), last.instrs.end(), [&](const Instr& instr) {
    return instr.kind == InstrKind::kAllReduce && instr.unit >= 0;
  });
  REQUIRE(sum != last.instrs.end());
  REQUIRE(last.at(sum->writes[0].buffer).category == Category::kGradients);
  const BufferId parameters = find_persistent_buffer(last, PersistentKind::kParameters);
  sum->reads = sum->writes = {{parameters, 0, sum->writes[0].bytes}};
  const std::vector<std::string> faults = check_programs(programs_of(steps));
  CHECK(std::any_of(faults.begin(), faults.end(), [](const std::string& fault) {
    return fault.find(" bytes of parameters as F32 over pipeline") != std::string::npos;
  }));
}

TEST_CASE("each wait of three axes that is left out is refused, or no order is lost") {
  size_t refused = 0;
  size_t harmless = 0;
  size_t turn = 0;
  for (const MutatedCase& c : three_axes()) {
    const std::vector<StepProgram> good = c.step_case.steps();
    for (const size_t rank : {size_t{1}, size_t{6}}) {
      const Program& program = good[rank].program;
      const auto pairs = conflicts(program);
      REQUIRE(unordered_conflicts(program, pairs).empty());
      std::vector<StepProgram> steps = good;
      Program& mutant = steps[rank].program;
      for (size_t i = 0; i < program.instrs.size(); ++i) {
        const std::vector<InstrId>& waits = program.instrs[i].waits;
        for (size_t w = 0; w < waits.size(); ++w) {
          // Most of these waits belong to transfers; the others are sampled more thinly.
          const bool moves =
              program.instrs[i].is_transfer() || program.instr(waits[w]).is_transfer();
          if (++turn % sweep_stride(moves ? 3 : 13) != 0) continue;
          mutant.instrs[i].waits.erase(mutant.instrs[i].waits.begin() +
                                       static_cast<std::ptrdiff_t>(w));
          INFO(c.name << ": " << instr_label(program.instrs[i]) << " of rank " << rank
                      << " without its wait for " << instr_label(program.instr(waits[w])));
          const std::vector<std::string> faults = check_programs(programs_of(steps));
          (faults.empty() ? harmless : refused) += 1;
          if (faults.empty())
            CHECK(unordered_conflicts(mutant, pairs).empty());
          else
            CHECK(names_place_and_reason(faults.front()));
          mutant.instrs[i].waits = waits;
        }
      }
    }
  }
  INFO(refused << " refused, " << harmless << " harmless");
  CHECK(refused > sweep_rounds(100));
  CHECK(harmless > 0);
}

// Blocking sends and receives.

/// Returns the program as it would be with blocking calls, which return only when the other side
/// has arrived: a receive is right before its first reader, and computation and transfers run one
/// after another.
Program with_blocking_transfers(const Program& program) {
  Program out = program;
  std::vector<Instr> order;
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    if (program.instrs[i].kind == InstrKind::kReceive) continue;
    for (size_t r = 0; r < i; ++r) {
      const Instr& receive = program.instrs[r];
      if (receive.kind == InstrKind::kReceive &&
          first_reader(program, moved_buffer(receive), r) == i)
        order.push_back(receive);
    }
    order.push_back(program.instrs[i]);
  }
  out.instrs = std::move(order);
  for (Instr& instr : out.instrs) instr.waits.clear();
  out = assign_arena_offsets(add_waits(std::move(out), true));
  InstrId last = -1;
  for (size_t i = 0; i < out.instrs.size(); ++i) {
    Instr& instr = out.instrs[i];
    if (instr.lane != Lane::kCompute && !instr.is_transfer()) continue;
    if (last >= 0 && out.instr(last).lane != instr.lane) instr.waits.push_back(last);
    last = static_cast<InstrId>(i);
  }
  return out;
}

std::string fault_of_blocking(const StepCase& step_case) {
  std::vector<StepProgram> steps = step_case.steps();
  for (StepProgram& step : steps) step.program = with_blocking_transfers(step.program);
  const std::vector<std::string> faults = check_programs(programs_of(steps));
  std::mt19937_64 random(1600);
  // A run must hang exactly if the checker reports a fault.
  const Outcome outcome = run_steps(step_case, steps, random, {true});
  CHECK(outcome.fault.empty() == faults.empty());
  if (faults.empty()) {
    const Outcome expected = run_steps(step_case, step_case.steps(), random, {true});
    CHECK(difference(outcome, expected) == "");
  }
  return faults.empty() ? "" : faults.front();
}

TEST_CASE("two stages of 1F1B that block in their sends wait for each other to receive") {
  CHECK(fault_of_blocking(
            staged_case(PipelineSchedule::k1F1B, 0, true, {.stages = 2}, 2).step_case) ==
        "rank 1 enters instruction 16 (send layer 0 mb 0) with 256 bytes of d_hidden.1.0 as F32 "
        "over pipeline@1>0 and waits for rank 0, which has not reached instruction 8 (receive "
        "layer 0 mb 0)");
}

TEST_CASE(
    "with sends that block, 1F1B and similar schedules hang before step 1, and GPipe does not") {
  for (const int stages : {2, 4})
    for (const int zero : {1, 3}) {
      const auto fault = [&](PipelineSchedule kind) {
        return fault_of_blocking(
            staged_case(
                kind, zero, true,
                {.shards = stages == 2 ? 2 : 1, .tensor = stages == 2 ? 2 : 1, .stages = stages},
                2 * stages)
                .step_case);
      };
      INFO(stages << " stages, ZeRO " << zero);
      CHECK(fault(PipelineSchedule::kGpipe) == "");
      for (const PipelineSchedule kind : kKinds) {
        const std::string found = fault(kind);
        INFO(static_cast<int>(kind) << ": " << found);
        CHECK(names_place_and_reason(found));
        CHECK(found.find("waits for") != std::string::npos);
      }
    }
}

}  // namespace
}  // namespace ftrun
