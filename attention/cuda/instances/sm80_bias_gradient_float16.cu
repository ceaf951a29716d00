#include <gradtile/attention/cuda/sm80/bias_gradient.cuh>
#include <gradtile/attention/cuda/sm80/pair_bias_gradient.cuh>

namespace gradtile::attention::cuda {
template void launch_bias_gradient<float16>(const Bits16BackwardParameters&, const Tiles&,
                                            const BiasGradient&, cudaStream_t);
template void launch_pair_bias_gradient<float16>(const Bits16BackwardParameters&, const Tiles&,
                                                 const BiasGradient&, const BiasGradientParts&, cudaStream_t);
}  // namespace gradtile::attention::cuda
