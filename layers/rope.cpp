#include <gradtile/layers/rope.h>

#include <cmath>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/device_copies.h>
#include <gradtile/layers/internal/embedding_backend.h>
#include <gradtile/layers/internal/head_transform_backend.h>

namespace gradtile {

/// Cosines and sines [max_positions, D/2]: float64 for float64 values, else float32.
struct Rope::Tables {
    DeviceCopies cosines, sines;
};

Rope::Rope(std::int64_t head_dim, std::int64_t max_positions, double base) {
    check(head_dim > 0 && head_dim % 2 == 0, "rope: head_dim ", head_dim, " is not even");
    check(max_positions >= 0, "rope: ", max_positions, " positions; expected 0 or more");
    check(base > 0, "rope: base ", base, " is not positive");
    const Context host(Device::cpu(), 1);
    const std::int64_t half = head_dim / 2;
    const Tensor cosines = empty(host, {max_positions, half}, DType::f64), sines = empty_like(host, cosines);
    for (std::int64_t i = 0; i < half; ++i) {
        const double frequency =
            std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
        for (std::int64_t t = 0; t < max_positions; ++t) {
            cosines.data<double>()[t * half + i] = std::cos(static_cast<double>(t) * frequency);
            sines.data<double>()[t * half + i] = std::sin(static_cast<double>(t) * frequency);
        }
    }
    tables_ = std::make_shared<Tables>(Tables{DeviceCopies(cosines), DeviceCopies(sines)});
}

std::int64_t Rope::head_dim() const {
    return 2 * tables_->cosines.original().size(1);
}
std::int64_t Rope::max_positions() const {
    return tables_->cosines.original().size(0);
}

void Rope::forward(const Context& ctx, const Tensor& x, std::int64_t start) const {
    rotate(ctx, x, start, /*inverse=*/false);
}

void Rope::backward(const Context& ctx, const Tensor& dx, std::int64_t start) const {
    rotate(ctx, dx, start, /*inverse=*/true);
}

Rope::Angles Rope::angles_at(const Context& ctx, const Tensor& positions, DType dtype) const {
    check(positions.dtype() == DType::i32 && positions.is_contiguous(), "rope: positions ", positions,
          "; expected contiguous int32");
    const std::int64_t tokens = positions.elements();
    const Shape shape{tokens, head_dim() / 2};
    const Angles angles{empty(ctx, shape, accumulator_of(dtype)), empty(ctx, shape, accumulator_of(dtype))};
    // A table is an embedding of positions.
    const auto look_up = [&](const Tensor& rows, const DeviceCopies& table) {
        on_device(ctx, cpu::embedding_forward, cuda::embedding_forward, rows, positions.reshape({tokens}),
                  table.on_device(ctx, accumulator_of(dtype)));
    };
    look_up(angles.cosines, tables_->cosines);
    look_up(angles.sines, tables_->sines);
    return angles;
}

void Rope::forward(const Context& ctx, const Tensor& x, const Angles& angles) const {
    rotate(ctx, x, angles, /*inverse=*/false);
}

void Rope::backward(const Context& ctx, const Tensor& dx, const Angles& angles) const {
    rotate(ctx, dx, angles, /*inverse=*/true);
}

void Rope::check_heads(const Tensor& x) const {
    check(x.rank() == 4 && x.size(3) == head_dim(), "rope: x ", x, "; expected [B, S, H, ", head_dim(), "]");
    check(x.stride(3) == 1, "rope: x ", x, " with strides ", x.strides(), "; the last must be 1");
}

Rope::Angles Rope::angles_from(const Context& ctx, std::int64_t start, std::int64_t length,
                               DType dtype) const {
    check(start >= 0 && start + length <= max_positions(), "rope: positions ", start, " to ", start + length,
          "; there are ", max_positions());
    const auto rows = [&](const DeviceCopies& table) {
        return table.on_device(ctx, accumulator_of(dtype)).slice(0, start, length);
    };
    return {rows(tables_->cosines), rows(tables_->sines)};
}

void Rope::rotate(const Context& ctx, const Tensor& x, const Angles& angles, bool inverse) const {
    check_heads(x);
    check(x.size(1) == angles.cosines.size(0), "rope: x ", x, " and angles of ", angles.cosines.size(0),
          " tokens");
    check_sharing(ctx, "rope", {"x", x}, {{"cosines", angles.cosines}, {"sines", angles.sines}});
    if (x.elements() == 0) return;
    on_device(ctx, cpu::transform_heads, cuda::transform_heads, x, Tensor(), x,
              HeadTransform{.angles = angles}, inverse);
}

void Rope::rotate(const Context& ctx, const Tensor& x, std::int64_t start, bool inverse) const {
    check_heads(x);
    rotate(ctx, x, angles_from(ctx, start, x.size(1), x.dtype()), inverse);
}

}  // namespace gradtile
