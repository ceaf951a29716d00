#pragma once
/// How long collectives take on GPUs that are joined by two kinds of links: NVLink inside a node, a network
/// between nodes. docs/parallel_cost_model.md derives the formulae; of them only the part inside one node is
/// fitted to measurements.
#include <cstdint>

namespace gradtile {

/// What a kind of link does for each GPU.
struct Link {
    double bytes_per_second = 0;  ///< that a collective moves through it, each way ("bus bandwidth")
    double latency = 0;           ///< seconds of each step of a collective
};

struct Links {
    Link nvlink = {}, network = {};
};

/// Some GPUs in nodes of equal size.
class GpuLayout {
  public:
    /// Throws Error when more than one node's GPUs do not fill whole nodes.
    GpuLayout(std::int64_t gpus, std::int64_t gpus_per_node);

    std::int64_t gpus() const { return per_node_ * nodes_; }
    std::int64_t per_node() const { return per_node_; }  ///< at most what a node has
    std::int64_t nodes() const { return nodes_; }

  private:
    std::int64_t per_node_, nodes_;
};

/// Bytes each GPU sends in a collective, and receives.
struct WireBytes {
    double nvlink = 0, network = 0;
    double total() const { return nvlink + network; }
    WireBytes& operator+=(const WireBytes& other) {
        nvlink += other.nvlink;
        network += other.network;
        return *this;
    }
};

/// reduce_scatter or all_gather, where all parts together have `bytes`; twice it is an all_reduce.
WireBytes scatter_wire_bytes(const GpuLayout& layout, double bytes);
WireBytes all_reduce_wire_bytes(const GpuLayout& layout, double bytes);
WireBytes broadcast_wire_bytes(const GpuLayout& layout, double bytes);

/// Seconds. One GPU takes none.
double scatter_seconds(const GpuLayout& layout, const Links& links, double bytes);
double all_reduce_seconds(const GpuLayout& layout, const Links& links, double bytes);
double broadcast_seconds(const GpuLayout& layout, const Links& links, double bytes);

}  // namespace gradtile
