// The forward kernels of float16.
#include <gradtile/attention/flash_16bit_forward_launch.cuh>

namespace gradtile::attention::cuda {
template void launch_forward<float16>(const ForwardParameters&, cudaStream_t);
}  // namespace gradtile::attention::cuda
