#include <cmath>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "graph/cost.h"
#include "graph/layer_graph.h"
#include "machine/machine_file.h"
#include "machine/op_time.h"
#include "machine/quantity.h"
#include "machine/shipped_files.h"
#include "model/families.h"
#include "source_paths.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE("seconds, bytes and rates are parsed with their units, and bits differ from bytes") {
  std::string why;
  const std::pair<const char*, double> times[] = {
      {"2 s", 2}, {"1.5 ms", 1.5e-3}, {"3us", 3e-6}, {"40 ns", 4e-8}};
  for (const auto& [text, value] : times)
    CHECK(parse_quantity(text, QuantityUnit::kSeconds, why) == value);
  CHECK(parse_quantity("80 GB", QuantityUnit::kBytes, why) == 80e9);
  CHECK(parse_quantity("80 GiB", QuantityUnit::kBytes, why) == 80.0 * (1 << 30));
  CHECK(parse_quantity("3.35 TB/s", QuantityUnit::kByteRate, why) == 3.35e12);
  CHECK(parse_quantity("400 Gb/s", QuantityUnit::kNetworkRate, why) == 50e9);
  CHECK(parse_quantity("50 GB/s", QuantityUnit::kNetworkRate, why) == 50e9);
  CHECK(parse_quantity("989 TFLOP/s", QuantityUnit::kFlopRate, why) == 989e12);
  for (const char* text : {"", "x", "-1 s", "0 s", "1", "1 GB", "1e999 s", "nan s", "inf s",
                           "0x10 s", "1,5 s", "+1 s", "1 s s"}) {
    INFO(text);
    CHECK(parse_quantity(text, QuantityUnit::kSeconds, why) == std::nullopt);
  }
  CHECK(parse_quantity("400 Gb/s", QuantityUnit::kByteRate, why) == std::nullopt);
  CHECK(why == "\"400 Gb/s\" counts bits; this rate is in bytes: 8 Gb/s are 1 GB/s");
  CHECK(parse_quantity("5", QuantityUnit::kSeconds, why) == std::nullopt);
  CHECK(why == "\"5\" has no unit; it is one of s, ms, us, ns");
}

TEST_CASE("quantities are printed in the unit that leaves a number of at least 1") {
  CHECK(quantity_text(1.5e-3, QuantityUnit::kSeconds) == "1.5 ms");
  CHECK(quantity_text(2e-12, QuantityUnit::kSeconds) == "0.002 ns");
  CHECK(quantity_text(3.35e12, QuantityUnit::kByteRate) == "3.35 TB/s");
  CHECK(quantity_text(989e12, QuantityUnit::kFlopRate) == "989 TFLOP/s");
  for (const double value : {1.0, 0.999e3, 1e3, 1.2345e7, 9.9e11}) {
    std::string why;
    CHECK(parse_quantity(quantity_text(value, QuantityUnit::kBytes), QuantityUnit::kBytes, why) ==
          value);
  }
}

TEST_CASE(
    "a curve passes through its points, is linear in their logarithms between them and constant "
    "beyond") {
  const Curve curve({{1, 10}, {100, 1000}, {10000, 10}});
  CHECK(curve.at(0.1) == 10);
  CHECK(curve.at(1) == 10);
  CHECK(curve.at(10) == Approx(100));
  CHECK(curve.at(100) == Approx(1000));
  CHECK(curve.at(1000) == Approx(100));
  CHECK(curve.at(1e6) == 10);
  CHECK_THROWS(Curve({{1, 1}, {1, 2}}));
  CHECK_THROWS(Curve({{0, 1}}));
}

constexpr const char* kFile = R"(machine: two cores
device: cpu
devices: 2
memory: 16 GiB
sources: {rates: measured}
rates:
  - ranks: 1
    threads: 2
    memory: 20 GB/s
    products: {fp32: 100 GFLOP/s, bf16: 80 GFLOP/s}
    otherwise: 1.5
    slowdown:
      linear fp32: {10 us: 2, 1 ms: 1.1}
  - ranks: 2
    threads: 1
    memory: 12 GB/s
    products: {fp32: 50 GFLOP/s}
