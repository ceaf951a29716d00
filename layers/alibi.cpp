#include <gradtile/layers/alibi.h>

#include <bit>
#include <cmath>
#include <vector>

#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

/// Slope number `index` (from 0) if `heads` is a power of two.
double slope_of(std::int64_t index, std::int64_t heads) {
    return std::exp2(-8.0 * static_cast<double>(index + 1) / static_cast<double>(heads));
}

}  // namespace

DeviceCopies alibi_slopes(std::int64_t heads) {
    check(heads >= 1, "alibi: ", heads, " heads; expected at least 1");
    const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
    std::vector<double> slopes;
    for (std::int64_t i = 0; i < power; ++i) slopes.push_back(slope_of(i, power));
    for (std::int64_t i = 0; i < heads - power; ++i) slopes.push_back(slope_of(2 * i, 2 * power));
    return DeviceCopies(from_host(Context(Device::cpu(), 1), slopes, {heads}, DType::f64));
}

}  // namespace gradtile
