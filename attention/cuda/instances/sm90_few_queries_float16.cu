#include <gradtile/attention/cuda/sm90/few_queries.cuh>

namespace gradtile::attention::cuda {
template void launch_hopper_few_queries<float16>(const Tensor&, const Tensor&, HopperFewQueriesParameters,
                                                 const Context&);
}  // namespace gradtile::attention::cuda
