#include <gradtile/attention/cuda/sm90/decode.cuh>

namespace gradtile::attention::cuda {
template void launch_hopper_decode<float16>(const Context&, const DecodeProblem&, const DecodePlan&,
                                            const decoding::DecodeParameters<float16>&);
}  // namespace gradtile::attention::cuda
