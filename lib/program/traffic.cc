#include "program/traffic.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "base/amount_text.h"
#include "base/collective_kind.h"
#include "base/error.h"
#include "base/text.h"
#include "program/layer_instr.h"
#include "program/state_spec.h"

namespace ftrun {
namespace {

/// Returns whether an instruction's traffic is counted as sent. A kReceive is not, because the
/// sending rank counts the transfer.
bool sends(const Instr& instr) {
  return instr.communicates() && instr.kind != InstrKind::kReceive;
}

/// Returns the number of communicator calls of an instruction: one for each range.
size_t count_calls(const Instr& instr) {
  return std::max(instr.reads.size(), instr.writes.size());
}

/// Returns the bytes that one call sends, counted as in Communicator. The real numbers of rows of a
/// kCountedAllToAll are not known here. Of its counts, each rank sends those for the other ranks.
int64_t sent_bytes_of_call(const Instr& instr, size_t range, int64_t ranks) {
  if (instr.kind == InstrKind::kShift && instr.communication().shift % ranks == 0) return 0;
  // An all-reduce works in place.
  const auto& inputs = instr.kind == InstrKind::kAllReduce ? instr.writes : instr.reads;
  return sent_bytes(collective_kind(instr.kind), inputs[range].bytes, ranks);
}

}  // namespace

Traffic program_traffic(const Program& program) {
  std::map<std::pair<InstrKind, GroupId>, TrafficRow> rows;
  Traffic traffic;
  for (const Instr& instr : program.instrs) {
    if (!sends(instr)) continue;
    const int ranks = program.place_in_group(instr.group()).count;
    TrafficRow& row = rows[{instr.kind, instr.group()}];
    row.kind = instr.kind;
    row.group = instr.group();
    row.axes = program.group(instr.group()).members.label;
    row.ranks = ranks;
    for (size_t i = 0; i < count_calls(instr); ++i) {
      const int64_t bytes = sent_bytes_of_call(instr, i, ranks);
      ++row.calls;
      row.bytes += bytes;
      traffic.bytes += bytes;
    }
  }
  for (const auto& [key, row] : rows) traffic.rows.push_back(row);
  return traffic;
}

DiskTraffic disk_traffic(const Program& program) {
  DiskTraffic traffic;
  const auto on_disk = [&](const BufferRange& range) {
    return program.at(range.buffer).tier == Tier::kDisk;
  };
  for (const Instr& instr : program.instrs) {
    if (instr.kind != InstrKind::kCopy) continue;
    if (on_disk(instr.reads[0])) traffic.bytes_read += instr.reads[0].bytes;
    if (on_disk(instr.writes[0])) traffic.bytes_written += instr.writes[0].bytes;
  }
  return traffic;
}

bool gathers_parameters(const Program& program, const Instr& instr) {
  return instr.kind == InstrKind::kAllGather && instr.unit >= 0 &&
         !program.at(instr.writes[0].buffer).persistent_kind;
}

namespace {

/// TrafficTerms lists the effects that TrafficFormula::sum() takes into account. With none of them,
/// the sum is the textbook theory.
struct TrafficTerms {
  bool padding = false;
  bool small_units = false;
  bool unit_readers = false;
  bool whole_gradients = false;
  bool micro_batches = false;
  bool kept_parameters = false;
  bool replicas = false;
  bool loss_and_norm = false;
  bool layer_collectives = false;
  bool tensor_copies = false;
  bool stage_transfers = false;
  bool scales = false;
  bool frozen = false;
  bool quantized = false;
};

/// TrafficFormula computes the bytes that a training step sends, taking into account only the
/// effects in TrafficTerms.
class TrafficFormula {
 public:
  TrafficFormula(const Program& program, const ModelDescription& model, const Partition& partition,
                 const StepOptions& options)
      : program_(program),
        partition_(partition),
        options_(options),
        state_(options.state),
        sharding_(shard_units(partition, state_)),
        gradient_bytes_(dtype_bytes(state_.communication)),
        compute_bytes_(dtype_bytes(model.dtypes.compute)),
        traffic_(program_traffic(program)),
        groups_(make_group_collection(state_)),
        specs_(make_state_specs(model, partition, state_, groups_, options.micro_batches)) {
    count_readers(model);
    for (const Instr& instr : program.instrs)
      if (gathers_parameters(program, instr)) {
        GatherCounts& times = gathers_[instr.unit];
        ++(instr.group() == groups_.secondary ? times.secondary : times.shards);
      }
  }

