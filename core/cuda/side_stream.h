#pragma once
/// SideStream: a second queue of work beside a context's stream, and where the two meet. On the CPU, where a
/// call returns when its work is done, there is nothing to meet for.
#include <memory>
#include <optional>

#include <gradtile/core/context.h>
#include <gradtile/core/cuda/event.h>

namespace gradtile {

class SideStream {
  public:
    /// On a GPU its work goes first where both streams have some: what runs aside is short, or waited for.
    explicit SideStream(Device device);

    /// ctx on the side: work enqueued there runs after all that ctx's stream has so far, and beside what that
    /// gets from now on. Not for matrix products, which share a workspace, nor for memory of an arena that
    /// may be given to others before join().
    Context after(const Context& ctx) const;
    /// What ctx's stream gets from now on runs after all that the side has.
    void join(const Context& ctx) const;

  private:
    std::shared_ptr<void> stream_;  // cudaStream_t
    std::optional<cuda::Event> forked_, done_;
};

}  // namespace gradtile
