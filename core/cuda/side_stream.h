#pragma once
/// SideStream: a second stream for work that runs concurrently with a context's stream, and the points where
/// the two synchronise. On the CPU a call returns when its work is done, and nothing needs to synchronise.
#include <memory>
#include <optional>

#include <gradtile/core/context.h>
#include <gradtile/core/cuda/event.h>

namespace gradtile {

class SideStream {
  public:
    /// On a GPU the side stream has the higher priority: its work is short, or the main stream waits for it.
    explicit SideStream(Device device);

    /// ctx on the side stream: work enqueued there runs after all work that ctx's stream has so far, and
    /// concurrently with its later work. Not for matrix products, which share a workspace, nor for memory of
    /// an arena that may be reused before join().
    Context after(const Context& ctx) const;
    /// Work enqueued on ctx's stream from now on runs after all work on the side stream.
    void join(const Context& ctx) const;

  private:
    std::shared_ptr<void> stream_;  // cudaStream_t
    std::optional<cuda::Event> forked_, done_;
};

}  // namespace gradtile
