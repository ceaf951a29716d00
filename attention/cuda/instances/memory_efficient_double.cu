#include <gradtile/attention/cuda/literature/memory_efficient.cuh>

namespace gradtile::attention::cuda::tiled {
template void launch_memory_efficient_forward(const Context&, const TiledForwardParameters<double>&);
template BlockSizes memory_efficient_forward_blocks(const TiledForwardParameters<double>&);
template void launch_memory_efficient_backward(const Context&, const TiledBackwardParameters<double>&);
template BlockSizes memory_efficient_backward_blocks(const TiledBackwardParameters<double>&);
}  // namespace gradtile::attention::cuda::tiled
