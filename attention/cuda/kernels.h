#pragma once
/// INTERNAL. The CUDA kernels behind Algorithm::flash, one pair per family of dtypes;
/// attention/cuda/dispatch.cpp chooses. Arguments and dry runs as in attention_backend.h: scratch comes from
/// ctx before the return on ctx.is_planning(), work goes to ctx.stream(), the host waits for nothing.
#include <gradtile/attention/internal/attention_backend.h>

namespace gradtile::attention::cuda {

/// float64: plain tiles without tensor cores, for gradient checks on the GPU.
void flash_f64_forward(const Context& ctx, const Resolved& options, const Tensor& q, const Tensor& k,
                       const Tensor& v, const Tensor& o, const Tensor& lse);
void flash_f64_backward(const Context& ctx, const Resolved& options, const Saved& saved, const Tensor& d_o,
                        const Gradients& into);

/// float32, to float32's accuracy, on tensor cores.
void flash_f32_forward(const Context& ctx, const Resolved& options, const Tensor& q, const Tensor& k,
                       const Tensor& v, const Tensor& o, const Tensor& lse);
void flash_f32_backward(const Context& ctx, const Resolved& options, const Saved& saved, const Tensor& d_o,
                        const Gradients& into);

/// bfloat16 and float16.
void flash_16bit_forward(const Context& ctx, const Resolved& options, const Tensor& q, const Tensor& k,
                         const Tensor& v, const Tensor& o, const Tensor& lse);
void flash_16bit_backward(const Context& ctx, const Resolved& options, const Saved& saved, const Tensor& d_o,
                          const Gradients& into);

}  // namespace gradtile::attention::cuda
