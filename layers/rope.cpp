#include <gradtile/layers/rope.h>

#include <cmath>
#include <deque>
#include <mutex>
#include <span>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/internal/rope_backend.h>

namespace gradtile {

/// Cosines and sines, with a copy for each device and dtype that needed them.
class Rope::Tables {
  public:
    struct Table {
        Tensor cosines, sines;  // [max_positions, D/2]
    };

    explicit Tables(Table float64_on_cpu) { copies_.push_back(std::move(float64_on_cpu)); }
    const Table& original() const { return copies_.front(); }

    /// Returns the table for values of `dtype` on ctx's device: float64 for float64 values, else float32.
    Table of(const Context& ctx, DType dtype) {
        if (ctx.is_planning()) return original();  // a dry run only needs shapes
        const std::scoped_lock lock(mutex_);
        for (const Table& table : copies_)
            if (table.cosines.device() == ctx.device() && table.cosines.dtype() == accumulator_of(dtype))
                return table;
        // Copies are in system memory, because they are used longer than the arena of the step that makes
        // them.
        const Context system_memory = ctx.with_allocator(system_allocator(ctx.device()));
        const auto copied = [&](const Tensor& x) {
            const auto values =
                std::span<const double>(x.data<double>(), static_cast<std::size_t>(x.elements()));
            return from_host(system_memory, values, x.shape(), accumulator_of(dtype));
        };
        return copies_.emplace_back(Table{copied(original().cosines), copied(original().sines)});
    }

  private:
    std::deque<Table> copies_;
    std::mutex mutex_;
};

Rope::Rope(std::int64_t head_dim, std::int64_t max_positions, double base) {
    check(head_dim > 0 && head_dim % 2 == 0, "rope: head_dim ", head_dim, " is not even");
    check(max_positions >= 0, "rope: ", max_positions, " positions; expected 0 or more");
    check(base > 0, "rope: base ", base, " is not positive");
    const Context host(Device::cpu(), 1);
    const std::int64_t half = head_dim / 2;
    const Tables::Table table{empty(host, {max_positions, half}, DType::f64),
                              empty(host, {max_positions, half}, DType::f64)};
    for (std::int64_t i = 0; i < half; ++i) {
        const double frequency =
            std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
        for (std::int64_t t = 0; t < max_positions; ++t) {
            table.cosines.data<double>()[t * half + i] = std::cos(static_cast<double>(t) * frequency);
            table.sines.data<double>()[t * half + i] = std::sin(static_cast<double>(t) * frequency);
        }
    }
    tables_ = std::make_shared<Tables>(table);
}

std::int64_t Rope::head_dim() const {
    return 2 * tables_->original().cosines.size(1);
}
std::int64_t Rope::max_positions() const {
    return tables_->original().cosines.size(0);
}

void Rope::forward(const Context& ctx, const Tensor& x, std::int64_t start) const {
    rotate(ctx, x, start, /*inverse=*/false);
}

void Rope::backward(const Context& ctx, const Tensor& dx, std::int64_t start) const {
    rotate(ctx, dx, start, /*inverse=*/true);
}

void Rope::rotate(const Context& ctx, const Tensor& x, std::int64_t start, bool inverse) const {
    check(x.rank() == 4 && x.size(3) == head_dim(), "rope: x ", x, "; expected [B, S, H, ", head_dim(), "]");
    check(x.stride(3) == 1, "rope: x ", x, " with strides ", x.strides(), "; the last must be 1");
    check(start >= 0 && start + x.size(1) <= max_positions(), "rope: positions ", start, " to ",
          start + x.size(1), "; there are ", max_positions());
    if (x.elements() == 0) return;
    const Tables::Table table = tables_->of(ctx, x.dtype());
    on_device(ctx, cpu::rope_rotate, cuda::rope_rotate, x, table.cosines.slice(0, start, x.size(1)),
              table.sines.slice(0, start, x.size(1)), inverse);
}

}  // namespace gradtile
