#include <gradtile/attention/cuda/literature/flash1.cuh>

namespace gradtile::attention::cuda::tiled {
template void launch_flash1_forward(const Context&, const TiledForwardParameters<float>&);
template BlockSizes flash1_forward_blocks(const TiledForwardParameters<float>&);
template void launch_flash1_backward(const Context&, const TiledBackwardParameters<float>&);
template BlockSizes flash1_backward_blocks(const TiledBackwardParameters<float>&);
}  // namespace gradtile::attention::cuda::tiled
