#pragma once
/// The time that collectives take on GPUs with two link kinds: NVLink within a node, a network between nodes.
/// docs/parallel_cost_model.md derives the formulas. Only the constants within one node are fitted to
/// measurements.
#include <cstdint>

namespace gradtile {

/// The speed of one link kind, for each GPU.
struct Link {
    double bytes_per_second = 0;  ///< a collective's "bus bandwidth", in each direction
    double latency = 0;           ///< seconds for each step of a collective
};

struct Links {
    Link nvlink = {}, network = {};
};

/// GPUs in nodes of equal size.
class GpuLayout {
  public:
    /// Throws Error when the GPUs need more than one node and do not fill all nodes.
    GpuLayout(std::int64_t gpus, std::int64_t gpus_per_node);

    std::int64_t gpus() const { return per_node_ * nodes_; }
    std::int64_t per_node() const { return per_node_; }  ///< GPUs per node that are used
    std::int64_t nodes() const { return nodes_; }

  private:
    std::int64_t per_node_, nodes_;
};

/// Bytes that each GPU sends (and receives) in a collective.
struct WireBytes {
    double nvlink = 0, network = 0;
    double total() const { return nvlink + network; }
    WireBytes& operator+=(const WireBytes& other) {
        nvlink += other.nvlink;
        network += other.network;
        return *this;
    }
};

/// Returns the bytes that each GPU sends in a reduce_scatter or an all_gather; `bytes` counts all parts
/// together. An all_reduce sends twice as many bytes.
WireBytes scatter_wire_bytes(const GpuLayout& layout, double bytes);
WireBytes all_reduce_wire_bytes(const GpuLayout& layout, double bytes);
WireBytes broadcast_wire_bytes(const GpuLayout& layout, double bytes);

/// Return seconds; 0 for one GPU.
double scatter_seconds(const GpuLayout& layout, const Links& links, double bytes);
double all_reduce_seconds(const GpuLayout& layout, const Links& links, double bytes);
double broadcast_seconds(const GpuLayout& layout, const Links& links, double bytes);

}  // namespace gradtile
