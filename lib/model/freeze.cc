#include "model/freeze.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "graph/freeze.h"

namespace ftrun {
namespace {

std::set<ValueId> frozen_parameters(const ModelDescription& model, const Layer& layer) {
  std::set<ValueId> frozen;
  for (const GraphParam& param : layer.params) {
    const auto trains = [&](TensorId id) { return model.tensor(id).trainable; };
    if (std::all_of(param.tensors.begin(), param.tensors.end(), trains)) continue;
    require(std::none_of(param.tensors.begin(), param.tensors.end(), trains),
            "tensors of one matrix are frozen together");
    frozen.insert(param.value);
  }
  return frozen;
}

}  // namespace

ModelDescription freeze(ModelDescription model,
                        const std::function<bool(const TensorInfo&)>& trains) {
  for (TensorInfo& tensor : model.tensors) tensor.trainable = trains(tensor);
  const std::vector<LayerGraph> graphs = std::exchange(model.graphs, {});
  std::map<std::pair<int, std::set<ValueId>>, int> made;
  for (Layer& layer : model.layers) {
    const std::set<ValueId> frozen = frozen_parameters(model, layer);
    const auto [graph, is_new] =
        made.try_emplace({layer.graph, frozen}, static_cast<int>(model.graphs.size()));
    if (is_new)
      model.graphs.push_back(without_gradients(graphs[static_cast<size_t>(layer.graph)], frozen));
    layer.graph = graph->second;
  }
  if (model.rope_graph >= 0) {
    model.graphs.push_back(graphs[static_cast<size_t>(model.rope_graph)]);
    model.rope_graph = static_cast<int>(model.graphs.size()) - 1;
  }
  return model;
}

}  // namespace ftrun
