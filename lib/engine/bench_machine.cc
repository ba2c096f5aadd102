#include "engine/bench_machine.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>

#include "base/amount_text.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/file.h"
#include "base/limit_remedies.h"
#include "base/median.h"
#include "base/round_up.h"
#include "base/text.h"
#include "comm/listen_socket.h"
#include "engine/measure_collectives.h"
#include "graph/cost.h"
#include "graph/op_spec.h"
#include "kernels/kernels.h"
#include "machine/machine_file.h"
#include "machine/op_time.h"
#include "model/families.h"
#include "optimizers/optimizer_config.h"

namespace ftrun {
namespace {

double lower_quartile(std::vector<double> values) {
  const auto quartile = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 4);
  std::nth_element(values.begin(), quartile, values.end());
  return *quartile;
}

bool is_matmul(const Op& op) {
  return op_spec(op.kind).work_class == WorkClass::kMatmul;
}

using Clock = std::chrono::steady_clock;

/// CallTimer samples the time of one call. Each round of a measurement takes some samples of every
/// call, so that a host that is slow for a second affects one round of all calls, not all rounds of
/// one call.
class CallTimer {
 public:
  explicit CallTimer(std::function<void()> body) : body_(std::move(body)) {}

  /// Calls the body for 5 ms, at least once; the first call of a round is not counted.
  void run() {
    body_();
    const auto begin = Clock::now();
    do {
      const auto start = Clock::now();
      body_();
      samples_.push_back(seconds_since(start));
    } while (seconds_since(begin) < 0.005);
  }

  /// Returns the lower quartile of the samples, as other programs can only add time.
  double seconds() const { return lower_quartile(samples_); }

