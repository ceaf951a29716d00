#pragma once
/// INTERNAL. The plan of one pass of a call on a GPU: which kernels compute it, with which tiles and
/// schedule, and which scratch memory they need. cuda/plan.h makes plans, cuda/flash.cu runs them.
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include <gradtile/attention/internal/attention_backend.h>

namespace gradtile::attention {

enum class Pass : std::uint8_t { forward, backward };

/// Kernels that belong together.
enum class Family : std::uint8_t {
    naive,     ///< matrix products that store S and P
    pairwise,  ///< float64: pair by pair, without tensor cores
    f32,       ///< float32 on tensor cores, two binary16 numbers for a value
    few_f32,   ///< few queries in float32; the keys are split
    sm80,      ///< 16 bits, for all GPUs
    few_sm80,  ///< few queries in 16 bits, for all GPUs
    sm90,      ///< 16 bits, for compute capability 9.0: wgmma and TMA
    few_sm90,  ///< few queries in 16 bits, for compute capability 9.0
    memory_efficient,
    flash1
};
constexpr bool takes_few_queries(Family family) {
    return family == Family::few_f32 || family == Family::few_sm80 || family == Family::few_sm90;
}
std::ostream& operator<<(std::ostream& out, Family family);

/// The score options that a kernel for all GPUs is compiled for. A kernel for few options has registers for
/// larger tiles.
enum class RuleKind : std::uint8_t {
    none,       ///< scores are products; only a sink may be added
    dropout,    ///< the same with dropout
    pair_bias,  ///< a bias that is read in query-key tiles, and perhaps a key bias
    any
};

/// Tiles of a thread block. Numbers that do not apply to the family are 0.
struct Tiles {
    int head_dim = 0;                   ///< columns of Q, K and V in the kernel; missing ones are zeros
    int consumers = 0;                  ///< consumer warpgroups
    int rows = 0, keys = 0;             ///< per thread block
    int stages = 0, q_stages = 0;       ///< shared-memory stages: K and V (backward: dQ); Q
    bool q_in_registers = false;        ///< whether consumers keep Q in registers
    std::optional<bool> in_turns = {};  ///< whether consumers start their products in turns
    std::optional<int> candidate = {};  ///< index among the tiles that only `--tune` uses
    int shared_limit = 0;               ///< shared-memory bytes that a thread block may use

    bool operator==(const Tiles&) const = default;
};

/// How few queries are divided into thread blocks. heads_together = 0: the call has kernels for many queries.
struct FewQueriesPlan {
    int heads_together = 0;              ///< query heads per thread block
    int rows = 0;                        ///< rows per thread block
    int splits = 1, keys_per_split = 0;  ///< keys_per_split is divisible by FewQueriesTiles::keys
    std::int64_t blocks_per_split = 0;
    int concurrent_blocks = 0;  ///< thread blocks that can run at the same time

    explicit operator bool() const { return heads_together > 0; }
    bool operator==(const FewQueriesPlan&) const = default;
};

/// How the 16-bit backward kernels sum dQ.
enum class DqAddition : std::uint8_t {
    in_ring,          ///< for the heads in flight only
    by_threads,       ///< for all heads; each thread adds its own dQ part
    in_bulk,          ///< for all heads; one thread adds in bulk
    in_shared_memory  ///< each thread block computes a whole head
};
std::ostream& operator<<(std::ostream& out, DqAddition sums);

/// The order and division of the work.
struct Schedule {
    /// Batches that one launch computes, and its heads per TaskOrder set (0: set at the launch).
    struct Launch {
        std::int64_t first_batch = 0, batches = 0;
        int set_heads = 0;
        bool operator==(const Launch&) const = default;
    };
    std::vector<Launch> launches = {};
    std::optional<bool> pairs = {};  ///< whether a forward task is a pair of row blocks
    FewQueriesPlan few_queries = {};
    std::optional<DqAddition> d_q_addition = {};
    int ring_slots = 0;  ///< slots of the dQ accumulator ring
    int splits = 0;      ///< memory_efficient and flash1: thread blocks per K/V head; 0: one per row block
    int pair_bias = -1;  ///< the bias whose gradient is computed in tiles, or -1
    int pair_bias_parts = 1;  ///< parts into which that gradient's sum is divided

    int set_heads() const { return launches.empty() ? 0 : launches.front().set_heads; }
    bool operator==(const Schedule&) const = default;
};

/// The purpose of a scratch tensor.
enum class ScratchUse : std::uint8_t {
    split_o,     ///< each split's O
    split_lse,   ///< each split's LSE
    row_tasks,   ///< packed sequences' row blocks
    key_tasks,   ///< packed sequences' key blocks
    row_ranges,  ///< row ranges, and what they say about each key block
    magnitudes,  ///< largest |x| of each input and head
    lse,         ///< LSE in the form that the kernels read
    delta,       ///< D
    statistics,  ///< LSE and D in padded rows
    d_q_sums,    ///< float32 dQ accumulators
    turns,       ///< turn counters, started tasks, ring counters
    bias_sums,   ///< parts of a bias gradient
    d_q_parts,   ///< dQ of each split
    remainders,  ///< LSE remainders
    scores,      ///< S, later P
    d_scores,    ///< dS
    derivatives  ///< score derivatives
};
struct ScratchTensor {
    ScratchUse use;
    Shape shape;
    DType dtype;
};

struct FlashPlan {
    Family family = Family::naive;
    Pass pass = Pass::forward;
    RuleKind rule = RuleKind::none;  ///< of the kernels for all GPUs
    Tiles tiles = {};
    Schedule schedule = {};
    /// All scratch memory except copies of tensors whose layout kernels cannot read or write. If the GPU is
    /// unknown, it is enough for every GPU.
    std::vector<ScratchTensor> scratch = {};
    bool is_packed = false;
    const char* rules = "";    ///< for messages: the score options that the kernels apply
    std::string why = {};      ///< the reason for the family
    KernelChoice choice = {};  ///< the Options::kernels that give this plan

    std::size_t scratch_bytes() const;
    /// Whether both plans start the same kernels in the same way.
    bool runs_like(const FlashPlan& other) const {
        return family == other.family && rule == other.rule && tiles == other.tiles &&
               schedule == other.schedule;
    }
};
/// One line: the family, tiles, schedule and reason.
std::ostream& operator<<(std::ostream& out, const FlashPlan& plan);

/// The plans for one pass of a flash2 call on a GPU; the first one is chosen without Options::kernels, and no
/// two run alike. The arguments are those of forward() and backward(). Throws Error in a build without the
/// CUDA toolkit.
std::vector<FlashPlan> forward_plans(const Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                                     const Options& options);
std::vector<FlashPlan> backward_plans(const Context& ctx, const Options& options, const Saved& saved);
/// Says how to get a build with tile candidates; nullptr if this build has them.
const char* why_no_tile_candidates();

namespace cuda {
/// See explain_forward() in attention.h.
GRADTILE_CUDA_FUNCTION(ExplainFunction, explain);
/// All plans for one pass. For a forward pass, saved.o and saved.lse may be undefined.
GRADTILE_CUDA_FUNCTION(std::vector<FlashPlan>(const Context& ctx, Pass pass, const ResolvedOptions& options,
                                              const Saved& saved),
                       pass_plans);
GRADTILE_CUDA_FUNCTION(bool(), has_tile_candidates);
}  // namespace cuda

}  // namespace gradtile::attention
