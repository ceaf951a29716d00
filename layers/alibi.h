#pragma once
/// ALiBi slopes (Press et al. 2022, "Train Short, Test Long: Attention with Linear Biases Enables Input
/// Length Extrapolation", section 3).
#include <gradtile/layers/device_copies.h>

namespace gradtile {

/// Returns [heads], one slope per head. If the head count n is a power of two, the slopes are the geometric
/// sequence 2^(-8/n), 2^(-16/n), ..., 2^-8. Otherwise, p is the largest power of two below n. The slopes are
/// then those for p heads, followed by the first, third, fifth, ... slope for 2p heads, as in the authors'
/// program.
DeviceCopies alibi_slopes(std::int64_t heads);

}  // namespace gradtile
