#include <gradtile/attention/cuda/sm90/forward_candidate.cuh>

namespace gradtile::attention::cuda {
template void launch_hopper_forward_candidate<64>(int, const Tensor&, const Tensor&, const Tensor&,
                                                  const Tensor&, const HopperForwardParameters&,
                                                  const Context&);
}  // namespace gradtile::attention::cuda
