#pragma once
/// SideStream: a second stream for work that runs concurrently with a context's stream, and the
/// synchronisation between both streams. On the CPU, every call finishes its work before it returns, so
/// nothing needs to synchronise.
#include <memory>
#include <optional>

#include <gradtile/core/context.h>
#include <gradtile/core/event.h>

namespace gradtile {

class SideStream {
  public:
    /// On a GPU, the side stream has the higher priority, because its work is short or the main stream waits
    /// for it.
    explicit SideStream(Device device);

    /// Returns ctx with the side stream. Work enqueued on the returned context runs after the work that is
    /// already on ctx's stream, and concurrently with later work on ctx's stream. The returned context must
    /// not run matrix products, because they would share a workspace. Arena memory that its work uses must
    /// not be freed before join().
    Context after(const Context& ctx) const;
    /// Makes later work on ctx's stream wait for all work on the side stream.
    void join(const Context& ctx) const;

  private:
    std::shared_ptr<void> stream_;  // cudaStream_t
    std::optional<cuda::Event> forked_, done_;
};

}  // namespace gradtile