 private:
  std::function<void()> body_;
  std::vector<double> samples_;
};

/// FreeDeleter frees memory by std::free().
struct FreeDeleter {
  void operator()(void* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<void, FreeDeleter>;

AlignedMemory allocate(int64_t bytes) {
  AlignedMemory memory(std::aligned_alloc(64, static_cast<size_t>(round_up(bytes, 64))));
  if (memory == nullptr)
    throw Error(ExitCode::kEnvironment,
                cat("out of memory: the benchmark cannot allocate ", human_bytes(bytes)),
                "close other programs, or give --quick, which measures smaller models");
  return memory;
}

/// GraphBench times the operations of a graph, on numbers between -0.5 and 0.5 and tokens from the
/// whole vocabulary.
class GraphBench {
 public:
  GraphBench(const LayerGraph& graph, int64_t vocabulary) : graph_(graph) {
    for (const Value& value : graph.values) {
      memory_.push_back(allocate(std::max<int64_t>(value.bytes(), 1)));
      fill(value, memory_.back().get(), vocabulary);
      storage_.push_back(memory_.back().get());
    }
    scalars_.token_loss_factor = 1e-3;
  }

  /// Runs both lists once and records the seconds of each operation.
  void run() {
    for (const auto* list : {&graph_.forward, &graph_.backward})
      for (const Op& op : *list) {
        if (is_collective(op.kind)) continue;
        const auto start = Clock::now();
        run_op(graph_, op, storage_, {.accumulate = true, .scalars = &scalars_});
        seconds_[&op].push_back(seconds_since(start));
      }
  }

  /// Runs the first half of the forward operations: the attention of a block, after which the ranks
  /// of a tensor group communicate.
  void run_attention() {
    for (size_t i = 0; i < graph_.forward.size() / 2; ++i)
      if (const Op& op = graph_.forward[i]; !is_collective(op.kind))
        run_op(graph_, op, storage_, {.scalars = &scalars_});
  }

  /// Calls f(operation, seconds) for each timed operation, with the lower quartile of its samples.
  template <class F>
  void for_each(const F& f) const {
    for (const auto& [op, samples] : seconds_) f(*op, lower_quartile(samples));
  }
  const LayerGraph& graph() const { return graph_; }

 private:
  static void fill(const Value& value, void* to, int64_t vocabulary) {
    const int64_t count = element_count(value.dims);
    std::memset(to, 0, static_cast<size_t>(value.bytes()));
    if (value.dtype == DType::kI32) {
      const bool tokens = batch_value_kind(value.port) == BatchValueKind::kVocabulary;
      for (int64_t i = 0; i < count && tokens; ++i)
        static_cast<int32_t*>(to)[i] = static_cast<int32_t>(i * 7919 % vocabulary);
      return;
    }
    if (value.quantized || value.role == ValueRole::kWorkspace) return;
    if (value.dtype != DType::kF32 && value.dtype != DType::kBF16 && value.dtype != DType::kF16)
      return;
    std::vector<float> numbers(static_cast<size_t>(count));
    for (size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = static_cast<float>(i * 37 % 101) * 0.01F - 0.5F;
    convert(numbers.data(), DType::kF32, to, value.dtype, count);
  }

  const LayerGraph& graph_;
  std::vector<AlignedMemory> memory_;
  std::vector<void*> storage_;
  StepScalars scalars_;
  std::map<const Op*, std::vector<double>> seconds_;
};

/// Makes the config of a Llama model with one layer.
ModelConfig make_decoder_config(int64_t hidden, int64_t heads, int64_t kv_heads,
                                int64_t feed_forward, int64_t vocabulary) {
  ModelConfig config;
  config.family = "llama";
  config.vocab_rows = vocabulary;
  config.hidden = hidden;
  config.feed_forward = feed_forward;
  config.layers = 1;
  config.query_heads = heads;
  config.kv_heads = kv_heads;
  config.head_size = hidden / heads;
  config.max_positions = 1 << 20;
  config.windows.assign(1, 0);
  return config;
}

/// Lists the models whose operations are timed: Llama blocks for batches of three sizes and, unless
/// `quick`, a wider one and models with the operations that other families add.
std::vector<std::pair<ModelConfig, BatchShape>> list_sampled_models(bool quick) {
  std::vector<std::pair<ModelConfig, BatchShape>> models{
      {make_decoder_config(128, 4, 2, 384, 1024), {1, 64}},
      {make_decoder_config(576, 9, 3, 1536, 4096), {1, 256}},
      {make_decoder_config(576, 9, 3, 1536, 1024), {4, 256}},
  };
  if (quick) return models;
  models.push_back({make_decoder_config(1024, 16, 8, 2816, 8192), {2, 512}});
  ModelConfig other_features = models[1].first;
  other_features.qkv_bias = other_features.attention_out_bias = other_features.mlp_bias =
      other_features.output_norms = true;
  other_features.qk_norm = QkNorm::kEachHead;
  other_features.residual_scale = 0.5;
  other_features.attention_softcap = other_features.logit_softcap = 30;
  models.push_back({other_features, {1, 256}});
  ModelConfig layer_norm_model = models[1].first;
  layer_norm_model.family = "gpt2";
  layer_norm_model.norm = NormKind::kLayer;
  layer_norm_model.activation = Activation::kGeluTanh;
  layer_norm_model.gated = false;
  layer_norm_model.learned_positions = true;
  layer_norm_model.max_positions = 256;
  layer_norm_model.rope.partial = 0;
  layer_norm_model.kv_heads = layer_norm_model.query_heads;
  layer_norm_model.qkv_bias = layer_norm_model.attention_out_bias = layer_norm_model.mlp_bias =
      true;
  models.push_back({layer_norm_model, {1, 256}});
  return models;
}

/// SlowdownPoints holds the measurements of each kind of work as pairs: the seconds that the work
/// would take at the rates, and the factor by which it took longer.
using SlowdownPoints = std::map<std::string, std::vector<std::pair<double, double>>>;

/// Makes a curve through the geometric means of groups of points whose x are within a factor of 2
/// of the group's first.
Curve curve_through(std::vector<std::pair<double, double>> points) {
  std::sort(points.begin(), points.end());
  std::vector<std::pair<double, double>> joined;
  for (size_t i = 0; i < points.size();) {
    double x = 0, y = 0;
    const size_t first = i;
    for (; i < points.size() && points[i].first < 2 * points[first].first; ++i) {
      x += std::log(points[i].first);
      y += std::log(points[i].second);
    }
    const auto count = static_cast<double>(i - first);
    joined.emplace_back(std::exp(x / count), std::exp(y / count));
  }
  return Curve(std::move(joined));
}

/// FlatBench times the work of a step on flat buffers, at three sizes, and measures the memory
/// rate.
class FlatBench {
 public:
  FlatBench() {
    for (AlignedMemory& buffer : buffers_) {
      buffer = allocate(kElements * 4);
      std::memset(buffer.get(), 0, kElements * 4);
    }
    for (const int64_t elements : {int64_t{1} << 16, int64_t{1} << 20, int64_t{1} << 23})
      add_calls(elements);
  }

  void run() {
    memory_.run();
    for (TimedCall& call : calls_) call.timer.run();
  }

  /// Returns the bytes per second that all threads read and write while they add one large buffer
  /// to another.
  double memory_bandwidth() const { return 12.0 * kElements / memory_.seconds(); }

  void record(const Rates& rates, SlowdownPoints& points) const {
    for (const TimedCall& call : calls_) {
      const double ideal = call.bytes / rates.memory_bandwidth;
      points[call.kind].emplace_back(ideal, call.timer.seconds() / ideal);
    }
  }

 private:
  static constexpr int64_t kElements = 16 << 20;

  struct TimedCall {
    std::string kind;
    /// The bytes that the call reads and writes.
    double bytes;
    CallTimer timer;
  };

  void add_calls(int64_t elements) {
    void* const a = buffers_[0].get();
    void* const b = buffers_[1].get();
    const auto add = [&](const char* kind, double bytes_an_element, std::function<void()> body) {
      calls_.push_back(
          {kind, bytes_an_element * static_cast<double>(elements), CallTimer(std::move(body))});
    };
    FlatUpdate update;
    update.parameters = a;
    update.gradients = b;
    update.states = {buffers_[2].get(), buffers_[3].get()};
    update.count = elements;
    add("update", 28, [=] {
      optimizer_update(update, OptimizerConfig{}, {.learning_rate = 1e-3F, .update = 2});
    });
    add("copy", 6, [=] { convert(a, DType::kF32, b, DType::kBF16, elements); });
    add("accumulate", 12, [=] { add_into(a, DType::kF32, b, DType::kF32, elements); });
    add("clear", 4, [=] { std::memset(a, 0, static_cast<size_t>(elements) * 4); });
    add("gradient_norm", 4, [=] { sum_of_squares(a, DType::kF32, elements); });
  }

  std::array<AlignedMemory, 4> buffers_;
  CallTimer memory_{[this] {
    add_into(buffers_[0].get(), DType::kF32, buffers_[1].get(), DType::kF32, kElements);
  }};
  std::vector<TimedCall> calls_;
};

/// SampledModel is a model for one dtype, and the benches of its graphs.
struct SampledModel {
  ModelDescription model;
  std::vector<std::unique_ptr<GraphBench>> benches;

  bool is_large() const { return model.batch.tokens() > 256; }

  SampledModel(const ModelConfig& config, const BatchShape& batch, DType dtype)
      : model(build_model(config, batch, GraphMode::kTrain, {.compute = dtype})) {
    for (const LayerGraph& graph : model.graphs)
      benches.push_back(std::make_unique<GraphBench>(graph, config.vocab_rows));
  }
};

void record_operations(const SampledModel& sampled, const Rates& rates, SlowdownPoints& points) {
  for (const auto& bench : sampled.benches)
    bench->for_each([&](const Op& op, double seconds) {
      const double ideal = ideal_seconds(rates, bench->graph(), op);
      if (ideal > 0) points[slowdown_key(bench->graph(), op)].emplace_back(ideal, seconds / ideal);
    });
}

/// Returns the floating-point operations per second of the fastest matrix multiplication of the
/// models.
double fastest_matmul_rate(const std::vector<SampledModel>& models) {
  double best = 0;
  for (const SampledModel& sampled : models)
    for (const auto& bench : sampled.benches)
      bench->for_each([&](const Op& op, double seconds) {
        if (is_matmul(op)) best = std::max(best, op_flops(bench->graph(), op) / seconds);
      });
  return best;
}

Rates measure_rates(int ranks, int threads, const BenchRequest& request) {
  set_kernel_threads(threads);
  FlatBench flat;
  std::map<DType, std::vector<SampledModel>> models;
  std::vector<DType> dtypes{DType::kF32, DType::kBF16};
  if (!request.quick) dtypes.push_back(DType::kF16);
  for (const DType dtype : dtypes)
    for (const auto& [config, batch] : list_sampled_models(request.quick))
      models[dtype].emplace_back(config, batch, dtype);
  // A round samples each operation once. Threads that wake up late delay up to a third of the
  // samples by 0.1 ms, so a lower quartile needs many of them. Operations on large batches take
  // milliseconds, so half of the rounds are enough for them.
  for (int round = 0; round < request.rounds; ++round) {
    flat.run();
    for (auto& [dtype, sampled] : models)
      for (SampledModel& model : sampled)
        if (round % 2 == 0 || !model.is_large())
          for (const auto& bench : model.benches) bench->run();
  }
  Rates rates{.ranks = ranks, .threads = threads, .memory_bandwidth = flat.memory_bandwidth()};
  SlowdownPoints points;
  flat.record(rates, points);
  for (const auto& [dtype, sampled] : models) {
    rates.matmul_flop_rates[dtype] = fastest_matmul_rate(sampled);
    for (const SampledModel& model : sampled) record_operations(model, rates, points);
  }
  std::vector<double> all;
  for (auto& [kind, measured] : points) {
    for (const auto& [ideal, factor] : measured) all.push_back(factor);
    rates.slowdowns[kind] = curve_through(std::move(measured));
  }
  rates.default_slowdown = median(std::move(all));
  return rates;
}

/// Computes until the process is killed, to load the cores while another process measures.
[[noreturn]] void keep_busy(int threads) {
  set_kernel_threads(threads);
  const auto [config, batch] = list_sampled_models(true)[1];
  SampledModel sampled(config, batch, DType::kF32);
  for (;;)
    for (const auto& bench : sampled.benches) bench->run();
}

/// ChildProcess is a forked process that runs a function. The destructor kills it.
class ChildProcess {
 public:
  /// Runs `body` in a child process; text() reads its result.
  explicit ChildProcess(const std::function<std::string()>& body) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw Error(ExitCode::kEnvironment,
                  cat("cannot create a pipe for the benchmark process: ", errno_text(errno)),
                  kMoreFiles);
    const pid_t parent = ::getpid();
    id_ = ::fork();
    if (id_ < 0) {
      const std::string why = errno_text(errno);
      throw Error(ExitCode::kEnvironment, cat("cannot start the benchmark process: ", why),
                  more_threads_remedy());
    }
    if (id_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);  // the parent died before prctl()
      run(body, ends[1]);
    }
    ::close(ends[1]);
    from_ = ends[0];
  }
  ~ChildProcess() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);
    ::waitpid(id_, nullptr, 0);
    ::close(from_);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  std::string text() {
    std::string all;
    char part[4096];
    for (;;) {
      const ssize_t got = ::read(from_, part, sizeof part);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      all.append(part, static_cast<size_t>(got));
    }
    const int status = wait_for_end();
    ::close(from_);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
      throw Error(ExitCode::kEnvironment, cat("the benchmark process failed: ", all),
                  "run ftrun bench machine again, with --quick");
    return all;
  }

