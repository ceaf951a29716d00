#pragma once
/// StepGraph: a training step recorded once as a CUDA graph and replayed, so that launches do not limit the
/// speed of a small model.
#include <cstddef>
#include <functional>
#include <memory>

#include <gradtile/core/context.h>

namespace gradtile {

/// What a replay does is fixed when the graph is captured: kernels, shapes and addresses. Hence everything
/// that changes from step to step (data, learning rate, dropout's seed) must lie in device memory that stays
/// where it is, and everything the body allocates must come from an Arena that nothing else holds memory of
/// during a replay.
class StepGraph {
  public:
    /// Measured on an H200: a node takes 2.7 kB of device memory, which no plan counts. So many take 390 MiB
    /// of the 512 that available_memory() leaves for what CUDA itself needs.
    static constexpr std::size_t nodes_within_overhead = 150'000;

    bool captured() const { return graph_ != nullptr; }

    /// Records what `body` enqueues on ctx's stream; none of it runs. Run the body once before, so that
    /// whatever is set up at first use (libraries, tables) is. Throws Error when something in it cannot be
    /// captured, such as a wait for the device, or is more than `most_nodes`; then there is no graph and the
    /// stream is as before.
    void capture(const Context& ctx, const std::function<void()>& body,
                 std::size_t most_nodes = nodes_within_overhead);
    /// Enqueues the recorded work on ctx's stream.
    void replay(const Context& ctx) const;
    /// Kernels, copies and fills in the graph.
    std::size_t nodes() const { return nodes_; }

  private:
    std::shared_ptr<void> graph_;  // cudaGraphExec_t
    std::size_t nodes_ = 0;
};

}  // namespace gradtile
