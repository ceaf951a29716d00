#pragma once
/// INTERNAL. Parameters of the Hopper kernels (sm_90a), and the functions that launch them.
#include <cuda_runtime_api.h>

#include <gradtile/attention/cuda/16bit/parameters.h>
#include <gradtile/core/context.h>
#include <gradtile/core/cuda/tensor_map.h>

namespace gradtile::attention::cuda {

struct HopperForwardParameters {
    gradtile::cuda::TensorMap q, k, v;  ///< boxes: the rows of a thread block, and the keys of a block
    gradtile::cuda::TensorMap o;        ///< boxes of 64 rows
    float* lse;                         ///< [B, Hq, Sq], natural log
    device::Sizes sizes;
    device::DeviceMask mask;
    device::TaskOrder order;  ///< of the blocks of rows
    int tasks;
    float scale_log2;   ///< log2(e) * scale, positive
    const float* sink;  ///< null: none
    std::int64_t sink_stride;
};

/// Enqueues the forward pass; fills in the maps, the order and the number of tasks.
template <class T>
void launch_hopper_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                           HopperForwardParameters parameters, const Context& ctx);

}  // namespace gradtile::attention::cuda
