#include <gradtile/attention/cuda/hopper/hopper.h>

#include <algorithm>
#include <cstdlib>
#include <numbers>
#include <string_view>

#include <gradtile/attention/cuda/hopper/parameters.h>
#include <gradtile/attention/cuda/hopper/tiles.h>
#include <gradtile/core/cuda/internal/cuda_check.h>

namespace gradtile::attention::cuda {
namespace {

bool is_turned_off() {
    const char* const value = std::getenv("GRADTILE_HOPPER_ATTENTION");
    return value != nullptr && value == std::string_view("off");
}

#ifdef GRADTILE_HAVE_HOPPER
/// Says why score rules must not use the Hopper kernels, which take every rule but biases; nullptr if they
/// may.
const char* why_no_rule(const ScoreOptions& scores, double scale) {
    if (scores.scores_are_products) return nullptr;
    if (scores.has_biases()) return "the scores have biases";
    // Kernels divide scores by the scale.
    if (scores.has_formula() && (scale < 0x1p-60 || scale > 0x1p60)) return "the scale is far from 1";
    if (const double softcap = scores.softcap; softcap != 0 && (softcap < 0x1p-60 || softcap > 0x1p60))
        return "the softcap is far from 1";
    return nullptr;
}

/// Code for sm_90a runs on GPUs of compute capability 9.0 only.
bool is_hopper() {
    int device = 0, major = 0, minor = 0;
    gradtile::cuda::cuda_check(cudaGetDevice(&device));
    gradtile::cuda::cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    gradtile::cuda::cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    return major == 9 && minor == 0;
}
#endif

}  // namespace

const char* why_not_hopper(const ResolvedOptions& options, std::initializer_list<Tensor> tensors) {
#ifdef GRADTILE_HAVE_HOPPER
    if (!is_hopper()) return "the GPU is not of compute capability 9.0";
    if (is_turned_off()) return "GRADTILE_HOPPER_ATTENTION is off";
    if (!(options.scale > 0)) return "the scale is not positive";
    if (const char* const why_not = why_no_rule(options.scores, options.scale)) return why_not;
    for (const Tensor& x : tensors) {
        if (x.elements() == 0) return "there are no rows or keys";
        if (!gradtile::cuda::has_tensor_map(x)) return "TMA cannot read the strides";
        if (options.packed && !gradtile::cuda::has_packed_tensor_map(x))
            return "packed sequences lie too low in memory";
    }
    return nullptr;
#else
    static_cast<void>(options);
    static_cast<void>(tensors);
    static_cast<void>(is_turned_off);
    return "this build has no code for sm_90a";
#endif
}

const char* why_not_hopper_backward(const ResolvedOptions& options, const device::Sizes& sizes,
                                    std::int64_t batch_heads, std::initializer_list<Tensor> tensors) {
    const int head_dim = padded_head_dim(Bits16HeadDims{}, std::max(sizes.qk_dim, sizes.v_dim));
    if (!options.packed && options.scores.scores_are_products && head_dim == 64 && sizes.group == 1 &&
        batch_heads >= enough_whole_heads &&
        std::max(options.mask.queries, options.mask.keys) <=
            Bits16BackwardChoice<64>::whole_head_rows(shared_memory_limits[0]))
        return "many short heads have a kernel that keeps dQ in shared memory";
    if (head_dim > hopper_backward_keys_max_head_dim && !options.scores.scores_are_products)
        return "the head dim is more than 128 and the scores have rules";
    return why_not_hopper(options, tensors);
}

DqRing d_q_ring(const ResolvedOptions& options, const device::Sizes& sizes, std::int64_t batch_heads,
                std::int64_t padded_rows) {
    const int head_dim = padded_hopper_head_dim(std::max(sizes.qk_dim, sizes.v_dim));
    const HopperBackwardTiles tiles = hopper_backward_tiles(head_dim);
    if (options.deterministic || options.packed || tiles.adds_in_bulk) return {};
    const std::int64_t key_heads = batch_heads / sizes.group,
                       key_blocks = (options.mask.keys + tiles.keys - 1) / tiles.keys;
    const std::int64_t head_bytes = sizes.group * padded_rows * hopper_backward_row_bytes(head_dim, head_dim);
    std::int64_t set_heads =
        device::TaskOrder(key_heads, static_cast<int>(key_blocks), head_bytes).cached_heads;
    // A task waits for all tasks of the head that used the slot before. The last one of them was taken so
    // many tasks earlier that it is complete, as a rule: two for each multiprocessor of an H100.
    constexpr std::int64_t tasks_between = 2 * 132;
    std::int64_t heads_between = std::max(set_heads, (tasks_between + key_blocks - 1) / key_blocks);
    if (const char* const heads = std::getenv("GRADTILE_D_Q_RING_HEADS"))
        set_heads = heads_between = std::clamp<std::int64_t>(std::atoi(heads), 1, set_heads);
    return {.slots = static_cast<int>(std::min(key_heads, set_heads + heads_between)),
            .set_heads = static_cast<int>(set_heads)};
}

#ifdef GRADTILE_HAVE_HOPPER
void hopper_forward(const Context& ctx, const ResolvedOptions& options, const Tensor& q, const Tensor& k,
                    const Tensor& v, const Tensor& o, const Tensor& lse, PackedTask* row_tasks) {
    const HopperForwardParameters parameters{
        .lse = lse.data<float>(),
        .sizes = device::sizes_of(q, k, v),
        .mask = device::DeviceMask(options.mask),
        .scale_log2 = static_cast<float>(std::numbers::log2e * options.scale),
        .sink = options.scores.sink,
        .sink_stride = options.scores.sink_stride,
        .packed = PackedOffsets(options),
        .row_tasks = {row_tasks},
        .scores = options.scores};
    const auto launch =
        q.dtype() == DType::bf16 ? launch_hopper_forward<bfloat16> : launch_hopper_forward<float16>;
    launch(q, k, v, o, parameters, ctx);
}
void hopper_backward(const Context& ctx, const HopperBackwardTensors& tensors,
                     const Bits16BackwardParameters& parameters) {
    const bool is_bf16 = tensors.q.dtype() == DType::bf16;
    const auto by_keys = is_bf16 ? launch_hopper_backward<bfloat16> : launch_hopper_backward<float16>;
    const auto by_columns =
        is_bf16 ? launch_hopper_backward_columns<bfloat16> : launch_hopper_backward_columns<float16>;
    const int head_dim = std::max(parameters.sizes.qk_dim, parameters.sizes.v_dim);
    (head_dim > hopper_backward_keys_max_head_dim ? by_columns : by_keys)(tensors, parameters, ctx);
}
#else
void hopper_backward(const Context&, const HopperBackwardTensors&, const Bits16BackwardParameters&) {
    throw Error("attention: this build has no code for sm_90a");
}
void hopper_forward(const Context&, const ResolvedOptions&, const Tensor&, const Tensor&, const Tensor&,
                    const Tensor&, const Tensor&, PackedTask*) {
    throw Error("attention: this build has no code for sm_90a");
}
#endif

}  // namespace gradtile::attention::cuda
