#pragma once
/// INTERNAL. OffloadStream: moves tensors between a device's memory and host memory while the device
/// computes.
#include <memory>
#include <span>

#include <gradtile/core/side_stream.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

/// Buffers are copied whole, once for all tensors that are views of them, and the tensors become views of the
/// copies. A tensor whose memory another allocator provides stays where it is. Copies run in the order of the
/// calls, so host memory that a returned tensor has freed may be used again at once.
class OffloadStream {
  public:
    /// Allocates `host_bytes` of host memory, page-locked for a GPU: host().peak_bytes() of a dry run, in
    /// which nothing is allocated and `host_bytes` has no meaning.
    explicit OffloadStream(const Context& ctx, std::size_t host_bytes = 0);

    /// Starts to move tensors in memory of ctx's allocator to the host, after ctx's work so far. The caller
    /// keeps copies of the tensors until join(), because the memory that they leave must not be used before.
    void start_leaving(const Context& ctx, std::span<Tensor* const> tensors) const;
    /// Starts to move tensors back to new memory of ctx's allocator. Work that uses them follows join().
    void start_returning(const Context& ctx, std::span<Tensor* const> tensors) const;
    /// Makes later work on ctx's stream wait for all copies. Call only after a start, so that a captured
    /// stream never waits for work outside its graph.
    void join(const Context& ctx) const { stream_.join(ctx); }
    /// The host memory. Tensors in it have ctx's device, and its operators can read them.
    const Arena& host() const { return *host_; }

  private:
    std::shared_ptr<Arena> host_;
    SideStream stream_;
};

}  // namespace gradtile
