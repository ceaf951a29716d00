#pragma once
/// INTERNAL. memory_efficient and flash1, for comparison.
#include <gradtile/attention/cuda/common/scratch.h>

namespace gradtile::attention::cuda {

PlannedForward literature_forward;
PlannedBackward literature_backward;
/// Adds the tiles to a plan for q, k and v, for messages. They depend on the current GPU.
void add_literature_tiles(FlashPlan& plan, const ResolvedOptions& options, const Tensor& q, const Tensor& k,
                          const Tensor& v);

}  // namespace gradtile::attention::cuda
