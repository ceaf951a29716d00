#include <gradtile/attention/cuda/sm80/backward.cuh>

namespace gradtile::attention::cuda {
template void launch_backward<float16>(const Bits16BackwardParameters&, const FlashPlan&, cudaStream_t);
}  // namespace gradtile::attention::cuda
