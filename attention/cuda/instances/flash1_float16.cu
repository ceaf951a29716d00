#include <gradtile/attention/cuda/literature/flash1.cuh>

namespace gradtile::attention::cuda::tiled {
template void launch_flash1_forward(const Context&, const TiledForwardParameters<float16>&);
template BlockSizes flash1_forward_blocks(const TiledForwardParameters<float16>&);
template void launch_flash1_backward(const Context&, const TiledBackwardParameters<float16>&);
template BlockSizes flash1_backward_blocks(const TiledBackwardParameters<float16>&);
}  // namespace gradtile::attention::cuda::tiled
