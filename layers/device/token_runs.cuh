#pragma once
/// What to add for the gradient of an embedding: positions sorted by token, cut into work. A token's
/// positions are a run of sorted places. A short run is one warp's, who takes all that begin in a window of
/// places; a long one is cut into pieces of one block each.
#include <gradtile/layers/device/token_sort.cuh>

namespace gradtile::cuda {
namespace device {

constexpr int short_run = 32;  // places at most
constexpr int run_window = 8;
constexpr int run_piece = 128;
constexpr int arrival_lanes = 4;  // groups of columns whose blocks are counted each for itself

/// A block's part of a long run.
struct RunPiece {
    std::int32_t begin, end;  ///< sorted places of the whole run
    std::int32_t index;       ///< of the piece in it
    std::int32_t slot;        ///< of the run's first partial sum; a run of one piece has none

    __device__ __forceinline__ int pieces() const { return (end - begin + run_piece - 1) / run_piece; }
};
static_assert(sizeof(RunPiece) == 4 * sizeof(std::int32_t));

/// How much there is of each; the order within pieces and windows is any.
struct RunCounts {
    std::int32_t pieces, windows, slots;
};

/// Where in a block of int32 elements things are.
struct TokenRuns {
    SortedTokens sorted;
    std::int64_t count;  ///< of positions
    std::int32_t vocabulary;
    RunPiece* pieces;
    std::int32_t* windows;  ///< that short runs begin in
    RunCounts* counts;
    std::int32_t* arrivals;  ///< [slots, arrival_lanes]: of a run's blocks; 0 between passes

    __host__ __device__ std::int64_t most_slots() const { return count / (run_piece / 2); }
    std::int64_t most_pieces() const { return count / (short_run + 1); }
    std::int64_t most_windows() const { return ceil_div(count, run_window); }
};

/// The place behind the run that begins at `begin`.
__device__ __forceinline__ std::int64_t run_end(const std::int32_t* keys, std::int64_t begin,
                                                std::int64_t count) {
    const std::int32_t token = keys[begin];
    std::int64_t inside = begin, outside = count;
    while (outside - inside > 1) {
        const std::int64_t middle = (inside + outside) / 2;
        (keys[middle] == token ? inside : outside) = middle;
    }
    return outside;
}

constexpr int cut_threads = 256;

/// One thread a sorted place.
static __global__ void __launch_bounds__(cut_threads) cut_runs_kernel(const TokenRuns runs) {
    constexpr unsigned warp = 0xffffffffu;
    constexpr int windows = 32 / run_window;  // of a warp
    const std::int64_t i = blockIdx.x * std::int64_t{cut_threads} + threadIdx.x;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    await_predecessor();
    const std::int32_t* const keys = runs.sorted.keys;
    const auto token_at = [&](std::int64_t place) { return place < runs.count ? keys[place] : -1; };
    const std::int32_t token = token_at(i);
    const bool begins = token >= 0 && token < runs.vocabulary && (i == 0 || keys[i - 1] != token);
    const bool is_long = begins && token_at(i + short_run) == token;
    if (is_long) {
        RunPiece piece{.begin = static_cast<std::int32_t>(i),
                       .end = static_cast<std::int32_t>(run_end(keys, i, runs.count)),
                       .index = 0,
                       .slot = 0};
        const int pieces = piece.pieces();
        if (pieces > 1) piece.slot = atomicAdd(&runs.counts->slots, pieces);
        RunPiece* const to = runs.pieces + atomicAdd(&runs.counts->pieces, pieces);
        for (int i_piece = 0; i_piece < pieces; ++i_piece) {
            piece.index = i_piece;
            to[i_piece] = piece;
        }
    }
    const unsigned shorts = __ballot_sync(warp, begins && !is_long);
    const bool wanted = lane < windows && (shorts >> lane * run_window & ((1u << run_window) - 1)) != 0;
    const unsigned all_wanted = __ballot_sync(warp, wanted);
    std::int32_t to = 0;
    if (lane == 0 && all_wanted != 0) to = atomicAdd(&runs.counts->windows, __popc(all_wanted));
    to = __shfl_sync(warp, to, 0) + __popc(all_wanted & ((1u << lane) - 1));
    if (wanted) runs.windows[to] = static_cast<std::int32_t>(i / 32 * windows + lane);
    for (std::int64_t a = i; a < runs.most_slots() * arrival_lanes;
         a += std::int64_t{gridDim.x} * cut_threads)
        runs.arrivals[a] = 0;
}

}  // namespace device

/// int32 elements of memory that so many positions take.
inline std::int64_t token_runs_elements(std::int64_t count) {
    const device::TokenRuns sizes{.count = count};
    constexpr std::int64_t piece = sizeof(device::RunPiece) / sizeof(std::int32_t);
    return piece * sizes.most_pieces() + piece + sizes.most_windows() +
           device::arrival_lanes * sizes.most_slots() + sort_scratch(count);
}

inline device::TokenRuns token_runs(std::int32_t* memory, std::int64_t count, std::int32_t vocabulary) {
    device::TokenRuns runs{.count = count, .vocabulary = vocabulary};
    runs.pieces = reinterpret_cast<device::RunPiece*>(memory);  // first, for their alignment
    runs.counts = reinterpret_cast<device::RunCounts*>(runs.pieces + runs.most_pieces());
    runs.windows = reinterpret_cast<std::int32_t*>(runs.counts + 1) + 1;
    runs.arrivals = runs.windows + runs.most_windows();
    runs.sorted = sorted_tokens(runs.arrivals + device::arrival_lanes * runs.most_slots(), count, vocabulary);
    return runs;
}

/// Sorts and cuts; token_runs() tells afterwards where everything is.
inline void find_token_runs(const Context& ctx, std::int32_t* memory, const std::int32_t* tokens,
                            std::int64_t count, std::int32_t vocabulary) {
    using namespace device;
    const TokenRuns runs = token_runs(memory, count, vocabulary);
    std::int32_t* const sort_memory = runs.arrivals + arrival_lanes * runs.most_slots();
    sort_tokens(ctx, sort_memory, tokens, count, vocabulary, reinterpret_cast<std::int32_t*>(runs.counts),
                sizeof(RunCounts) / sizeof(std::int32_t));
    launch(ctx, cut_runs_kernel, blocks_for(count, cut_threads),
           Block{.threads = cut_threads, .starts_early = true}, runs);
}

}  // namespace gradtile::cuda
