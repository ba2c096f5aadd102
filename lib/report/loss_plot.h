#pragma once

#include <string>
#include <vector>

#include "report/step_metrics.h"

namespace ftrun {

struct LossPlotOptions {
  std::string title = "loss by step";
  /// Pixels; the drawing scales with its frame.
  int width = 720;
  int height = 400;
};

/// A self-contained SVG (no script, no font, no link): training loss as a line, validation loss as
/// a dashed line with points, axes, labels and a legend; readable on light and dark pages. Long
/// runs are averaged to at most one point a pixel. Steps whose loss is not finite break the line
/// and are marked on the upper edge.
std::string loss_plot_svg(const std::vector<StepMetrics>& metrics,
                          const LossPlotOptions& options = {});

/// The same of a metrics.jsonl. Error(kBadInput) when it cannot be read.
std::string render_loss_plot_svg(const std::string& metrics_path,
                                 const LossPlotOptions& options = {});

/// A terse table for a terminal, of at most `rows` rows: step, training loss (mean over the steps
/// since the row before), validation loss, tokens/s. The first and the last step are always there;
/// when validations were made, they choose the rows.
std::string loss_table(const std::vector<StepMetrics>& metrics, int rows = 12);

}  // namespace ftrun
