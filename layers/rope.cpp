#include <gradtile/layers/rope.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <mutex>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/device_copies.h>
#include <gradtile/layers/internal/embedding_backend.h>
#include <gradtile/layers/internal/head_transform_backend.h>

namespace gradtile {

/// Cosines and sines [P, D/2] for the first P positions: float64 for float64 values, else float32.
struct Rope::Tables {
    struct Table {
        DeviceCopies cosines, sines;
        std::int64_t positions() const { return cosines.original().size(0); }
    };

    Tables(RopeFrequencies f, std::int64_t n) : frequencies(std::move(f)), max_positions(n) {}
    const Table& table_for(std::int64_t positions);

    std::int64_t half() const { return std::ssize(frequencies.values); }

    RopeFrequencies frequencies;
    std::int64_t max_positions;

  private:
    Table longer_table(std::int64_t positions) const;

    std::mutex mutex_;  // guards `tables_`
    // Each is at least twice as long as the one before. A captured graph may still read an earlier one.
    std::deque<Table> tables_;
};

/// Returns the newest table, which has at least this many positions.
const Rope::Tables::Table& Rope::Tables::table_for(std::int64_t positions) {
    const std::scoped_lock lock(mutex_);
    if (tables_.empty() || tables_.back().positions() < positions) tables_.push_back(longer_table(positions));
    return tables_.back();
}

Rope::Tables::Table Rope::Tables::longer_table(std::int64_t positions) const {
    constexpr std::uint64_t fewest = 64;
    const std::uint64_t power = std::bit_ceil(std::max(static_cast<std::uint64_t>(positions), fewest));
    const std::int64_t length = std::min(static_cast<std::int64_t>(power), max_positions);
    const std::int64_t known = tables_.empty() ? 0 : tables_.back().positions();
    const Context host(Device::cpu(), 1);
    const Tensor cosines = empty(host, {length, half()}, DType::f64), sines = empty_like(host, cosines);
    if (known > 0) {
        copy(host, cosines.slice(0, 0, known), tables_.back().cosines.original());
        copy(host, sines.slice(0, 0, known), tables_.back().sines.original());
    }
    for (std::int64_t i = 0; i < half(); ++i) {
        const double frequency = frequencies.values[static_cast<std::size_t>(i)];
        for (std::int64_t t = known; t < length; ++t) {
            const double angle = static_cast<double>(t) * frequency;
            cosines.data<double>()[t * half() + i] = frequencies.magnitude * std::cos(angle);
            sines.data<double>()[t * half() + i] = frequencies.magnitude * std::sin(angle);
        }
    }
    return {DeviceCopies(cosines), DeviceCopies(sines)};
}

Rope::Rope(std::int64_t head_dim, std::int64_t max_positions, double base)
    : Rope(rope_frequencies(head_dim, base, max_positions), max_positions) {}

Rope::Rope(RopeFrequencies frequencies, std::int64_t max_positions) {
    check(max_positions >= 0, "rope: ", max_positions, " positions; expected 0 or more");
    tables_ = std::make_shared<Tables>(std::move(frequencies), max_positions);
}

std::int64_t Rope::head_dim() const {
    return 2 * tables_->half();
}
std::int64_t Rope::max_positions() const {
    return tables_->max_positions;
}

void Rope::forward(const Context& ctx, const Tensor& x, std::int64_t start) const {
    rotate(ctx, x, start, /*inverse=*/false);
}

void Rope::backward(const Context& ctx, const Tensor& dx, std::int64_t start) const {
    rotate(ctx, dx, start, /*inverse=*/true);
}

Rope::Angles Rope::angles_at(const Context& ctx, const Tensor& positions, DType dtype,
                             std::int64_t end) const {
    check(positions.dtype() == DType::i32 && positions.is_contiguous(), "rope: positions ", positions,
          "; expected contiguous int32");
    const std::int64_t tokens = positions.elements();
    const Shape shape{tokens, head_dim() / 2};
    const Angles angles{empty(ctx, shape, accumulator_of(dtype)), empty(ctx, shape, accumulator_of(dtype))};
    if (ctx.is_planning()) return angles;  // a dry run makes no table
    const std::int64_t most = end < 0 ? max_positions() : std::min(end, max_positions());
    check_indices(ctx, "rope: position", positions, most);
    const Tables::Table& table = tables_->table_for(most);
    // Table rows are looked up with the embedding kernels: positions take the place of tokens.
    const auto look_up = [&](const Tensor& rows, const DeviceCopies& table) {
        on_device(ctx, cpu::embedding_forward, cuda::embedding_forward, rows, positions.reshape({tokens}),
                  table.on_device(ctx, accumulator_of(dtype)));
    };
    look_up(angles.cosines, table.cosines);
    look_up(angles.sines, table.sines);
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
    if (ctx.is_planning()) {  // a dry run makes no table, and the table does not count in the memory plan
        const Context uncounted = ctx.plan(Arena::for_planning(ctx.device()));
        const Tensor rows = empty(uncounted, {length, head_dim() / 2}, accumulator_of(dtype));
        return {rows, rows};
    }
    const Tables::Table& table = tables_->table_for(start + length);
    const auto rows = [&](const DeviceCopies& copies) {
        return copies.on_device(ctx, accumulator_of(dtype)).slice(0, start, length);
    };
    return {rows(table.cosines), rows(table.sines)};
}

void Rope::rotate(const Context& ctx, const Tensor& x, const Angles& angles, bool inverse) const {
    check_heads(x);
    const Shape expected{x.size(1), head_dim() / 2};
    check(angles.cosines.shape() == expected && angles.sines.shape() == expected, "rope: x ", x,
          " with cosines ", angles.cosines, " and sines ", angles.sines, "; expected ", expected);
    check_distinct_elements("rope", {"x", x});
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
