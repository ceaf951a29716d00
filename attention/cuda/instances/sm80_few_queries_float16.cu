#include <gradtile/attention/cuda/sm80/few_queries.cuh>

namespace gradtile::attention::cuda {
template void launch_few_queries<float16>(const Bits16ForwardParameters&, const SplitParameters&,
                                          cudaStream_t);
}  // namespace gradtile::attention::cuda