links:
  node: {latency: 20 us, bandwidth: 5 GB/s}
  cluster: {latency: 50 us, bandwidth: 8 Gb/s}
exchange:
  all_reduce 2: {64 KB: 100 us, 64 MB: 20 ms}
disk: {read: 2 GB/s, write: 1 GB/s}
launch: 4 us
)";

TEST_CASE("a machine that is read from a file, written and read again is the same machine") {
  const Machine machine = parse_machine("m.yaml", kFile);
  CHECK(machine.name == "two cores");
  CHECK_FALSE(machine.has_gpus);
  CHECK(machine.memory_capacity == 16.0 * (1 << 30));
  REQUIRE(machine.rates.size() == 2);
  CHECK(machine.rates[0].matmul_flop_rates.at(DType::kBF16) == 80e9);
  CHECK(machine.rates[0].default_slowdown == 1.5);
  CHECK(machine.rates[1].default_slowdown == 1);
  CHECK(machine.inter_node_link.latency_seconds == Approx(5e-5));
  CHECK(machine.inter_node_link.bandwidth == Approx(1e9));
  CHECK(machine.min_op_seconds == 4e-6);
  CHECK(&machine.rates_of(1) == &machine.rates[0]);
  CHECK(&machine.rates_of(2) == &machine.rates[1]);
  CHECK(&machine.rates_of(8) == &machine.rates[1]);
  std::string older = kFile;
  older.replace(older.find("device: cpu"), std::string("device: cpu").size(), "device: processor");
  CHECK(parse_machine("m.yaml", older) == machine);
  Machine again = parse_machine("again.yaml", machine_yaml(machine));
  CHECK(again.memory_capacity ==
        Approx(machine.memory_capacity).epsilon(1e-4));  // the file has five digits
  again.memory_capacity = machine.memory_capacity;
  CHECK(again == machine);
}

TEST_CASE(
    "the main memory of a machine with GPUs and a device's price are read, and errors in them "
    "located") {
  const std::string gpus =
      "machine: m\ndevice: gpu\nrates:\n  - memory: 1 TB/s\n    products: "
      "{bf16: 1 TFLOP/s}\n";
  const Machine machine =
      parse_machine("m.yaml", gpus + "host_memory_capacity: 2 TB\nprice: 2.5 USD/h\n");
  CHECK(machine.host_memory_capacity == 2e12);
  CHECK(machine.price == DevicePrice{2.5, "USD"});
  CHECK(parse_machine("again.yaml", machine_yaml(machine)) == machine);
  const std::pair<const char*, const char*> wrong[] = {
      {"price: 2.5", "\"2.5\" has no unit, such as USD/h"},
      {"price: 2.5 USD", "the unit is money an hour"},
      {"price: -1 USD/h", "is not a price of a device"},
      {"price: USD/h", "is not a price of a device"},
      {"price: 2.5 dollars/h", "the unit is money an hour"},
      {"host_memory_capacity: 2 TB/s", "the unit is one of"},
      {"host_memory_capacity: 2", "has no unit"}};
  for (const auto& [line, why] : wrong) {
    INFO(line);
    CHECK_THROWS_WITH(parse_machine("m.yaml", gpus + line + "\n"), Catch::Contains(why));
  }
  CHECK_THROWS_WITH(parse_machine("m.yaml", std::string(kFile) + "host_memory_capacity: 2 TB\n"),
                    Catch::Contains("host_memory_capacity is for machines with GPUs"));
  std::string reason;
  CHECK(parse_price("2.5", reason) == DevicePrice{2.5, ""});
  for (const char* text : {"0x10", "inf", "nan USD/h", "2,5"}) {
    INFO(text);
    CHECK(parse_price(text, reason) == std::nullopt);
  }
  CHECK(money_text(31.25, {2.5, "USD"}) == "31.25 USD");
  CHECK(money_text(1234.5, {2.5, ""}) == "1234");
}

