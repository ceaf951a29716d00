#include <gradtile/attention/cuda/sm90/backward.cuh>

namespace gradtile::attention::cuda {
template void launch_hopper_backward<float16>(const HopperBackwardTensors&, const Bits16BackwardParameters&,
                                              const Context&);
}  // namespace gradtile::attention::cuda
