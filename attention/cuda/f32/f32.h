#pragma once
/// INTERNAL. float32 on tensor cores, with float32 accuracy.
#include <gradtile/attention/cuda/common/scratch.h>

namespace gradtile::attention::cuda {

PlannedForward f32_forward, few_queries_f32_forward;
PlannedBackward f32_backward;

}  // namespace gradtile::attention::cuda
