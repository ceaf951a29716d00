// The forward kernels of bfloat16.
#include <gradtile/attention/cuda/16bit/forward_launch.cuh>

namespace gradtile::attention::cuda {
template void launch_forward<bfloat16>(const Bits16ForwardParameters&, cudaStream_t);
}  // namespace gradtile::attention::cuda
