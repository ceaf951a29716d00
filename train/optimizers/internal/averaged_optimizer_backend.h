#pragma once
/// The device functions behind averaged_optimizer.h.
#include <gradtile/core/host_device.h>
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/train/optimizers/averaged_optimizer.h>

namespace gradtile {

struct AverageStep {
    Tensor updates;  ///< [1] int32
    double decay = 0.0;
    Tensor gradient_scale = {};  ///< see UpdateOptions
};

/// The part of the difference that update t adds to the average.
GRADTILE_HOST_DEVICE inline double average_share(std::int32_t t, double decay) {
    const double of_mean = 1.0 / t;
    return of_mean > 1.0 - decay ? of_mean : 1.0 - decay;
}

}  // namespace gradtile

namespace gradtile::cpu {
/// Adds 1 to `updates`, unless the gradient scale is 0.
void count_update(const Context& ctx, const Tensor& updates, const Tensor& gradient_scale);
/// Adds the weights to the average, unless the gradient scale is 0. Both are contiguous and of one dtype.
void average_weights(const Context& ctx, const Tensor& weights, const Tensor& average,
                     const AverageStep& step);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
GRADTILE_CUDA_TWIN(count_update);
GRADTILE_CUDA_TWIN(average_weights);
}  // namespace gradtile::cuda
