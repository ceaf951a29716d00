#pragma once
/// INTERNAL. The functions that run a plan, for each group of families. They copy tensors whose layout
/// kernels cannot read, allocate the plan's scratch memory, and then, unless ctx.is_planning(), enqueue the
/// kernels on ctx.stream(). Other arguments are as in attention_backend.h.
#include <gradtile/attention/cuda/f32/f32.h>
#include <gradtile/attention/cuda/literature/literature.h>

namespace gradtile::attention::cuda {

/// Every dtype, with matrix products that store S and P.
PlannedForward naive_forward;
PlannedBackward naive_backward;

/// float64 without tensor cores, for gradient checks on the GPU.
PlannedForward pairwise_forward;
PlannedBackward pairwise_backward;

/// bfloat16 and float16: sm80 and sm90, also few queries.
PlannedForward flash_16bit_forward;
PlannedBackward flash_16bit_backward;

}  // namespace gradtile::attention::cuda