TEST_CASE("names of machines and CPUs with any characters are read back as they were written") {
  Machine machine = parse_machine("m.yaml", kFile);
  for (const char* name : {"my: box #1", "a #1", "*x", "[x]", "- x", "@x", "'q", "say \"hi\"",
                           "true", "1", "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"}) {
    INFO(name);
    machine.name = machine.cpu_model = name;
    const Machine again = parse_machine("again.yaml", machine_yaml(machine));
    CHECK(again.name == name);
    CHECK(again.cpu_model == name);
  }
}

std::string refusal(const std::string& from, const std::string& to) {
  std::string text = kFile;
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  try {
    parse_machine("m.yaml", text);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    return error.message();
  }
  return "accepted";
}

TEST_CASE("errors of a machine file name their line and column") {
  const std::string rates = "TB/s, GB/s, MB/s, KB/s, B/s, TiB/s, GiB/s, MiB/s, KiB/s";
  CHECK(refusal("20 GB/s", "20 Gb/s") ==
        "m.yaml:9:13: error: \"20 Gb/s\" counts bits; this rate is in bytes: 8 Gb/s are 1 GB/s");
  CHECK(refusal("20 GB/s", "20") ==
        "m.yaml:9:13: error: \"20\" has no unit; it is one of " + rates);
  CHECK(refusal("20 GB/s", "-20 GB/s") ==
        "m.yaml:9:13: error: \"-20 GB/s\" is not a number above 0 with one of the units " + rates);
  CHECK(refusal("    memory: 20 GB/s\n", "") == "m.yaml:7:5: error: rates.memory is missing");
  CHECK(refusal("otherwise: 1.5", "otherwize: 1.5") ==
        "m.yaml:11:5: error: rates.otherwize: unknown key (did you mean \"otherwise\"?)\n"
        "  remedy: use one of the keys memory, otherwise, products, ranks, slowdown, threads");
  CHECK(refusal("otherwise: 1.5", "otherwise: -1") ==
        "m.yaml:11:16: error: rates.otherwise: expected a number from 1e-6 to 1e6, not -1");
  CHECK(refusal("bf16: 80", "bf17: 80") ==
        "m.yaml:10:35: error: rates.products.bf17: expected fp32, bf16 or fp16");
  CHECK(refusal("device: cpu", "device: tpu") ==
        "m.yaml:2:9: error: device: expected cpu or gpu, not tpu");
  CHECK(refusal("devices: 2", "devices: 0") ==
        "m.yaml:3:10: error: devices: expected a whole number above 0, not 0");
  CHECK(refusal("  - ranks: 2", "  - ranks: 1") ==
        "m.yaml:14:5: error: rates: expected entries in ascending order of ranks");
  CHECK(refusal("1 ms: 1.1", "1 us: 1.1").find("in ascending order, but 1 us is not larger") !=
        std::string::npos);
  CHECK(refusal("disk: {read: 2 GB/s, ", "disk: {") == "m.yaml:23:7: error: disk.read is missing");
  CHECK(refusal("launch", "lunch").find("lunch: unknown key (did you mean \"launch\"?)") !=
        std::string::npos);
  CHECK(refusal("rates:\n", "rats:\n").find("rates: expected a list") != std::string::npos);
  CHECK(refusal("devices: 2", "devices: [") != "accepted");
  // All problems are reported at once.
  const std::string two = refusal("20 GB/s\n    products", "20\n    product");
  CHECK(two.find("m.yaml:9:13") != std::string::npos);
  CHECK(two.find("rates.product: unknown key") != std::string::npos);
}

TEST_CASE("the shipped machine files can be read and state the source of their numbers") {
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(testing::source_dir() + "/configs/machines")) {
    const Machine machine = read_machine_file(entry.path());
    INFO(machine.name);
    CHECK(machine.name == entry.path().stem());
    CHECK((machine.intra_node_link.bandwidth > 0 || !machine.collectives.empty()));
    CHECK(read_file(entry.path()).find("sources:") != std::string::npos);
    // The binary contains the same file, and finds it by its name.
    CHECK(read_machine_file(entry.path().stem()) == machine);
    ++files;
  }
  CHECK(files >= 9);
  CHECK(shipped_machines().size() == static_cast<size_t>(files));
  for (const auto& entry :
       std::filesystem::directory_iterator(testing::source_dir() + "/configs/stacks"))
    CHECK(read_stack_file(entry.path().stem()).name == read_stack_file(entry.path()).name);
}

