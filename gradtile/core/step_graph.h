#pragma once
/// StepGraph: a training step recorded once as a CUDA graph and replayed, so that a small model is not bound
/// by its launches.
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
    bool captured() const { return graph_ != nullptr; }

    /// Records what `body` enqueues on ctx's stream; none of it runs. Run the body once before, so that
    /// whatever is set up at first use (libraries, tables) is. Throws Error when something in it cannot be
    /// captured, such as a wait for the device; then there is no graph and the stream is as before.
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
