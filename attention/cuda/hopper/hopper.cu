#include <gradtile/attention/cuda/hopper/hopper.h>

#include <algorithm>
#include <cstdlib>
#include <numbers>
#include <string_view>

#include <gradtile/attention/cuda/hopper/candidates.h>
#include <gradtile/attention/cuda/hopper/launch_candidate.h>
#include <gradtile/attention/cuda/hopper/parameters.h>
#include <gradtile/attention/cuda/hopper/schedule.h>
#include <gradtile/attention/cuda/hopper/tiles.h>
#include <gradtile/attention/internal/gpu_dtypes.h>
#include <gradtile/attention/internal/kernel_candidates.h>
#include <gradtile/core/internal/cuda_check.h>

namespace gradtile::attention::cuda {
namespace {

bool is_turned_off() {
    const char* const value = std::getenv("GRADTILE_HOPPER_ATTENTION");
    return value != nullptr && value == std::string_view("off");
}

enum class Pass : std::uint8_t { forward, backward };

#ifdef GRADTILE_HAVE_HOPPER
/// Returns why scores with biases must not use the Hopper kernels; nullptr if they may.
const char* why_no_biases(const ScoreOptions& scores, Pass pass, std::initializer_list<Tensor> tensors) {
    // Measured on an H100, 256 sequences x 8 heads x 512 tokens at head dim 32, a mask bias and a pair bias:
    // eight Hopper kernels took 0.59 to 0.75 ms, the kernel for all GPUs 0.58 to 0.62. In the backward pass,
    // with the pair bias gradient, the kernel for all GPUs took 2.35 to 2.77 ms, the Hopper kernels 1.31 to
    // 1.56.
    if (pass == Pass::forward) return "with biases the kernel for all GPUs is as fast";
    if (scores.has_formula() || scores.drops()) return "the scores have biases and other rules";
    for (const Tensor& x : tensors)
        if (x.size(3) > hopper_biases_max_head_dim) return "with biases, the head dim is more than 64";
    return why_no_hopper_biases(scores, tensors.begin()->dtype());
}

/// Returns why score rules other than biases must not use the Hopper kernels; nullptr if they may. The
/// kernels support every such rule, but not every scale and softcap.
const char* why_no_rule(const ScoreOptions& scores, double scale) {
    if (scores.scores_are_products) return nullptr;
    if (scores.alibi_batch_stride != 0) return "the slopes differ from batch to batch";
    // Kernels divide scores by the scale.
    if (scores.has_formula() && (scale < 0x1p-60 || scale > 0x1p60)) return "the scale is far from 1";
    if (const double softcap = scores.softcap; softcap != 0 && (softcap < 0x1p-60 || softcap > 0x1p60))
        return "the softcap is far from 1";
    return nullptr;
}

/// Whether a kernel tile with `columns` columns has panels outside a tensor with `head_dim` columns. In the
/// map for packed sequences, such loads fault: the map begins before the tensor, perhaps where no memory is.
bool has_panel_outside(std::int64_t head_dim, int columns) {
    // The narrowest panels that a kernel has: hopper/backward_columns.cuh.
    const int panel_columns = columns % 128 == 0 || columns == 64 ? 64 : 32;
    return head_dim <= columns - panel_columns;
}
bool has_panel_outside(const Tensor& q, const Tensor& v) {
    const int columns = padded_head_dim(Bits16HeadDims{}, static_cast<int>(std::max(q.size(3), v.size(3)))),
              v_columns = columns == 192 && v.size(3) <= 128 ? 128 : columns;
    return has_panel_outside(q.size(3), columns) || has_panel_outside(v.size(3), v_columns);
}

/// sm_90a code runs only on GPUs with compute capability 9.0.
bool is_hopper() {
    int device = 0, major = 0, minor = 0;
    gradtile::cuda::cuda_check(cudaGetDevice(&device));
    gradtile::cuda::cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    gradtile::cuda::cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    return major == 9 && minor == 0;
}

const char* why_not_hopper_pass(const ResolvedOptions& options, Pass pass,
                                std::initializer_list<Tensor> tensors) {
    if (!is_hopper()) return "the GPU is not of compute capability 9.0";
    if (is_turned_off()) return "GRADTILE_HOPPER_ATTENTION is off";
    if (!forced_kernel_choice().hopper.value_or(true)) return "other kernels are forced";
    if (!(options.scale > 0)) return "the scale is not positive";
    if (const char* const why_not = options.scores.has_biases() ? why_no_biases(options.scores, pass, tensors)
                                                                : why_no_rule(options.scores, options.scale))
        return why_not;
    if (options.packed && has_panel_outside(tensors.begin()[0], tensors.begin()[2]))
        return "the head dims of packed sequences leave whole panels of a tile empty";
    for (const Tensor& x : tensors) {
        if (x.elements() == 0) return "there are no rows or keys";
        if (!gradtile::cuda::has_tensor_map(x)) return "TMA cannot read the strides";
        if (options.packed && !gradtile::cuda::has_packed_tensor_map(x))
            return "packed sequences lie too low in memory";
    }
    return nullptr;
}
#else
const char* why_not_hopper_pass(const ResolvedOptions&, Pass, std::initializer_list<Tensor>) {
    static_cast<void>(is_turned_off);
    return "this build has no code for sm_90a";
}
#endif

#ifdef GRADTILE_HAVE_HOPPER
/// Forced tiles must have a kernel for the call.
void check_has_candidate(bool is_bf16, bool is_packed, bool is_deterministic, const ScoreOptions& scores) {
    check(has_tile_candidates(),
          "attention: no kernels for forced tiles; expected a build with -DGRADTILE_TUNE=ON");
    check(is_bf16 && !is_packed && !is_deterministic && scores.scores_are_products,
          "attention: forced tiles have kernels for dense bf16 calls without score rules only");
}
#endif

}  // namespace

bool has_tile_candidates() {
#ifdef GRADTILE_HAVE_CANDIDATES
    return true;
#else
    return false;
#endif
}

HopperBackwardTiles chosen_hopper_backward_tiles(int head_dim, const ScoreOptions& scores) {
    const auto candidates = hopper_backward_candidates(head_dim);
    const auto number = static_cast<std::size_t>(forced_kernel_choice().backward_tiles.value_or(-1));
    return number < candidates.size() ? candidates[number]
                                      : hopper_backward_tiles(head_dim, takes_registers(hopper_rule(scores)));
}

const char* why_not_hopper(const ResolvedOptions& options, std::initializer_list<Tensor> tensors) {
    return why_not_hopper_pass(options, Pass::forward, tensors);
}

const char* why_not_hopper_few_queries(const ResolvedOptions& options, const FewQueriesPlan& plan,
                                       int head_dim, std::initializer_list<Tensor> tensors) {
    // For other calls the kernel for all GPUs is as fast or faster. Measured on an H100 with `gradtile bench
    // attention` (--queries 64 --length 16384 --batch 8 --heads 16): the Hopper kernel reads 2,750 GB/s and
    // the kernel for all GPUs 2,600 GB/s at head dim 128, 2,170 and 2,510 GB/s at head dim 64.
    if (plan.rows <= 32 && !forced_kernel_choice().hopper.value_or(false)) return "there are at most 32 rows";
    if (head_dim != hopper_few_queries_head_dim) return "the head dim is not 97 to 128";
    if (!options.scores.scores_are_products) return "the scores have rules";
    return why_not_hopper(options, tensors);
}

const char* why_not_hopper_backward(const ResolvedOptions& options, const device::Sizes& sizes,
                                    std::int64_t batch_heads, std::initializer_list<Tensor> tensors) {
    const int head_dim = padded_head_dim(Bits16HeadDims{}, std::max(sizes.qk_dim, sizes.v_dim));
    const bool is_forced = forced_kernel_choice().hopper.value_or(false);
    if (!is_forced && !options.packed && options.scores.scores_are_products && head_dim == 64 &&
        sizes.group == 1 && batch_heads >= enough_whole_heads &&
        std::max(options.mask.queries, options.mask.keys) <=
            Bits16BackwardChoice<64>::whole_head_rows(shared_memory_limits[0]))
        return "many short heads have a kernel that keeps dQ in shared memory";
    if (head_dim > hopper_backward_keys_max_head_dim && !options.scores.scores_are_products)
        return "the head dim is more than 128 and the scores have rules";
    return why_not_hopper_pass(options, Pass::backward, tensors);
}

DqRing d_q_ring(const ResolvedOptions& options, const device::Sizes& sizes, std::int64_t batch_heads,
                std::int64_t padded_rows) {
    const int head_dim = padded_hopper_head_dim(std::max(sizes.qk_dim, sizes.v_dim));
    const HopperBackwardTiles tiles = chosen_hopper_backward_tiles(head_dim, options.scores);
    if (options.deterministic || options.packed || head_dim > hopper_backward_keys_max_head_dim ||
        !tiles.may_sum_in_ring ||
        !forced_kernel_choice().ring.value_or(options.mask.keys <= hopper_ring_max_keys))
        return {};
    const std::int64_t key_heads = batch_heads / sizes.group,
                       key_blocks = (options.mask.keys + tiles.keys - 1) / tiles.keys;
    const std::int64_t head_bytes = sizes.group * padded_rows * hopper_backward_row_bytes(head_dim, head_dim);
    const std::int64_t set_heads =
        hopper_task_order(key_heads, static_cast<int>(key_blocks), head_bytes).cached_heads;
    const std::int64_t more_slots =
        forced_kernel_choice().more_slots.value_or(hopper_more_slots(set_heads, key_blocks));
    return {.slots = static_cast<int>(std::min(key_heads, set_heads + std::max<std::int64_t>(0, more_slots))),
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
    if (const auto tiles = forced_kernel_choice().forward_tiles) {
        check_has_candidate(q.dtype() == DType::bf16, static_cast<bool>(options.packed),
                            /*is_deterministic=*/false, options.scores);
#ifdef GRADTILE_HAVE_CANDIDATES
        visit_head_dim(Bits16HeadDims{}, std::max(parameters.sizes.qk_dim, parameters.sizes.v_dim),
                       [&]<int head_dim>(HeadDim<head_dim>) {
                           launch_hopper_forward_candidate<head_dim>(*tiles, q, k, v, o, parameters, ctx);
                       });
        return;
#endif
    }
    visit_16bit(q.dtype(),
                [&]<class T>(TypeTag<T>) { launch_hopper_forward<T>(q, k, v, o, parameters, ctx); });
}
void hopper_few_queries(const Context& ctx, const Tensor& k, const Tensor& v,
                        const Bits16ForwardParameters& parameters, const SplitParameters& split) {
    visit_16bit(k.dtype(), [&]<class T>(TypeTag<T>) {
        launch_hopper_few_queries<T>(k, v, {.rows = parameters, .split = split}, ctx);
    });
}
void hopper_backward(const Context& ctx, const HopperBackwardTensors& tensors,
                     const Bits16BackwardParameters& parameters) {
    const int head_dim = std::max(parameters.sizes.qk_dim, parameters.sizes.v_dim);
    if (const auto tiles = forced_kernel_choice().backward_tiles) {
        check_has_candidate(tensors.q.dtype() == DType::bf16, static_cast<bool>(parameters.packed),
                            parameters.turns != nullptr, parameters.scores);
        check(head_dim <= hopper_backward_keys_max_head_dim, "attention: forced tiles and a head dim of ",
              head_dim, "; expected at most ", hopper_backward_keys_max_head_dim, " in the backward pass");
#ifdef GRADTILE_HAVE_CANDIDATES
        visit_head_dim(HopperBackwardHeadDims{}, head_dim, [&]<int dim>(HeadDim<dim>) {
            launch_hopper_backward_candidate<dim>(*tiles, tensors, parameters, ctx);
        });
        return;
#endif
    }
    visit_16bit(tensors.q.dtype(), [&]<class T>(TypeTag<T>) {
        if (head_dim > hopper_backward_keys_max_head_dim) {
            launch_hopper_backward_columns<T>(tensors, parameters, ctx);
        } else {
            launch_hopper_backward<T>(tensors, parameters, ctx);
        }
    });
}
void hopper_pair_bias_gradient(const Context& ctx, const HopperBackwardTensors& tensors,
                               const Bits16BackwardParameters& parameters, const BiasGradient& gradient,
                               const BiasGradientParts& parts) {
    visit_16bit(tensors.q.dtype(), [&]<class T>(TypeTag<T>) {
        launch_hopper_pair_bias_gradient<T>(tensors, parameters, gradient, parts, ctx);
    });
}
#else
void hopper_pair_bias_gradient(const Context&, const HopperBackwardTensors&, const Bits16BackwardParameters&,
                               const BiasGradient&, const BiasGradientParts&) {
    throw Error("attention: this build has no code for sm_90a");
}
void hopper_backward(const Context&, const HopperBackwardTensors&, const Bits16BackwardParameters&) {
    throw Error("attention: this build has no code for sm_90a");
}
void hopper_few_queries(const Context&, const Tensor&, const Tensor&, const Bits16ForwardParameters&,
                        const SplitParameters&) {
    throw Error("attention: this build has no code for sm_90a");
}
void hopper_forward(const Context&, const ResolvedOptions&, const Tensor&, const Tensor&, const Tensor&,
                    const Tensor&, const Tensor&, PackedTask*) {
    throw Error("attention: this build has no code for sm_90a");
}
#endif

}  // namespace gradtile::attention::cuda
