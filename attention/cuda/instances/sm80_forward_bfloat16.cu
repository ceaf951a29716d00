#include <gradtile/attention/cuda/sm80/forward.cuh>

namespace gradtile::attention::cuda {
template void launch_forward<bfloat16>(const Bits16ForwardParameters&, const Tiles&, cudaStream_t);
}  // namespace gradtile::attention::cuda
