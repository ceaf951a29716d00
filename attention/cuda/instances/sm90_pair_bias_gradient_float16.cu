#include <gradtile/attention/cuda/sm90/pair_bias_gradient.cuh>

namespace gradtile::attention::cuda {
template void launch_hopper_pair_bias_gradient<float16>(const HopperBackwardTensors&,
                                                        const Bits16BackwardParameters&, const BiasGradient&,
                                                        const BiasGradientParts&, const Context&);
}  // namespace gradtile::attention::cuda
