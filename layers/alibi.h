#pragma once
/// The slopes of ALiBi (Press et al. 2022, "Train Short, Test Long: Attention with Linear Biases Enables
/// Input Length Extrapolation", section 3).
#include <vector>

#include <gradtile/layers/device_copies.h>

namespace gradtile {

/// Returns one slope for each head. For a power of two, n heads, the slopes are the geometric sequence
/// 2^(-8/n), 2^(-16/n), ..., 2^-8. For another number of heads, p is the largest power of two below it. The
/// slopes are then those of p heads, followed by the first, third, fifth, ... slope of 2p heads, as in the
/// authors' program.
std::vector<double> alibi_slopes(std::int64_t heads);

/// The slopes as the tensor that attention takes (attention::Options::alibi_slopes).
class AlibiSlopes {
  public:
    explicit AlibiSlopes(std::int64_t heads);
    /// Returns [heads] float32 on ctx's device, see DeviceCopies::on_device.
    Tensor on_device(const Context& ctx) const { return slopes_.on_device(ctx, DType::f32); }

  private:
    DeviceCopies slopes_;
};

}  // namespace gradtile
