// The forward kernels of bfloat16.
#include <gradtile/attention/flash_16bit_forward_launch.cuh>

namespace gradtile::attention::cuda {
template void launch_forward<bfloat16>(const ForwardParameters&, cudaStream_t);
}  // namespace gradtile::attention::cuda