  /// Throws Error(kEnvironment) if the process has ended by itself.
  void check_running() {
    int status = 0;
    if (::waitpid(id_, &status, WNOHANG) == 0) return;
    id_ = -1;
    ::close(from_);
    throw Error(ExitCode::kEnvironment,
                "a benchmark process that loads the other cores ended unexpectedly",
                "check that it has enough memory, and run the benchmark again");
  }

 private:
  int wait_for_end() {
    int status = 0;
    while (::waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
    id_ = -1;
    return status;
  }

  [[noreturn]] static void run(const std::function<std::string()>& body, int to) {
    std::string text;
    int code = 0;
    try {
      text = body();
    } catch (const std::exception& e) {
      text = e.what();
      code = 1;
    }
    for (size_t done = 0; done < text.size();) {
      const ssize_t wrote = ::write(to, text.data() + done, text.size() - done);
      if (wrote <= 0) break;
      done += static_cast<size_t>(wrote);
    }
    ::_exit(code);
  }

  pid_t id_ = -1;
  int from_ = -1;
};

/// Measures the rates of one rank while `ranks` - 1 other processes also compute.
Rates measure_beside_others(int ranks, int cores, const BenchRequest& request) {
  const int threads = std::max(1, cores / ranks);
  std::vector<std::unique_ptr<ChildProcess>> others;
  for (int other = 1; other < ranks; ++other)
    others.push_back(std::make_unique<ChildProcess>([&]() -> std::string { keep_busy(threads); }));
  ChildProcess measuring([&] {
    Machine machine{.name = "measured"};
    machine.rates.push_back(measure_rates(ranks, threads, request));
    return machine_yaml(machine);
  });
  const Rates rates = parse_machine("the process that measured", measuring.text()).rates.front();
  for (const auto& other : others) other->check_running();
  return rates;
}

/// Measures collectives as one rank of a request, with attention as its computation. Returns the
/// curves as the text of a machine file.
std::string measure_collectives_as(CollectiveRequest request) {
  const auto [config, batch] = list_sampled_models(true)[1];
  const SampledModel sampled(config, batch, DType::kF32);
  GraphBench& layer = *sampled.benches[static_cast<size_t>(sampled.model.layers[1].graph)];
  request.compute = [&] { layer.run_attention(); };
  Machine machine{
      .name = "measured",
      .rates = {Rates{.memory_bandwidth = 1e9, .matmul_flop_rates = {{DType::kF32, 1e9}}}}};
  machine.collectives = measure_collectives(request);
  return machine_yaml(machine);
}

/// Measures the collectives of `ranks` ranks on `cores` cores, each `samples` times.
std::map<std::string, Curve> measure_collectives_of(int ranks, int cores, int samples) {
  ListenSocket socket = listen_on("127.0.0.1", 0);
  std::random_device random;
  const std::string token = cat(random(), random());
  std::vector<std::unique_ptr<ChildProcess>> children;
  for (int rank = 0; rank < ranks; ++rank)
    children.push_back(std::make_unique<ChildProcess>([&] {
      if (rank > 0) socket.fd.reset();
      return measure_collectives_as({.rank = rank,
                                     .ranks = ranks,
                                     .port = socket.port,
                                     .listen_fd = rank == 0 ? socket.fd.release() : -1,
                                     .token = token,
                                     .cores = cores,
                                     .threads = std::max(1, cores / ranks),
                                     .samples = samples});
    }));
  socket.fd.reset();
  std::map<std::string, Curve> found =
      parse_machine("the process that measured", children.front()->text()).collectives;
  for (size_t i = 1; i < children.size(); ++i) children[i]->text();
  return found;
}

/// The share of the time by which the passes may differ without a warning.
constexpr double kMaxPassDifference = 0.15;

/// Returns the seconds that a block of the second sampled model takes at the rates. This number
/// compares the speed of the machine in different passes.
double block_seconds(const Rates& rates) {
  const auto [config, batch] = list_sampled_models(true)[1];
  const ModelDescription model =
      build_model(config, batch, GraphMode::kTrain, {.compute = DType::kF32});
  const LayerGraph& block = model.graphs[static_cast<size_t>(model.layers[1].graph)];
  const Machine machine{.name = "measured", .rates = {rates}};
  return list_seconds(machine, rates, block, block.forward) +
         list_seconds(machine, rates, block, block.backward);
}

/// RatesOfPass holds the rates that a pass measured, and their block_seconds().
struct RatesOfPass {
  Rates rates;
  double seconds;
};

/// Returns the sum of the logarithms of all seconds of the curves, which compares passes.
double sum_of_log_seconds(const std::map<std::string, Curve>& curves) {
  double sum = 0;
  for (const auto& [name, curve] : curves)
    for (const auto& [bytes, seconds] : curve.points()) sum += std::log(seconds);
  return sum;
}

/// Keeps the curves of the faster pass, because other programs can only add time. All are of the
/// same pass: the smaller time of each point would be too small, as each is the mean of few waits.
void keep_faster(std::map<std::string, Curve>& kept, std::map<std::string, Curve> pass) {
  if (kept.empty() || sum_of_log_seconds(pass) < sum_of_log_seconds(kept)) kept = std::move(pass);
}

}  // namespace

Machine bench_machine(const BenchRequest& request) {
  Machine machine{
      .name = request.name, .cpu_model = request.cpu_model, .measured_on = request.measured_on};
  machine.devices = count_usable_cores();
  // Fewer than 16 samples would include outliers (mean_without_outliers()).
  const int samples = std::max(16, request.rounds * 8 / 3);
  std::map<int, std::vector<RatesOfPass>> measured;
  std::map<int, std::map<std::string, Curve>> collectives;
  for (int pass = 1; pass <= request.passes; ++pass) {
    const std::string pass_text =
        request.passes > 1 ? cat(", pass ", pass, " of ", request.passes) : "";
    for (int ranks = 1; ranks <= machine.devices; ++ranks) {
      if (machine.devices % ranks != 0) continue;
      request.report_progress(cat("measuring ", count_text(ranks, "rank"), " of ",
                                  count_text(machine.devices / ranks, "thread"), pass_text));
      Rates rates = measure_beside_others(ranks, machine.devices, request);
      const double seconds = block_seconds(rates);
      measured[ranks].push_back({std::move(rates), seconds});
    }
    // Runs of two and four ranks are also common on machines with fewer cores.
    for (int ranks = 2; ranks <= std::max(machine.devices, 4); ranks *= 2) {
      request.report_progress(cat("measuring the collectives of ", ranks, " ranks", pass_text));
      keep_faster(collectives[ranks], measure_collectives_of(ranks, machine.devices, samples));
    }
  }
  for (auto& [ranks, curves] : collectives) machine.collectives.merge(curves);
  double unevenness = 0;
  for (auto& [ranks, passes] : measured) {
    const auto [fast, slow] = std::ranges::minmax_element(passes, {}, &RatesOfPass::seconds);
    unevenness = std::max(unevenness, slow->seconds / fast->seconds - 1);
    machine.rates.push_back(std::move(fast->rates));
  }
  if (unevenness > kMaxPassDifference)
    request.report_progress(
        cat("the machine computed unevenly: one pass took ", std::lround(100 * unevenness),
            " % longer than another, and the fastest one is kept; measure again while "
            "nothing else runs"));
  // Plans use the node's link for numbers of ranks that were not measured, and for sends.
  if (const auto pair = machine.collectives.find("all_gather 2");
      pair != machine.collectives.end()) {
    const auto& points = pair->second.points();
    machine.intra_node_link.latency_seconds = points.front().second;
    machine.intra_node_link.bandwidth = points.back().first / 2 / points.back().second;
  }
  return machine;
}

}  // namespace ftrun
