// The backward kernels of float16.
#include <gradtile/attention/cuda/16bit/backward_launch.cuh>

namespace gradtile::attention::cuda {
template void launch_backward<float16>(const Bits16BackwardParameters&, cudaStream_t);
}  // namespace gradtile::attention::cuda