  int64_t sum(const TrafficTerms& terms) const {
    int64_t bytes = 0;
    int64_t over_shards = 0;     // bytes, multiplied by the number of shards
    int64_t over_secondary = 0;  // multiplied by the number of secondary shards
    for (const Unit& unit : partition_.units) {
      if (!spec(unit.id).used_by_stage) continue;
      const bool whole = stays_whole(unit.id, terms);
      const int64_t elements = elements_of(unit, terms, whole);
      const bool frozen = terms.frozen && !spec(unit.id).trainable;
      const int64_t reduced =
          frozen ? 0 : elements * gradient_bytes_ * count_reductions(unit.id, terms);
      const bool everywhere = whole || all_reduces_gradient(unit.id, terms);
      if (everywhere) bytes += all_reduce_bytes(reduced);
      if (whole) continue;
      const bool dequantized = unit.quantized && !terms.quantized;
      const int64_t gathered =
          dequantized ? elements * compute_bytes_ : spec(unit.id).formats.compute.bytes(elements);
      const GatherCounts times = frozen && !spec(unit.id).sharded.parameters
                                     ? GatherCounts()
                                     : count_gathers(unit.id, terms);
      over_shards += (gathered * times.shards + (everywhere ? 0 : reduced)) * (shards() - 1);
      over_secondary += gathered * times.secondary * (state_.secondary_shards - 1);
    }
    bytes += over_shards / shards() + over_secondary / state_.secondary_shards;
    if (terms.replicas && shards() > 1)
      bytes += sum_sent_bytes([&](const Instr& instr) { return instr.group() == groups_.replica; });
    if (terms.loss_and_norm) bytes += loss_and_norm_bytes();
    if (terms.scales)
      bytes += sum_sent_bytes(
          [](const Instr& instr) { return instr.communicates() && instr.communication().is_max; });
    if (terms.layer_collectives)
      bytes += sum_sent_bytes(
          [](const Instr& instr) { return instr.layer >= 0 && !instr.is_transfer(); });
    if (terms.tensor_copies)
      bytes += sum_sent_bytes([&](const Instr& instr) {
        return instr.unit >= 0 && program_.group(instr.group()).members.runs_within(kLayerAxes);
      });
    if (terms.stage_transfers)
      bytes += sum_sent_bytes([&](const Instr& instr) {
        return instr.is_transfer() ||
               (groups_.first_and_last_stage != kNoGroup && instr.unit >= 0 &&
                instr.group() == groups_.first_and_last_stage);
      });
    return bytes;
  }

  int64_t program_bytes() const { return traffic_.bytes; }

  /// Counts the parameters of this pipeline stage.
  int64_t parameters() const {
    int64_t elements = 0;
    for (const Unit& unit : partition_.units)
      elements += spec(unit.id).used_by_stage ? unit.numel : 0;
    return elements;
  }

 private:
  /// GatherCounts describes how often a unit's parameters are gathered, over which group.
  struct GatherCounts {
    int64_t shards = 0;
    int64_t secondary = 0;
  };

  int64_t shards() const { return state_place(state_).count; }

  /// Counts how often each unit's parameters are needed in a micro-batch. Consecutive layers of one
  /// pass (forward or backward) that read the same unit count once.
  void count_readers(const ModelDescription& model) {
    const size_t layers = model.layers.size();
    std::set<UnitId> previous_units;
    const auto read_by = [&](size_t layer, const std::vector<Op>& op_list) {
      std::set<UnitId> units = find_units_read(model, partition_, layer, op_list);
      for (const UnitId unit : units)
        if (!previous_units.contains(unit)) ++readers_[unit];
      previous_units = std::move(units);
    };
    const auto stage_has_layer = [&](size_t l) {
      return state_.pipeline.stage_has_layer(state_.pipeline_stage, static_cast<int>(l));
    };
    for (size_t l = 0; l < layers; ++l)
      if (stage_has_layer(l)) read_by(l, model.graph_of(model.layers[l]).forward);
    previous_units.clear();
    for (size_t l = layers; l-- > 0;)
      if (stage_has_layer(l)) read_by(l, model.graph_of(model.layers[l]).backward);
  }

