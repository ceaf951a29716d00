#include <gradtile/attention/cuda/literature/flash1.cuh>

namespace gradtile::attention::cuda::tiled {
template void launch_flash1_forward(const Context&, const TiledForwardParameters<double>&);
template BlockSizes flash1_forward_blocks(const TiledForwardParameters<double>&);
template void launch_flash1_backward(const Context&, const TiledBackwardParameters<double>&);
template BlockSizes flash1_backward_blocks(const TiledBackwardParameters<double>&);
}  // namespace gradtile::attention::cuda::tiled
