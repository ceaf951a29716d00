#include <gradtile/attention/cuda/sm80/backward.cuh>

namespace gradtile::attention::cuda {
template void launch_backward<bfloat16>(const Bits16BackwardParameters&, const FlashPlan&, cudaStream_t);
}  // namespace gradtile::attention::cuda
