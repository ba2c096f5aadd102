#include <map>

#include "blocks.h"
#include "graph/check_graph.h"
#include "ops/kinds.h"
#include "random_graph.h"
#include "sweep.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

/// Returns, for each value, the number of paths in the forward list from it to the hidden output.
/// This is the value's gradient if every operation passes gradients on unchanged, and serves as the
/// oracle of derive_backward's sums.
std::map<ValueId, double> paths_to_output(const LayerGraph& g) {
  std::map<ValueId, double> paths;
  paths[g.find(ValueRole::kOutput, Port::kHidden)] = 1;
  for (size_t i = g.forward.size(); i-- > 0;) {
    const Op& op = g.forward[i];
    double out = paths[op.out[0]];
    if (op.kind == OpKind::kAddRmsNorm) out = paths[op.out[0]] += paths[op.out[1]];
    const size_t operands = op.kind == OpKind::kAdd || op.kind == OpKind::kAddRmsNorm ? 2 : 1;
    for (size_t k = 0; k < operands; ++k) paths[op.in[k]] += out;
    for (size_t k = operands; k < op.in.size(); ++k) paths[op.in[k]] = out;
    if (op.kind == OpKind::kAddRmsNorm) paths[op.in[2]] = paths[op.out[1]];
  }
  return paths;
}

/// Runs the backward list with gradient kinds that pass gradients on unchanged; returns all
/// gradients.
std::map<ValueId, double> run_counting(const LayerGraph& g) {
  std::map<ValueId, double> grad;
  grad[g.find(ValueRole::kOutputGrad, Port::kHidden)] = 1;
  for (const Op& op : g.backward) {
    if (op.kind == OpKind::kGatedActivation || op.kind == OpKind::kRmsNorm) continue;
    // This is a forward scale that is recomputed.
    if (op.kind == OpKind::kScale && !grad.contains(op.in[0])) continue;
    double value = grad.at(op.in[0]);
    if (op.kind == OpKind::kAdd) value += grad.at(op.in[1]);
    if (op.kind == OpKind::kLinearDgrad && op.in.size() > 2) value += grad.at(op.in[2]);
    if (op.kind == OpKind::kRmsNormDgrad && op.in.size() > 4) value += grad.at(op.in[4]);
    for (const ValueId out : op.out) grad[out] = value;
  }
  return grad;
}

TEST_CASE("gradients of values used many times are summed once per use, in random graphs") {
  std::mt19937_64 random(11);
  for (int round = 0; round < sweep_rounds(300); ++round) {
    const LayerGraph g = random_graph(random, 1 + round % 12);
    const auto paths = paths_to_output(g);
    const auto grads = run_counting(g);
    INFO(list_text(g, g.forward) << "backward\n" << list_text(g, g.backward));
    const ValueId x = g.find(ValueRole::kInput, Port::kHidden);
    REQUIRE(grads.at(g.at(x).grad) == paths.at(x));
    for (const ValueId param : g.values_with_role(ValueRole::kParam))
      REQUIRE(grads.at(g.at(param).grad) == paths.at(param));
  }
}

TEST_CASE(
    "backward of random graphs reads only what is given, saved or computed by backward itself") {
  std::mt19937_64 random(12);
  for (int round = 0; round < sweep_rounds(200); ++round) {
    const LayerGraph g = random_graph(random, 1 + round % 12);
    REQUIRE(bug_text([&] { check_graph(g); }) == "nothing");
    LayerGraph deferred = g;
    deferred.backward = g.input_grad;
    deferred.backward.insert(deferred.backward.end(), g.weight_grad.begin(), g.weight_grad.end());
    REQUIRE(bug_text([&] { check_graph(deferred); }) == "nothing");
  }
}

TEST_CASE("every saved value of a random graph is read by its backward") {
  std::mt19937_64 random(13);
  for (int round = 0; round < sweep_rounds(200); ++round) {
    const LayerGraph g = random_graph(random, 1 + round % 12);
    for (const ValueId id : g.values_with_role(ValueRole::kSaved)) {
      bool read = false;
      for (const Op& op : g.backward)
        for (const ValueId in : op.in) read = read || in == id;
      INFO(g.at(id).name);
      REQUIRE(read);
    }
  }
}

}  // namespace
}  // namespace ftrun
