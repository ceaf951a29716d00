// The forward kernels of float16.
#include <gradtile/attention/cuda/16bit/forward_launch.cuh>

namespace gradtile::attention::cuda {
template void launch_forward<float16>(const Bits16ForwardParameters&, cudaStream_t);
}  // namespace gradtile::attention::cuda
