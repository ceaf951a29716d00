#pragma once
/// StepGraph: a training step recorded once as a CUDA graph and replayed, so that launches do not limit a
/// small model's speed.
#include <cstddef>
#include <functional>
#include <memory>

#include <gradtile/core/context.h>

namespace gradtile {

/// The capture fixes kernels, shapes and addresses for all replays. So inputs that change from step to step
/// (data, learning rate, dropout seed) must be in device memory at fixed addresses. Everything that the body
/// allocates must come from an Arena, and nothing else may hold memory from this Arena during a replay.
class StepGraph {
  public:
    bool captured() const { return graph_ != nullptr; }

    /// Records the work that `body` enqueues on ctx's stream, without running it. Run the body once before,
    /// to initialise libraries and tables that are set up at first use. Throws Error if part of the work
    /// cannot be captured (a wait for the device, for example); then there is no graph, and the stream is
    /// unchanged. The graph takes device memory of the driver, some kB a node; step_graph_bytes() estimates
    /// it.
    void capture(const Context& ctx, const std::function<void()>& body);
    /// Enqueues the recorded work on ctx's stream.
    void replay(const Context& ctx) const;
    /// Kernels, copies and fills in the graph.
    std::size_t nodes() const { return nodes_; }

  private:
    std::shared_ptr<void> graph_;  // cudaGraphExec_t
    std::size_t nodes_ = 0;
};

}  // namespace gradtile
