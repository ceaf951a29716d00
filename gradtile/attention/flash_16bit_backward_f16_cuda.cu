// The backward kernels of float16.
#include <gradtile/attention/flash_16bit_backward_launch.cuh>

namespace gradtile::attention::cuda {
template void launch_backward<float16>(const BackwardParameters&, cudaStream_t);
}  // namespace gradtile::attention::cuda
