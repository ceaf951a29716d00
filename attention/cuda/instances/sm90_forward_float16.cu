#include <gradtile/attention/cuda/sm90/forward.cuh>

namespace gradtile::attention::cuda {
template void launch_hopper_forward<float16>(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                             HopperForwardParameters, const Tiles&, const Context&);
}  // namespace gradtile::attention::cuda
