// Chooses the GPU kernels for a flash call by dtype. kernel_candidates.cu lists a call's alternatives for
// measurements.
#include <gradtile/attention/cuda/kernels.h>

namespace gradtile::attention::cuda {

void flash_forward(const Context& ctx, const ResolvedOptions& options, const Saved& saved) {
    const DType dtype = saved.q.dtype();
    const auto kernels = dtype == DType::f64   ? flash_f64_forward
                         : dtype == DType::f32 ? flash_f32_forward
                                               : flash_16bit_forward;
    kernels(ctx, options, saved);
}

void flash_backward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                    const OutputGradients& d_out, const Gradients& into) {
    const DType dtype = saved.q.dtype();
    const auto kernels = dtype == DType::f64   ? flash_f64_backward
                         : dtype == DType::f32 ? flash_f32_backward
                                               : flash_16bit_backward;
    kernels(ctx, options, saved, d_out, into);
}

std::string explain_flash_forward(const Context& ctx, const ResolvedOptions& options, const Tensor& q,
                                  const Tensor& k, const Tensor& v) {
    if (is_16_bit(q.dtype())) return explain_16bit_forward(ctx, options, q, k, v);
    if (q.dtype() == DType::f32) return explain_f32_forward(ctx, options, q, k, v);
    return concat(q.dtype(), " kernels of the GPU",
                  options.packed                       ? ", packed sequences"
                  : options.scores.scores_are_products ? ""
                                                       : ", with score rules");
}

}  // namespace gradtile::attention::cuda
