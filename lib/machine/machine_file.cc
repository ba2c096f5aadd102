#include "machine/machine_file.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/precision_name.h"
#include "base/text.h"
#include "config/config_node.h"
#include "config/field_value.h"
#include "config/write.h"
#include "config/yaml_reader.h"
#include "machine/quantity.h"
#include "machine/shipped_files.h"

namespace ftrun {
namespace {

constexpr DType kDtypes[] = {DType::kF32, DType::kBF16, DType::kF16};

/// MachineSection is a map of a machine file. It records which keys are read;
/// report_unknown_keys() reports the others.
class MachineSection {
 public:
  MachineSection(const ConfigNode& node, std::string name, Problems& problems)
      : node_(node), name_(std::move(name)), problems_(problems) {
    if (!node.is_map()) report_problem(node.at, cat(name_, ": expected a section"), "");
  }
  MachineSection(const MachineSection&) = delete;
  MachineSection& operator=(const MachineSection&) = delete;

  /// Reports the keys that were not read. Every reader of a section calls it last.
  void report_unknown_keys() {
    std::vector<std::string> known(known_keys_.begin(), known_keys_.end());
    for (const ConfigEntry& entry : node_.entries)
      if (!known_keys_.contains(entry.key))
        report_problem(entry.at,
                       cat(key_name(entry.key), ": unknown key",
                           did_you_mean(closest_match(entry.key, known))),
                       cat("use one of the keys ", join(known, ", ")));
  }
  /// Accepts a key that only people read.
  void accept_key(const std::string& key) { known_keys_.insert(key); }

  const ConfigNode* find(const std::string& key) {
    known_keys_.insert(key);
    return node_.find(key);
  }
  /// Reads a quantity; 0 where the key is absent, which is a problem if it is `required`.
  double read_quantity(const std::string& key, QuantityUnit unit, bool required = false) {
    const ConfigNode* const value = find(key);
    if (value == nullptr) {
      if (required) report_problem(node_.at, cat(key_name(key), " is missing"), "");
      return 0;
    }
    return parse_quantity_at(*value, value->text, unit);
  }
  double parse_quantity_at(const ConfigNode& node, const std::string& text, QuantityUnit unit) {
    std::string why;
    const auto value = parse_quantity(text, unit, why);
    if (!value) report_problem(node.at, why, "");
    return value.value_or(0);
  }
  /// Reads a whole number above 0.
  int read_count(const std::string& key, int default_value) {
    const ConfigNode* const value = find(key);
    if (value == nullptr) return default_value;
    if (value->kind == ConfigNodeKind::kInt && value->integer > 0 && value->integer <= (1 << 20))
      return static_cast<int>(value->integer);
    report_problem(
        value->at,
        cat(key_name(key), ": expected a whole number above 0, not ", value_text(*value)), "");
    return default_value;
  }
  /// Reads a number above 0.
  double read_factor(const std::string& key, double default_value) {
    const ConfigNode* const value = find(key);
    return value == nullptr ? default_value : check_factor(key, *value);
  }
  double check_factor(const std::string& key, const ConfigNode& value) {
    if (value.kind == ConfigNodeKind::kInt || value.kind == ConfigNodeKind::kFloat)
      if (value.number >= 1e-6 && value.number <= 1e6) return value.number;
    report_problem(
        value.at,
        cat(key_name(key), ": expected a number from 1e-6 to 1e6, not ", value_text(value)), "");
    return 1;
  }
  /// Reads true or false; false where the key is absent.
  bool read_flag(const std::string& key) {
    const ConfigNode* const value = find(key);
    if (value == nullptr) return false;
    if (value->kind != ConfigNodeKind::kBool)
      report_problem(value->at,
                     cat(key_name(key), ": expected true or false, not ", value_text(*value)), "");
    return value->boolean;
  }
  std::string read_text(const std::string& key, const std::string& default_value = "") {
    const ConfigNode* const value = find(key);
    return value == nullptr ? default_value : value->text;
  }
  /// Lists the entries of a map whose keys the author of the file chooses.
  std::vector<const ConfigEntry*> read_entries(const std::string& key) {
    std::vector<const ConfigEntry*> list;
    const ConfigNode* const value = find(key);
    if (value == nullptr) return list;
    if (!value->is_map()) report_problem(value->at, cat(key_name(key), ": expected a section"), "");
    for (const ConfigEntry& entry : value->entries) list.push_back(&entry);
    return list;
  }
  void report_problem(const Position& at, std::string message, std::string remedy) {
    problems_.error(at, std::move(message), std::move(remedy));
  }
  std::string key_name(const std::string& key) const { return join_key(name_, key); }
  Problems& problems() { return problems_; }

