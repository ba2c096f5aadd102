#include "model/freeze.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "graph/remove_frozen_gradients.h"

namespace ftrun {
namespace {

std::set<ValueId> list_frozen_parameters(const ModelDescription& model, const Layer& layer) {
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

int32_t find_first_trained(const ModelDescription& model) {
  const auto trains = [&](const Layer& layer) {
    return std::any_of(layer.params.begin(), layer.params.end(), [&](const GraphParam& param) {
      return model.tensor(param.tensors.front()).trainable;
    });
  };
  const auto first = std::find_if(model.layers.begin(), model.layers.end(), trains);
  return static_cast<int32_t>(first - model.layers.begin());
}

}  // namespace

ModelDescription freeze(ModelDescription model,
                        const std::function<bool(const TensorInfo&)>& is_trained) {
  for (TensorInfo& tensor : model.tensors) tensor.trainable = is_trained(tensor);
  model.first_trained = find_first_trained(model);
  const std::vector<LayerGraph> graphs = std::exchange(model.graphs, {});
  std::map<std::tuple<int, std::set<ValueId>, bool>, int> frozen_graphs;
  for (size_t l = 0; l < model.layers.size(); ++l) {
    Layer& layer = model.layers[l];
    const std::set<ValueId> frozen = list_frozen_parameters(model, layer);
    const bool needs_input_gradient = static_cast<int32_t>(l) > model.first_trained;
    const auto [graph, is_new] = frozen_graphs.try_emplace(
        {layer.graph, frozen, needs_input_gradient}, static_cast<int>(model.graphs.size()));
    if (is_new)
      model.graphs.push_back(remove_frozen_gradients(graphs[static_cast<size_t>(layer.graph)],
                                                     frozen, needs_input_gradient));
    layer.graph = graph->second;
  }
  if (model.rope_graph >= 0) {
    model.graphs.push_back(graphs[static_cast<size_t>(model.rope_graph)]);
    model.rope_graph = static_cast<int>(model.graphs.size()) - 1;
  }
  return model;
}

}  // namespace ftrun
