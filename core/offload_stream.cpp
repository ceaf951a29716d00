#include <gradtile/core/internal/offload_stream.h>

#include <cstring>
#include <map>

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/offload_allocator.h>

namespace gradtile {
namespace {

std::shared_ptr<Arena> arena_on_host(const Context& ctx, std::size_t bytes) {
    const Device device = ctx.device();
    if (ctx.is_planning()) return Arena::for_planning(device);
    return std::make_shared<Arena>(device, bytes, device.is_cuda() ? offload_allocator(device) : nullptr);
}

void copy_buffer(const Context& ctx, const Buffer& destination, const Buffer& source) {
    if (ctx.is_planning() || source.bytes() == 0) return;
    if (ctx.device().is_cpu()) {
        std::memcpy(destination.data(), source.data(), source.bytes());
    } else {
        cuda::copy_bytes(destination.data(), source.data(), source.bytes(), ctx.device(), ctx.stream());
    }
}

void move_tensors(const Context& copies, std::span<Tensor* const> tensors,
                  const std::shared_ptr<Allocator>& from, const std::shared_ptr<Allocator>& to) {
    std::map<std::shared_ptr<const Buffer>, std::shared_ptr<const Buffer>> moved;
    for (Tensor* const x : tensors) {
        const std::shared_ptr<const Buffer>& source = x->buffer();
        if (source == nullptr || source->allocator() != from) continue;
        std::shared_ptr<const Buffer>& copy = moved[source];
        if (copy == nullptr) {
            copy = std::make_shared<Buffer>(to, source->bytes());
            copy_buffer(copies, *copy, *source);
        }
        *x = Tensor(copy, copy->data() + (x->raw_data() - source->data()), x->device(), x->dtype(),
                    x->shape(), x->strides());
    }
}

}  // namespace

OffloadStream::OffloadStream(const Context& ctx, std::size_t host_bytes)
    : host_(arena_on_host(ctx, host_bytes)), stream_(ctx.is_planning() ? Device::cpu() : ctx.device()) {}

void OffloadStream::start_leaving(const Context& ctx, std::span<Tensor* const> tensors) const {
    move_tensors(stream_.after(ctx), tensors, ctx.allocator(), host_);
}

void OffloadStream::start_returning(const Context& ctx, std::span<Tensor* const> tensors) const {
    move_tensors(stream_.after(ctx), tensors, host_, ctx.allocator());
}

}  // namespace gradtile
