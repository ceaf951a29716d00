#pragma once
/// What the two devices implement for dropout.h.
#include <gradtile/layers/dropout.h>

namespace gradtile {

/// The mask of one call. threshold = 0 keeps everything.
struct DropoutMask {
    Philox::Key key{};
    std::uint32_t threshold = 0;  ///< dropped when the 16 bits are below it
    double scale = 1.0;
    std::int64_t tokens = 1;  ///< rows a sample
    std::int64_t first_sample = 0;
};

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
