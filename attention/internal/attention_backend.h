#pragma once
/// INTERNAL. What the devices implement for attention.h. Arguments are checked and options resolved. All of
/// them are called in dry runs too: they allocate scratch from ctx, then return if ctx.is_planning().
#include <gradtile/attention/attention.h>
#include <gradtile/attention/mask.h>

namespace gradtile::attention {

/// Options that every algorithm needs, resolved against the shapes.
struct Resolved {
    double scale = 1.0;
    Mask mask;
    bool deterministic = false;  ///< for CUDA; the CPU always is
};

namespace cpu {
void naive_forward(const Context& ctx, const Resolved& options, const Tensor& q, const Tensor& k,
                   const Tensor& v, const Tensor& o, const Tensor& lse);
void naive_backward(const Context& ctx, const Resolved& options, const Saved& saved, const Tensor& d_o,
                    const Gradients& into);
void flash_forward(const Context& ctx, const Resolved& options, const Tensor& q, const Tensor& k,
                   const Tensor& v, const Tensor& o, const Tensor& lse);
void flash_backward(const Context& ctx, const Resolved& options, const Saved& saved, const Tensor& d_o,
                    const Gradients& into);
}  // namespace cpu

namespace cuda {
void naive_forward(const Context& ctx, const Resolved& options, const Tensor& q, const Tensor& k,
                   const Tensor& v, const Tensor& o, const Tensor& lse);
void naive_backward(const Context& ctx, const Resolved& options, const Saved& saved, const Tensor& d_o,
                    const Gradients& into);
void flash_forward(const Context& ctx, const Resolved& options, const Tensor& q, const Tensor& k,
                   const Tensor& v, const Tensor& o, const Tensor& lse);
void flash_backward(const Context& ctx, const Resolved& options, const Saved& saved, const Tensor& d_o,
                    const Gradients& into);
}  // namespace cuda

}  // namespace gradtile::attention
