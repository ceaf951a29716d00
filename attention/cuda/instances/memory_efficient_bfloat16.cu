#include <gradtile/attention/cuda/literature/memory_efficient.cuh>

namespace gradtile::attention::cuda::tiled {
template void launch_memory_efficient_forward(const Context&, const TiledForwardParameters<bfloat16>&);
template BlockSizes memory_efficient_forward_blocks(const TiledForwardParameters<bfloat16>&);
template void launch_memory_efficient_backward(const Context&, const TiledBackwardParameters<bfloat16>&);
template BlockSizes memory_efficient_backward_blocks(const TiledBackwardParameters<bfloat16>&);
}  // namespace gradtile::attention::cuda::tiled