  bool stays_whole(UnitId unit, const TrafficTerms& terms) const {
    if (state_.zero_stage == 0) return true;
    // Replicas all-reduce whole gradients if there is one shard: each replica has the whole state.
    if (shards() == 1) return terms.replicas;
    return !sharding_.is_sharded(unit) && terms.small_units;
  }

  int64_t elements_of(const Unit& unit, const TrafficTerms& terms, bool whole) const {
    if (!terms.padding) return unit.numel;
    if (whole || shards() == 1 || state_.zero_stage == 0) return unit.padded_numel;
    return shard_size(unit, shards()) * shards();
  }

  const StateSpec& spec(UnitId unit) const { return specs_[static_cast<size_t>(unit)]; }

  bool all_reduces_gradient(UnitId unit, const TrafficTerms& terms) const {
    return terms.whole_gradients && state_.zero_stage > 0 && !spec(unit).reduce_scatter;
  }

  int64_t count_reductions(UnitId unit, const TrafficTerms& terms) const {
    return terms.micro_batches && spec(unit).reduces_each_micro_batch ? options_.micro_batches : 1;
  }

  template <typename Count>
  static Count of_unit(const std::map<UnitId, Count>& counts, UnitId unit) {
    const auto found = counts.find(unit);
    return found == counts.end() ? Count() : found->second;
  }

  GatherCounts count_gathers(UnitId unit, const TrafficTerms& terms) const {
    if (state_.zero_stage < 3) return {1, 0};
    if (terms.kept_parameters) return of_unit(gathers_, unit);
    const int64_t all = (terms.unit_readers ? of_unit(readers_, unit) : 2) *
                        (terms.micro_batches ? options_.micro_batches : 1);
    if (state_.secondary_shards == 1) return {all, 0};
    const int64_t first = std::min<int64_t>(all, 1);
    return {first, all - first};
  }

  /// Returns the bytes of an all-reduce over the shards, or over the replicas if there is one
  /// shard. If there are both, the all-reduce over the replicas is counted separately
  /// (TrafficTerms::replicas).
  int64_t all_reduce_bytes(int64_t bytes) const {
    const int64_t ranks = shards() == 1 ? state_.replicas : shards();
    return 2 * bytes * (ranks - 1) / ranks;
  }

  /// Returns the bytes that the instructions selected by `is_counted` send.
  template <typename Counts>
  int64_t sum_sent_bytes(const Counts& is_counted) const {
    int64_t bytes = 0;
    for (const Instr& instr : program_.instrs) {
      if (!sends(instr) || !is_counted(instr)) continue;
      for (size_t i = 0; i < count_calls(instr); ++i)
        bytes += sent_bytes_of_call(instr, i, program_.place_in_group(instr.group()).count);
    }
    return bytes;
  }

  /// Returns the bytes of the all-reduces of loss and gradient norm.
  int64_t loss_and_norm_bytes() const {
    return sum_sent_bytes([&](const Instr& instr) {
      return instr.is_collective() &&
             program_.at(instr.writes[0].buffer).category == Category::kSums;
    });
  }

