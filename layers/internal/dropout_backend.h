#pragma once
/// What the two devices implement for dropout.h.
#include <gradtile/layers/dropout.h>

namespace gradtile {

/// The mask of one call. threshold = 0 keeps everything.
struct DropoutMask {
    std::uint64_t seed = 0;
    const std::int32_t* live_seed = nullptr;  ///< when not null the seed is here, to be mixed with `purposes`
    SeedPurposes purposes{};
    std::uint32_t threshold = 0;  ///< dropped when the 16 bits are below it
    double scale = 1.0;
    std::int64_t tokens = 1;  ///< rows a sample
    std::int64_t first_sample = 0;

    /// To be asked for where the numbers are drawn: on the device, when the kernel runs.
    GRADTILE_HOST_DEVICE Philox::Key key() const {
        if (live_seed == nullptr) return philox_key(seed);
        const auto low = static_cast<std::uint32_t>(live_seed[0]);
        const auto high = static_cast<std::uint32_t>(live_seed[1]);
        return philox_key(purposes.mixed_with(std::uint64_t{high} << 32 | low));
    }
};

/// The mask of one call on x, checked.
DropoutMask dropout_mask(double p, const DropoutKey& key, const Tensor& x);

namespace cpu {
/// y = branch * mask * scale (+ x when defined); y may be branch itself.
void dropout(const Context& ctx, const Tensor& y, const Tensor& x, const Tensor& branch,
             const DropoutMask& mask);
}  // namespace cpu
namespace cuda {
void dropout(const Context& ctx, const Tensor& y, const Tensor& x, const Tensor& branch,
             const DropoutMask& mask);
}  // namespace cuda

}  // namespace gradtile
