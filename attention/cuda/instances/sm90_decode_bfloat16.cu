#include <gradtile/attention/cuda/sm90/decode.cuh>

namespace gradtile::attention::cuda {
template void launch_hopper_decode<bfloat16>(const Context&, const DecodeProblem&, const DecodePlan&,
                                             const decoding::DecodeParameters<bfloat16>&);
}  // namespace gradtile::attention::cuda