  const Program& program_;
  const Partition& partition_;
  const StepOptions& options_;
  const StateOptions& state_;
  Sharding sharding_;
  int64_t gradient_bytes_;
  int64_t compute_bytes_;
  Traffic traffic_;
  GroupCollection groups_;
  std::vector<StateSpec> specs_;
  std::map<UnitId, int64_t> readers_;
  std::map<UnitId, GatherCounts> gathers_;
};

/// DeviationCause is a reason for which traffic differs from the textbook formula.
struct DeviationCause {
  const char* text;
  bool TrafficTerms::*applies;
};

constexpr std::array<DeviationCause, 14> kCauses{{
    {"small units, kept whole by every rank", &TrafficTerms::small_units},
    {"padding of units and shards", &TrafficTerms::padding},
    {"units that are read by other than one forward and one backward pass",
     &TrafficTerms::unit_readers},
    {"gradients summed on every rank (reduce_scatter: false)", &TrafficTerms::whole_gradients},
    {"frozen units, which have no gradients and no updates", &TrafficTerms::frozen},
    {"quantized weights (quantization), gathered in quantized form", &TrafficTerms::quantized},
    {"repetition for each micro-batch", &TrafficTerms::micro_batches},
    {"gathered parameters that were kept for their next use", &TrafficTerms::kept_parameters},
    {"replicas of the shards", &TrafficTerms::replicas},
    {"loss and gradient norm", &TrafficTerms::loss_and_norm},
    {"scales of 8-bit states whose blocks ranks share", &TrafficTerms::scales},
    {"values of layers that tensor-parallel ranks share", &TrafficTerms::layer_collectives},
    {"gradients of what tensor-parallel ranks use together", &TrafficTerms::tensor_copies},
    {"values and gradients that go from stage to stage", &TrafficTerms::stage_transfers},
}};

}  // namespace

TrafficTheory compare_traffic_with_theory(const Program& program, const ModelDescription& model,
                                          const Partition& partition, const StepOptions& options) {
  const TrafficFormula formula(program, model, partition, options);
  TrafficTheory theory;
  theory.zero_stage = options.state.zero_stage;
  theory.ranks = state_place(options.state).count;
  if (theory.zero_stage == 3) theory.secondary_shards = options.state.secondary_shards;
  theory.parameters = formula.parameters();
  TrafficTerms terms;
  theory.bytes = formula.sum(terms);
  int64_t explained = theory.bytes;
  const auto add = [&](const char* cause, int64_t bytes) {
    if (bytes != explained) theory.deviations.push_back({cause, bytes - explained});
    explained = bytes;
  };
  for (const DeviationCause& cause : kCauses) {
    terms.*cause.applies = true;
    add(cause.text, formula.sum(terms));
  }
  add("rounding of each call to whole bytes", formula.program_bytes());
  return theory;
}

namespace {

constexpr size_t kCauseWidth = 64;

std::string traffic_line(const std::string& what, int64_t bytes) {
  const std::string number = std::to_string(bytes);
  std::string text = cat("  ", what);
  text.append(text.size() < kCauseWidth ? kCauseWidth - text.size() : 1, ' ');
  text.append(number.size() < 16 ? 16 - number.size() : 0, ' ');
  return cat(text, number, " B\n");
}

/// Returns the text "3 x 2480 elements x 1/2".
std::string formula_text(const TrafficTheory& theory) {
  if (theory.ranks == 1) return cat(theory.parameters, " elements, whole on one rank");
  const bool within_nodes = theory.secondary_shards > 1;
  const int factor = theory.zero_stage == 3 && !within_nodes ? 3 : 2;
  std::string text =
      cat(factor, " x ", theory.parameters, " elements x ", theory.ranks - 1, "/", theory.ranks);
  if (within_nodes)
    text += cat(" + ", theory.parameters, " x ", theory.secondary_shards - 1, "/",
                theory.secondary_shards);
  return text;
}

}  // namespace

std::string planned_traffic_text(const Traffic& traffic) {
  std::string text = "bytes that a rank sends each time the program runs\n";
  for (const TrafficRow& row : traffic.rows)
    text += traffic_line(cat(instr_name(row.kind), " over ", row.ranks, " ranks along ", row.axes,
                             ", ", count_text(row.calls, "call")),
                         row.bytes);
  return text + traffic_line(cat("sum, ", human_bytes(traffic.bytes)), traffic.bytes);
}

std::string planned_traffic_text(const Traffic& traffic, const TrafficTheory& theory) {
  std::string text = planned_traffic_text(traffic);
  text += traffic_line("theory: " + formula_text(theory), theory.bytes);
  for (const TrafficDeviation& deviation : theory.deviations)
    text += traffic_line(deviation.cause, deviation.bytes);
  return text;
}

}  // namespace ftrun