 private:
  const ConfigNode& node_;
  std::string name_;
  Problems& problems_;
  std::set<std::string> known_keys_;
};

/// Reads a curve such as {100 us: 1.2, 1 ms: 1.05}: `y` reads a value.
Curve read_curve(MachineSection& section, const ConfigEntry& entry, QuantityUnit unit,
                 const std::function<double(const ConfigNode&)>& y) {
  std::vector<std::pair<double, double>> points;
  for (const ConfigEntry& point : entry.value.entries) {
    const double x = section.parse_quantity_at(point.value, point.key, unit),
                 value = y(point.value);
    if (x <= 0 || value <= 0) return {};
    if (!points.empty() && points.back().first >= x) {
      section.report_problem(point.at,
                             cat(entry.key, ": expected points in ascending order, but ", point.key,
                                 " is not larger than the one before it"),
                             "");
      return {};
    }
    points.emplace_back(x, value);
  }
  if (points.empty())
    section.report_problem(entry.at, cat(entry.key, ": expected points, such as {100 us: 1.2}"),
                           "");
  return Curve(std::move(points));
}

Rates read_rates_entry(const ConfigNode& node, Problems& problems) {
  MachineSection section(node, "rates", problems);
  Rates rates;
  rates.ranks = section.read_count("ranks", 1);
  rates.threads = section.read_count("threads", 1);
  rates.memory_bandwidth = section.read_quantity("memory", QuantityUnit::kByteRate, true);
  for (const ConfigEntry* entry : section.read_entries("products")) {
    const auto dtype = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                    [&](DType d) { return precision_name(d) == entry->key; });
    if (dtype == std::end(kDtypes))
      section.report_problem(
          entry->at, cat("rates.products.", entry->key, ": expected fp32, bf16 or fp16"), "");
    else
      rates.matmul_flop_rates[*dtype] =
          section.parse_quantity_at(entry->value, entry->value.text, QuantityUnit::kFlopRate);
  }
  if (rates.matmul_flop_rates.empty())
    section.report_problem(node.at, "rates.products is missing", "");
  rates.default_slowdown = section.read_factor("otherwise", 1);
  for (const ConfigEntry* entry : section.read_entries("slowdown")) {
    const Curve curve = read_curve(
        section, *entry, QuantityUnit::kSeconds,
        [&](const ConfigNode& value) { return section.check_factor("slowdown", value); });
    if (!curve.empty()) rates.slowdowns[entry->key] = curve;
  }
  section.report_unknown_keys();
  return rates;
}

Link read_link(MachineSection& links, const std::string& key, QuantityUnit unit) {
  const ConfigNode* const node = links.find(key);
  if (node == nullptr) return {};
  MachineSection section(*node, cat("links.", key), links.problems());
  const Link link{section.read_quantity("latency", QuantityUnit::kSeconds, true),
                  section.read_quantity("bandwidth", unit, true)};
  section.report_unknown_keys();
  return link;
}

void read_links(MachineSection& top, Machine& machine) {
  const ConfigNode* const node = top.find("links");
  if (node == nullptr) return;
  MachineSection links(*node, "links", top.problems());
  machine.intra_node_link = read_link(links, "node", QuantityUnit::kByteRate);
  machine.inter_node_link = read_link(links, "cluster", QuantityUnit::kNetworkRate);
  machine.host_link = read_link(links, "host", QuantityUnit::kByteRate);
  links.report_unknown_keys();
}

void read_rates(MachineSection& top, const ConfigNode& root, Machine& machine) {
  const ConfigNode* const rates = top.find("rates");
  if (rates == nullptr || rates->kind != ConfigNodeKind::kList || rates->items.empty())
    return top.report_problem(rates == nullptr ? root.at : rates->at, "rates: expected a list", "");
  for (const ConfigNode& item : rates->items)
    machine.rates.push_back(read_rates_entry(item, top.problems()));
  for (size_t i = 1; i < machine.rates.size(); ++i)
    if (machine.rates[i - 1].ranks >= machine.rates[i].ranks)
      top.report_problem(rates->items[i].at, "rates: expected entries in ascending order of ranks",
                         "");
}

Machine read_machine(const ConfigNode& root, Problems& problems) {
  Machine machine;
  MachineSection top(root, "", problems);
  machine.name = top.read_text("machine");
  if (machine.name.empty()) top.report_problem(root.at, "machine, its name, is missing", "");
  const std::string device = top.read_text("device", "cpu");
  // Older files say processor.
  if (device != "cpu" && device != "processor" && device != "gpu")
    top.report_problem(top.find("device")->at, cat("device: expected cpu or gpu, not ", device),
                       "");
  machine.has_gpus = device == "gpu";
  machine.devices = top.read_count("devices", 1);
  machine.memory_capacity = top.read_quantity("memory", QuantityUnit::kBytes);
  read_rates(top, root, machine);
  read_links(top, machine);
  for (const ConfigEntry* entry : top.read_entries("exchange")) {
    const Curve curve = read_curve(top, *entry, QuantityUnit::kBytes, [&](const ConfigNode& value) {
      return top.parse_quantity_at(value, value.text, QuantityUnit::kSeconds);
    });
    if (!curve.empty()) machine.collectives[entry->key] = curve;
  }
  if (const ConfigNode* const disk = top.find("disk")) {
    MachineSection section(*disk, "disk", problems);
    machine.disk_read_bandwidth = section.read_quantity("read", QuantityUnit::kByteRate, true);
    machine.disk_write_bandwidth = section.read_quantity("write", QuantityUnit::kByteRate, true);
    section.report_unknown_keys();
  }
  machine.min_op_seconds = top.read_quantity("launch", QuantityUnit::kSeconds);
  machine.host_memory_bandwidth = top.read_quantity("host_memory", QuantityUnit::kByteRate);
  machine.host_memory_capacity = top.read_quantity("host_memory_capacity", QuantityUnit::kBytes);
  if (!machine.has_gpus && machine.host_memory_capacity > 0)
    top.report_problem(top.find("host_memory_capacity")->at,
                       "host_memory_capacity is for machines with GPUs; this one has none",
                       "give memory instead, the main memory for each core");
  if (const ConfigNode* const price = top.find("price")) {
    std::string why;
    const std::optional<DevicePrice> found = parse_price(price->text, why);
    if (found && found->currency.empty())
      top.report_problem(price->at, cat("\"", price->text, "\" has no unit, such as USD/h"), "");
    else if (!found)
      top.report_problem(price->at, why, "");
    machine.price = found.value_or(DevicePrice());
  }
  machine.cpu_model = top.read_text("processor");
  machine.measured_on = top.read_text("measured");
  top.accept_key("sources");  // only people read it
  top.report_unknown_keys();
  return machine;
}

SoftwareStack read_stack(const ConfigNode& root, Problems& problems) {
  SoftwareStack stack;
  MachineSection top(root, "", problems);
  stack.name = top.read_text("stack");
  if (stack.name.empty()) top.report_problem(root.at, "stack, its name, is missing", "");
  for (const EfficiencyField& efficiency : kStackEfficiencies)
    stack.*efficiency.value = top.read_factor(efficiency.key, 1);
  stack.recomputes_whole_layers = top.read_flag("recomputes_whole_layers");
  top.accept_key("sources");  // only people read it
  top.report_unknown_keys();
  return stack;
}

/// Parses a file's text with `read`. Throws Error(kUsage) with all problems and the remedy.
template <class Read>
auto parse_or_throw(const std::string& path, const std::string& text, const Read& read,
                    const char* remedy) {
  Problems problems;
  const ConfigNode root = read_yaml(path, text, problems);
  if (!has_errors(problems.all())) {
    auto found = read(root, problems);
    if (!has_errors(problems.all())) return found;
  }
  std::vector<std::string> lines;
  for (const Problem& problem : problems.sorted()) lines.push_back(to_text(problem));
  throw Error(ExitCode::kUsage, join(lines, "\n"), remedy);
}

std::string curve_text(const Curve& curve, QuantityUnit unit,
                       const std::function<std::string(double)>& y) {
  std::vector<std::string> points;
  for (const auto& [x, value] : curve.points())
    points.push_back(cat(quantity_text(x, unit), ": ", y(value)));
  return cat("{", join(points, ", "), "}");
}

std::string rates_text(const Rates& rates) {
  std::vector<std::string> matmul_rates;
  for (const auto& [dtype, rate] : rates.matmul_flop_rates)
    matmul_rates.push_back(
        cat(precision_name(dtype), ": ", quantity_text(rate, QuantityUnit::kFlopRate)));
  std::string text =
      cat("  - ranks: ", rates.ranks, "\n    threads: ", rates.threads,
          "\n    memory: ", quantity_text(rates.memory_bandwidth, QuantityUnit::kByteRate),
          "\n    products: {", join(matmul_rates, ", "),
          "}\n    otherwise: ", format_number("%.5g", rates.default_slowdown), "\n");
  if (!rates.slowdowns.empty()) text += "    slowdown:\n";
  for (const auto& [kind, curve] : rates.slowdowns)
    text += cat("      ", kind, ": ",
                curve_text(curve, QuantityUnit::kSeconds,
                           [](double factor) { return format_number("%.5g", factor); }),
                "\n");
  return text;
}

std::string link_text(const char* name, const Link& link) {
  if (link.bandwidth == 0) return "";
  return cat("  ", name,
             ": {latency: ", quantity_text(link.latency_seconds, QuantityUnit::kSeconds),
             ", bandwidth: ", quantity_text(link.bandwidth, QuantityUnit::kByteRate), "}\n");
}

/// Returns the text of the file `name`, or of the shipped file with that name. `what` is "machine"
/// or "stack".
std::string read_named(const std::string& name, std::string_view what,
                       std::span<const ShippedFile> shipped) {
  std::error_code none;
  const bool may_be_name = name.find_first_of("/.") == std::string::npos;
  if (!may_be_name || std::filesystem::exists(name, none)) return read_file(name);
  std::vector<std::string> names;
  for (const ShippedFile& file : shipped) {
    if (file.name == name) return std::string(file.text);
    names.emplace_back(file.name);
  }
  throw Error(ExitCode::kUsage,
              cat("\"", name, "\" is neither a file nor a ", what, " that ftrun knows",
                  did_you_mean(closest_match(name, names))),
              cat("name a file, or one of ", join(names, ", ")));
}

}  // namespace

