#include <gradtile/tools/plan/collective_cost.h>

#include <algorithm>
#include <bit>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

double real(std::int64_t x) {
    return static_cast<double>(x);
}

/// Returns how many rounds a tree of n leaves needs in one direction.
double tree_depth(std::int64_t n) {
    return real(std::bit_width(static_cast<std::uint64_t>(n - 1)));
}

/// Chunks move through NVLink and the network at the same time, so the slower link determines the time.
double transfer_seconds(const WireBytes& bytes, const Links& links) {
    const double network = bytes.network > 0 ? bytes.network / links.network.bytes_per_second : 0;
    return std::max(bytes.nvlink / links.nvlink.bytes_per_second, network);
}

}  // namespace

GpuLayout::GpuLayout(std::int64_t gpus, std::int64_t gpus_per_node)
    : per_node_(std::min(gpus, gpus_per_node)), nodes_(1) {
    check(gpus >= 1, "gpus: ", gpus, "; expected at least 1");
    check(gpus_per_node >= 1, "gpus-per-node: ", gpus_per_node, "; expected at least 1");
    check(gpus % per_node_ == 0, "gpus: ", gpus, " do not fill nodes of ", gpus_per_node,
          " (--gpus-per-node)");
    nodes_ = gpus / per_node_;
}

WireBytes scatter_wire_bytes(const GpuLayout& layout, double bytes) {
    const double per_node = real(layout.per_node()), nodes = real(layout.nodes());
    return {.nvlink = (per_node - 1) / per_node * bytes, .network = (nodes - 1) / nodes * bytes / per_node};
}

WireBytes all_reduce_wire_bytes(const GpuLayout& layout, double bytes) {
    return scatter_wire_bytes(layout, 2 * bytes);
}

/// Each GPU forwards everything within its node; the GPUs of a node share the network traffic.
WireBytes broadcast_wire_bytes(const GpuLayout& layout, double bytes) {
    return {.nvlink = layout.per_node() > 1 ? bytes : 0,
            .network = layout.nodes() > 1 ? bytes / real(layout.per_node()) : 0};
}

double scatter_seconds(const GpuLayout& layout, const Links& links, double bytes) {
    const double latency =
        real(layout.per_node() - 1) * links.nvlink.latency + real(layout.nodes() - 1) * links.network.latency;
    return latency + transfer_seconds(scatter_wire_bytes(layout, bytes), links);
}

double all_reduce_seconds(const GpuLayout& layout, const Links& links, double bytes) {
    const double latency = real(layout.per_node() - 1) * links.nvlink.latency +
                           tree_depth(layout.nodes()) * links.network.latency;
    return 2 * latency + transfer_seconds(all_reduce_wire_bytes(layout, bytes), links);
}

double broadcast_seconds(const GpuLayout& layout, const Links& links, double bytes) {
    const double latency = real(layout.per_node() - 1) * links.nvlink.latency +
                           tree_depth(layout.nodes()) * links.network.latency;
    return latency + transfer_seconds(broadcast_wire_bytes(layout, bytes), links);
}

}  // namespace gradtile
