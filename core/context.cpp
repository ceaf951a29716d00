#include <gradtile/core/context.h>

#include <gradtile/core/check.h>
#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/side_stream.h>

namespace gradtile {

Context::Context(Device device, int threads)
    : threads_(std::make_shared<ThreadPool>(threads)),
      stream_(device.is_cuda() ? cuda::make_stream(device) : nullptr),
      side_(std::make_shared<SideStream>(device)),
      gemm_state_(device.is_cuda() ? cuda::make_gemm_state(device) : nullptr),
      allocator_(system_allocator(device)) {}

Context Context::with_allocator(std::shared_ptr<Allocator> allocator) const {
    check(allocator->device() == device(), "context: an allocator of ", allocator->device(),
          " in a context of ", device(), "; devices must be equal");
    Context copy = *this;
    copy.allocator_ = std::move(allocator);
    return copy;
}

Context Context::with_stream(std::shared_ptr<void> stream) const {
    Context copy = *this;
    copy.stream_ = std::move(stream);
    return copy;
}

Context Context::plan(std::shared_ptr<Arena> planning_arena) const {
    Context copy = *this;
    // The arena's device may differ from this context's device, because a dry run accesses no memory.
    copy.allocator_ = std::move(planning_arena);
    copy.planning_ = true;
    return copy;
}

Context Context::with_tf32(bool allowed) const {
    Context copy = *this;
    copy.tf32_ = allowed;
    return copy;
}

Context Context::with_deterministic(bool wanted) const {
    Context copy = *this;
    copy.deterministic_ = wanted;
    return copy;
}

Context host_of(const Context& ctx) {
    if (ctx.device().is_cpu()) return ctx.with_allocator(system_allocator(Device::cpu()));
    Context host(Device::cpu(), 1);
    host.threads_ = ctx.threads_;
    return host;
}

}  // namespace gradtile
