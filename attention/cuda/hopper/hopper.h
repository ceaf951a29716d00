#pragma once
/// INTERNAL. Which 16-bit calls the Hopper kernels compute. All others go to the kernels for sm_80 and later.
#include <cuda_runtime_api.h>

#include <gradtile/attention/cuda/16bit/parameters.h>
#include <gradtile/attention/internal/attention_backend.h>

namespace gradtile::attention::cuda {

/// Says why a call must not use the Hopper kernels, or nullptr if it may. `tensors` are all that the kernels
/// copy by TMA. The environment variable GRADTILE_HOPPER_ATTENTION=off turns these kernels off.
const char* why_not_hopper(const ResolvedOptions& options, std::initializer_list<Tensor> tensors);

/// Enqueues the forward pass of a call that may use them.
void hopper_forward(const Context& ctx, const ResolvedOptions& options, const Tensor& q, const Tensor& k,
                    const Tensor& v, const Tensor& o, const Tensor& lse);

}  // namespace gradtile::attention::cuda
