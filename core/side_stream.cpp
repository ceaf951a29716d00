#include <gradtile/core/side_stream.h>

#include <gradtile/core/cuda_runtime.h>

namespace gradtile {

SideStream::SideStream(Device device) {
    if (!device.is_cuda()) return;
    stream_ = cuda::make_stream(device, cuda::StreamPriority::high);
    forked_.emplace(device);
    done_.emplace(device);
}

Context SideStream::after(const Context& ctx) const {
    if (!stream_) return ctx;
    forked_->record(ctx.stream());
    forked_->wait_in(stream_.get());
    return ctx.with_stream(stream_);
}

void SideStream::join(const Context& ctx) const {
    if (!stream_) return;
    done_->record(stream_.get());
    done_->wait_in(ctx.stream());
}

}  // namespace gradtile
