#include <gradtile/attention/cuda/literature/flash1.cuh>

namespace gradtile::attention::cuda::tiled {
template void launch_flash1_forward(const Context&, const TiledForwardParameters<bfloat16>&);
template BlockSizes flash1_forward_blocks(const TiledForwardParameters<bfloat16>&);
template void launch_flash1_backward(const Context&, const TiledBackwardParameters<bfloat16>&);
template BlockSizes flash1_backward_blocks(const TiledBackwardParameters<bfloat16>&);
}  // namespace gradtile::attention::cuda::tiled