Machine parse_machine(const std::string& path, const std::string& text) {
  return parse_or_throw(path, text, read_machine,
                        "write such a file with ftrun bench machine; docs/plan.md has its keys");
}

Machine read_machine_file(const std::string& path) {
  return parse_machine(path, read_named(path, "machine", shipped_machines()));
}

SoftwareStack parse_stack(const std::string& path, const std::string& text) {
  return parse_or_throw(path, text, read_stack, "see docs/plan.md for the keys of such a file");
}

SoftwareStack read_stack_file(const std::string& path) {
  return parse_stack(path, read_named(path, "stack", shipped_stacks()));
}

std::string own_machine_path() {
  const auto variable = [](const char* name) -> std::string {
    const char* const value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty())
    return cache + "/ftrun/machine.yaml";
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/ftrun/machine.yaml";
}

std::optional<Machine> read_own_machine(const std::string& path) {
  std::error_code none;
  if (path.empty() || !std::filesystem::exists(path, none)) return std::nullopt;
  return read_machine_file(path);
}

std::string machine_yaml(const Machine& machine) {
  std::string text =
      cat("machine: ", yaml_text(machine.name), "\ndevice: ", machine.has_gpus ? "gpu" : "cpu",
          "\ndevices: ", machine.devices, "\n");
  if (!machine.cpu_model.empty()) text += cat("processor: ", yaml_text(machine.cpu_model), "\n");
  if (!machine.measured_on.empty()) text += cat("measured: ", yaml_text(machine.measured_on), "\n");
  if (machine.memory_capacity > 0)
    text += cat("memory: ", quantity_text(machine.memory_capacity, QuantityUnit::kBytes), "\n");
  text += "rates:\n";
  for (const Rates& rates : machine.rates) text += rates_text(rates);
  const std::string links = link_text("node", machine.intra_node_link) +
                            link_text("cluster", machine.inter_node_link) +
                            link_text("host", machine.host_link);
  if (!links.empty()) text += cat("links:\n", links);
  if (!machine.collectives.empty()) text += "exchange:\n";
  for (const auto& [kind, curve] : machine.collectives)
    text += cat(
        "  ", kind, ": ",
        curve_text(curve, QuantityUnit::kBytes,
                   [](double seconds) { return quantity_text(seconds, QuantityUnit::kSeconds); }),
        "\n");
  if (machine.disk_read_bandwidth > 0)
    text += cat(
        "disk: {read: ", quantity_text(machine.disk_read_bandwidth, QuantityUnit::kByteRate),
        ", write: ", quantity_text(machine.disk_write_bandwidth, QuantityUnit::kByteRate), "}\n");
  if (machine.host_memory_bandwidth > 0)
    text +=
        cat("host_memory: ", quantity_text(machine.host_memory_bandwidth, QuantityUnit::kByteRate),
            "\n");
  if (machine.host_memory_capacity > 0)
    text += cat("host_memory_capacity: ",
                quantity_text(machine.host_memory_capacity, QuantityUnit::kBytes), "\n");
  if (machine.price.per_hour > 0) text += cat("price: ", price_text(machine.price), "\n");
  if (machine.min_op_seconds > 0)
    text += cat("launch: ", quantity_text(machine.min_op_seconds, QuantityUnit::kSeconds), "\n");
  return text;
}

}  // namespace ftrun
