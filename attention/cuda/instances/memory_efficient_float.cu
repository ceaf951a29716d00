#include <gradtile/attention/cuda/literature/memory_efficient.cuh>

namespace gradtile::attention::cuda::tiled {
template void launch_memory_efficient_forward(const Context&, const TiledForwardParameters<float>&);
template BlockSizes memory_efficient_forward_blocks(const TiledForwardParameters<float>&);
template void launch_memory_efficient_backward(const Context&, const TiledBackwardParameters<float>&);
template BlockSizes memory_efficient_backward_blocks(const TiledBackwardParameters<float>&);
}  // namespace gradtile::attention::cuda::tiled
