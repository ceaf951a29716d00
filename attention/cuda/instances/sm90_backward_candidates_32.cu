#include <gradtile/attention/cuda/sm90/backward_candidate.cuh>

namespace gradtile::attention::cuda {
template void launch_hopper_backward_candidate<32>(int, const HopperBackwardTensors&,
                                                   const Bits16BackwardParameters&, const Context&);
}  // namespace gradtile::attention::cuda
