"""Machine files for tests of plans."""


def two_cores(memory=None):
    """Returns the machine file of a node with two CPUs, each with this memory."""
    return f"""machine: two
device: cpu
devices: 2
{f"memory: {memory}" if memory else "# of unknown memory"}
rates:
  - ranks: 1
    threads: 2
    memory: 10 GB/s
    products: {{fp32: 60 GFLOP/s}}
  - ranks: 2
    threads: 1
    memory: 6 GB/s
    products: {{fp32: 40 GFLOP/s}}
links:
  node: {{latency: 20 us, bandwidth: 2 GB/s}}
  cluster: {{latency: 50 us, bandwidth: 1 GB/s}}
"""
