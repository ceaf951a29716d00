#include <gradtile/layers/device_copies.h>

#include <deque>
#include <mutex>
#include <span>

#include <gradtile/core/tensor_ops.h>

namespace gradtile {

struct DeviceCopies::Shared {
    Tensor original;
    std::deque<Tensor> copies;
    std::mutex mutex;  // guards `copies`
};

DeviceCopies::DeviceCopies(Tensor values) : shared_(std::make_shared<Shared>()) {
    check(values.dtype() == DType::f64 && values.device().is_cpu() && values.is_contiguous(),
          "device copies: of ", values, "; expected contiguous float64 on the CPU");
    shared_->original = std::move(values);
}

const Tensor& DeviceCopies::original() const {
    return shared_->original;
}

Tensor DeviceCopies::on_device(const Context& ctx, DType dtype) const {
    const Tensor& x = shared_->original;
    if (ctx.is_planning()) return empty(ctx.plan(Arena::for_planning(ctx.device())), x.shape(), dtype);
    const std::scoped_lock lock(shared_->mutex);
    for (const Tensor& copy : shared_->copies)
        if (copy.device() == ctx.device() && copy.dtype() == dtype) return copy;
    // Copies are in system memory, because they are used longer than the arena of the step that makes them.
    const Context system_memory = ctx.with_allocator(system_allocator(ctx.device()));
    const std::span<const double> values(x.data<double>(), static_cast<std::size_t>(x.elements()));
    return shared_->copies.emplace_back(from_host(system_memory, values, x.shape(), dtype));
}

}  // namespace gradtile
