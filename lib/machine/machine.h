#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "machine/price.h"

namespace ftrun {

/// A Curve is a function through measured points: linear between their logarithms, constant beyond
/// the first and the last.
class Curve {
 public:
  Curve() = default;
  /// Makes the curve through `points`, which ascend in x; all numbers are above 0.
  explicit Curve(std::vector<std::pair<double, double>> points);

  bool empty() const { return points_.empty(); }
  const std::vector<std::pair<double, double>>& points() const { return points_; }
  double at(double x) const;
  bool operator==(const Curve&) const = default;

 private:
  std::vector<std::pair<double, double>> points_;
};

/// Rates hold how fast one rank computes while `ranks` ranks of a node compute at once, each with
/// `threads` threads.
struct Rates {
  int ranks = 1;
  int threads = 1;
  /// Bytes per second of a copy: those that it reads plus those that it writes.
  double memory_bandwidth = 0;
  /// Floating-point operations per second of a large matrix multiplication, by the dtype of
  /// activations.
  std::map<DType, double> matmul_flop_rates;
  /// The factor by which a kind of work ("linear fp32", "update", "copy") is slower than these
  /// rates, as a function of the seconds that it would take at the rates.
  std::map<std::string, Curve> slowdowns;
  /// The factor of kinds without a curve.
  double default_slowdown = 1;

  bool operator==(const Rates&) const = default;
};

/// Link is a connection over which ranks communicate.
struct Link {
  /// Seconds from one rank to the next.
  double latency_seconds = 0;
  /// Bytes a second, each way, of one rank.
  double bandwidth = 0;

  bool operator==(const Link&) const = default;
};

/// Machine describes a machine: the rates of its devices and links, its memory and its price.
struct Machine {
  std::string name;
  bool has_gpus = false;
  /// Cores, or GPUs, of a node.
  int devices = 1;
  /// Memory of a device in bytes; 0: not known.
  double memory_capacity = 0;
  /// The rates, by `ranks`, ascending.
  std::vector<Rates> rates;
  /// The links among the ranks of a node, among nodes, and between a GPU and main memory; a
  /// bandwidth of 0: there is no such link.
  Link intra_node_link, inter_node_link, host_link;
  /// Bytes a second of main memory for one rank of GPUs; 0: not known.
  double host_memory_bandwidth = 0;
  /// Bytes of main memory of a node, in addition to its GPUs' memory; 0: not known.
  double host_memory_capacity = 0;
  /// Seconds of a collective by its bytes; the key has its kind and number of ranks, all of one
  /// node: "all_reduce 2".
  std::map<std::string, Curve> collectives;
  /// Bytes a second of the disk; 0: not known.
  double disk_read_bandwidth = 0, disk_write_bandwidth = 0;
  /// The minimum seconds that an operation takes.
  double min_op_seconds = 0;
  /// Says whether full recompute runs the whole forward list of a layer again, as another program
  /// does (SoftwareStack); ftrun recomputes only what backward reads.
  bool recomputes_whole_layers = false;
  /// The price of a device for an hour.
  DevicePrice price;
  /// The CPU that was measured, and when; "" where the machine was not measured.
  std::string cpu_model, measured_on;

  /// Returns the rates for the smallest measured number of ranks that is at least `ranks`, or for
  /// the largest number if all are smaller.
  const Rates& rates_of(int ranks) const;
  bool operator==(const Machine&) const = default;
};

/// Computes the seconds of work that would take `ideal` seconds at the rates. `kind` includes a
/// dtype where it has one ("linear fp32").
double seconds_with_slowdown(const Rates& rates, const std::string& kind, double ideal);

/// Computes the seconds of a collective ("all_reduce", "all_gather", "reduce_scatter",
/// "all_to_all", "send") among `ranks` ranks, `ranks_on_node` or more of them on each node that has
/// any. `bytes` is the whole result; for a reduce-scatter the whole input; for an all-to-all the
/// data of one rank. The time is the one measured on the node if there is one, else that of a ring
/// (Thakur et al. 2005, "Optimization of Collective Communication Operations in MPICH"). A ring
/// over several nodes enters each node through the links of all its ranks there, as NCCL's do.
double collective_seconds(const Machine& machine, std::string_view kind, double bytes, int ranks,
                          int ranks_on_node);

/// Returns the link that each rank of a ring uses if the ring has `ranks_on_node` ranks on each of
/// several nodes. The link has the latency of a hop between nodes, and the bandwidth of the node's
/// link or of `ranks_on_node` links of the cluster, whichever is less.
Link link_between_nodes(const Machine& machine, int ranks_on_node);

}  // namespace ftrun