TEST_CASE("an unknown machine name is refused with a list of the known ones") {
  const auto refused = [](const std::string& name) {
    try {
      read_machine_file(name);
    } catch (const Error& error) {
      if (name == "h100-80g") CHECK(error.code() == ExitCode::kUsage);
      return std::string(error.what());
    }
    return std::string("read");
  };
  CHECK(refused("h100-80g")
            .starts_with("\"h100-80g\" is neither a file nor a machine that ftrun knows (did you "
                         "mean \"h100-80gb\"?)\n  remedy: name a file, or one of a100-40gb, "));
  CHECK(refused("folder/h100-80gb").starts_with("folder/h100-80gb: cannot be read"));
  CHECK(refused("h100-80gb.yaml").starts_with("h100-80gb.yaml: cannot be read"));
}

TEST_CASE(
    "a software stack's shares of the peak replace the measured slowdowns of ftrun's kernels") {
  const Machine plain =
      read_machine_file(testing::source_dir() + "/configs/machines/h100-80gb.yaml");
  const SoftwareStack stack =
      parse_stack("s.yaml", "stack: s\nproducts: 0.8\nattention: 0.5\nmemory: 0.4\nnode: 2\n");
  CHECK(stack == SoftwareStack{"s", 0.8, 0.5, 0.4, 2, 1});
  CHECK_FALSE(stack.recomputes_whole_layers);
  CHECK(apply_stack(plain, parse_stack("s.yaml", "stack: s\nrecomputes_whole_layers: true\n"))
            .recomputes_whole_layers);
  CHECK_THROWS_WITH(parse_stack("s.yaml", "stack: s\nrecomputes_whole_layers: 2\n"),
                    Catch::Contains("recomputes_whole_layers: expected true or false, not 2"));
  const Machine machine = apply_stack(plain, stack);
  CHECK(machine.name == "h100-80gb with s");
  const Rates& rates = machine.rates.front();
  // The rate of large work is the stack's share of the peak; small work keeps its factor relative
  // to large work.
  CHECK(seconds_with_slowdown(rates, "linear bf16", 0.01) == Approx(0.01 / 0.8));
  CHECK(seconds_with_slowdown(rates, "linear bf16", 6e-6) == Approx(6e-6 / 0.8 * 3.6 / 1.28));
  CHECK(seconds_with_slowdown(rates, "linear fp16", 6e-6) ==
        seconds_with_slowdown(rates, "linear bf16", 6e-6));
  CHECK(seconds_with_slowdown(rates, "linear_wgrad fp16", 1) == Approx(1 / 0.8));
  CHECK(seconds_with_slowdown(rates, "attention bf16", 1) == Approx(2));
  CHECK(seconds_with_slowdown(rates, "attention_dgrad fp16", 1) == Approx(2));
  for (const char* kind : {"rms_norm bf16", "layer_norm fp16", "activation bf16", "update", "copy"})
    CHECK(seconds_with_slowdown(rates, kind, 1) == Approx(1 / 0.4));
  CHECK(machine.intra_node_link.bandwidth == 2 * plain.intra_node_link.bandwidth);
  CHECK(machine.inter_node_link == plain.inter_node_link);
  CHECK(machine.memory_capacity == plain.memory_capacity);
  CHECK_THROWS_WITH(parse_stack("s.yaml", "stack: s\nproduct: 1\nmemory: x\n"),
                    Catch::Contains("s.yaml:2:1: error: product: unknown key (did you mean "
                                    "\"products\"?)") &&
                        Catch::Contains("s.yaml:3:9: error: memory: expected a number from"));
  CHECK_THROWS_WITH(parse_stack("s.yaml", "products: 1\n"),
                    Catch::Contains("stack, its name, is missing"));
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(testing::source_dir() + "/configs/stacks")) {
    CHECK(read_stack_file(entry.path()).name == entry.path().stem());
    ++files;
  }
  CHECK(files >= 5);
}

