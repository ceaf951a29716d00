#pragma once
/// INTERNAL. The only choice between the kernels of forward() and backward() on a GPU: from numbers, without
/// a GPU. Tiles, schedules and thresholds are the families' policies (sm80/tiles.h, sm90/tiles.h,
/// sm90/schedule.h, f32/tiles.h, common/few_queries.h), with the measured reason beside each number. The
/// tiles of memory_efficient and flash1 follow from the head dim alone (literature/tiles.cuh).
#include <array>

#include <gradtile/attention/cuda/common/shared_memory_limits.h>
#include <gradtile/attention/internal/flash_plan.h>

namespace gradtile::attention::cuda {

/// One pass of a call: its tensors' dtype, shapes and layouts.
struct FlashProblem {
    Pass pass = Pass::forward;
    DType dtype = DType::bf16;
    std::int64_t batch = 1, queries = 1, keys = 1, heads = 1, key_heads = 1, qk_dim = 64, v_dim = 64;
    /// Why TMA cannot address Q, K and V, and any tensor of the pass but Q's gradient; null if it can. Copies
    /// of tensors that no kernel can read do not count.
    const char *why_no_input_maps = nullptr, *why_no_maps = nullptr;
    bool has_lse_remainder = false, has_d_lse = false, writes_d_sink = false;
    std::array<Tensor, max_biases> d_biases = {};  ///< the bias gradients that the pass writes

    std::int64_t group() const { return key_heads == 0 ? 1 : heads / key_heads; }
    int head_dim() const { return static_cast<int>(qk_dim > v_dim ? qk_dim : v_dim); }
};

/// The GPU and the build for which plan() chooses.
struct GpuLimits {
    /// False in a dry run: the plan is then one for all GPUs, and its scratch memory is enough for every GPU.
    bool is_known = true;
    int processors = 132;
    int shared_bytes = shared_memory_limits[0];  ///< shared memory that a thread block may use
    const char* why_no_sm90 = nullptr;           ///< why kernels of sm_90a cannot run; null if they can
    bool has_candidates = false;                 ///< whether the build has sm90/candidates.h's kernels
};

/// Chooses the kernels for a pass. Throws Error if options.kernels has tiles without a kernel.
FlashPlan plan(const FlashProblem& problem, const ResolvedOptions& options, const GpuLimits& gpu);

/// Whether sm90/candidates.h's tiles have kernels for the pass: for dense bf16 calls without score rules.
bool has_candidate_kernels(const FlashProblem& problem, const ResolvedOptions& options);

/// All plans of a pass that can be reached with Options::kernels; see forward_plans().
std::vector<FlashPlan> plans(const FlashProblem& problem, const ResolvedOptions& options,
                             const GpuLimits& gpu);

/// The options as the kernels of sm80 read them: the bias that differs between rows comes first. It is added
/// last, so that all kernels of both passes round the scores in the same order.
ScoreOptions with_pair_bias_first(const ScoreOptions& scores);

}  // namespace gradtile::attention::cuda