TEST_CASE("a collective's time is the measured one, else that of a ring algorithm") {
  const Machine machine = parse_machine("m.yaml", kFile);
  CHECK(collective_seconds(machine, "all_reduce", 64e3, 2, 2) == Approx(100e-6));
  CHECK(collective_seconds(machine, "all_reduce", 128e6, 2, 2) == Approx(40e-3));
  // The ring takes three steps, each with the latency, and moves three quarters of the bytes (twice
  // for an all_reduce).
  const double ring = 3 * 20e-6 + 1e6 * 0.75 / 5e9;
  CHECK(collective_seconds(machine, "all_gather", 1e6, 4, 4) == Approx(ring));
  CHECK(collective_seconds(machine, "reduce_scatter", 1e6, 4, 4) == Approx(ring));
  CHECK(collective_seconds(machine, "all_reduce", 1e6, 4, 4) == Approx(2 * ring));
  CHECK(collective_seconds(machine, "all_reduce", 1e6, 4, 1) ==
        Approx(2 * (3 * 50e-6 + 1e6 * 0.75 / 1e9)));
  // For two ranks on each of two nodes, the ring has one hop between nodes, over the links of both.
  CHECK(collective_seconds(machine, "all_gather", 1e6, 4, 2) ==
        Approx(50e-6 + 2 * 20e-6 + 1e6 * 0.75 / 2e9));
  // Here a node's link is slower than eight links of the cluster together.
  CHECK(link_between_nodes(machine, 8).bandwidth == 5e9);
  CHECK(link_between_nodes(machine, 1).bandwidth == 1e9);
  CHECK(collective_seconds(machine, "send", 1e6, 2, 1) == Approx(50e-6 + 1e6 / 1e9));
  CHECK(collective_seconds(machine, "all_reduce", 1e6, 1, 1) == 0);
  Machine alone = machine;
  alone.intra_node_link = alone.inter_node_link = {};
  CHECK_THROWS_WITH(collective_seconds(alone, "send", 8, 2, 1),
                    Catch::Contains("has no links.cluster"));
  CHECK_THROWS_WITH(collective_seconds(alone, "send", 8, 2, 2),
                    Catch::Contains("has no links.node"));
}

TEST_CASE(
    "an operation's time is that of its passes at peak rates, times the measured slowdown of its "
    "kind") {
  ModelConfig config;
  config.family = "llama";
  config.vocab_rows = 32;
  config.hidden = 16;
  config.feed_forward = 48;
  config.layers = 1;
  config.query_heads = config.kv_heads = 4;
  config.head_size = 4;
  config.windows.assign(1, 0);
  const ModelDescription model = build_model(config, {2, 8}, GraphMode::kTrain);
  const Machine machine = parse_machine("m.yaml", kFile);
  const Rates& rates = machine.rates[0];
  double all = 0;
  for (const LayerGraph& graph : model.graphs)
    for (const Op& op : graph.forward) {
      INFO(op_text(graph, op));
      double ideal = 0;
      for (const OpPass& pass : op_work(graph, op)) {
        const double arithmetic = (pass.flops + 16 * pass.transcendentals) / 100e9;
        ideal += std::max(arithmetic, pass.bytes / 20e9);
      }
      CHECK(ideal_seconds(rates, graph, op) == Approx(ideal));
      const bool is_linear = slowdown_key(graph, op) == "linear fp32";
      const double factor = is_linear ? rates.slowdowns.at("linear fp32").at(ideal) : 1.5;
      const double took = list_seconds(machine, rates, graph, {&op, 1});
      CHECK(took == Approx(std::max(ideal * factor, 4e-6)));
      all += took;
    }
  double lists = 0;
  for (const LayerGraph& graph : model.graphs)
    lists += list_seconds(machine, rates, graph, graph.forward);
  CHECK(lists == Approx(all));
  const ModelDescription half =
      build_model(config, {2, 8}, GraphMode::kTrain, {.compute = DType::kF16});
  CHECK_THROWS_WITH(ideal_seconds(rates, half.graphs[0], half.graphs[0].forward[0]),
                    Catch::Contains("no rate of matrix multiplication in fp16"));
}

}  // namespace
}  // namespace ftrun
