#pragma once
/// Divides the work for an embedding's gradient. Positions are sorted by token, so a token's positions are a
/// run of neighbouring sorted places. A warp adds all short runs that begin in a window of places. A long run
/// is cut into pieces, and a block adds each piece.
#include <gradtile/layers/device/token_sort.cuh>

namespace gradtile::cuda {
namespace device {

constexpr int short_run = 32;   // the maximum length of a short run, in places
constexpr int run_window = 8;   // places per window
constexpr int run_piece = 128;  // places per piece
// A piece's columns are divided over at most this many blocks. Each such block counts finished pieces
// separately.
constexpr int arrival_lanes = 4;

/// A piece of a long run.
struct RunPiece {
    std::int32_t begin, end;  ///< sorted places of the whole run
    std::int32_t index;       ///< index of this piece in the run
    std::int32_t slot;        ///< the run's first partial-sum slot; unused if the run has one piece

    __device__ __forceinline__ int pieces() const { return (end - begin + run_piece - 1) / run_piece; }
};
static_assert(sizeof(RunPiece) == 4 * sizeof(std::int32_t));

/// How many pieces, windows and slots there are. Pieces and windows are in no particular order.
struct RunCounts {
    std::int32_t pieces, windows, slots;
};

/// The token-run arrays in one int32 memory block.
struct TokenRuns {
    SortedTokens sorted;
    std::int64_t count;  ///< number of positions
    std::int32_t vocabulary;
    RunPiece* pieces;
    std::int32_t* windows;  ///< the windows in which short runs begin
    RunCounts* counts;
    std::int32_t* arrivals;  ///< [slots, arrival_lanes]: finished pieces per run; 0 between passes

    __host__ __device__ std::int64_t max_slots() const { return count / (run_piece / 2); }
    std::int64_t max_pieces() const { return count / (short_run + 1); }
    std::int64_t max_windows() const { return ceil_div(count, run_window); }
};

/// The first place after the run that begins at `begin`.
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

/// Makes the piece and window lists. One thread per sorted place.
static __global__ void __launch_bounds__(cut_threads) cut_runs_kernel(const TokenRuns runs) {
    constexpr unsigned warp = 0xffffffffu;
    constexpr int windows = 32 / run_window;  // windows per warp
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
    const bool is_occupied = lane < windows && (shorts >> lane * run_window & ((1u << run_window) - 1)) != 0;
    const unsigned all_occupied = __ballot_sync(warp, is_occupied);
    std::int32_t to = 0;
    if (lane == 0 && all_occupied != 0) to = atomicAdd(&runs.counts->windows, __popc(all_occupied));
    to = __shfl_sync(warp, to, 0) + __popc(all_occupied & ((1u << lane) - 1));
    if (is_occupied) runs.windows[to] = static_cast<std::int32_t>(i / 32 * windows + lane);
    for (std::int64_t a = i; a < runs.max_slots() * arrival_lanes; a += std::int64_t{gridDim.x} * cut_threads)
        runs.arrivals[a] = 0;
}

}  // namespace device

/// Memory for `count` positions, in int32 elements.
inline std::int64_t token_runs_elements(std::int64_t count) {
    const device::TokenRuns sizes{.count = count};
    constexpr std::int64_t piece = sizeof(device::RunPiece) / sizeof(std::int32_t);
    return piece * sizes.max_pieces() + piece + sizes.max_windows() +
           device::arrival_lanes * sizes.max_slots() + sort_scratch(count);
}

inline device::TokenRuns token_runs(std::int32_t* memory, std::int64_t count, std::int32_t vocabulary) {
    device::TokenRuns runs{.count = count, .vocabulary = vocabulary};
    // Pieces are first, because they need the largest alignment.
    runs.pieces = reinterpret_cast<device::RunPiece*>(memory);
    runs.counts = reinterpret_cast<device::RunCounts*>(runs.pieces + runs.max_pieces());
    runs.windows = reinterpret_cast<std::int32_t*>(runs.counts + 1) + 1;
    runs.arrivals = runs.windows + runs.max_windows();
    runs.sorted = sorted_tokens(runs.arrivals + device::arrival_lanes * runs.max_slots(), count, vocabulary);
    return runs;
}

/// Sorts positions by token and makes the run lists. token_runs() then returns the lists' addresses.
inline void find_token_runs(const Context& ctx, std::int32_t* memory, const std::int32_t* tokens,
                            std::int64_t count, std::int32_t vocabulary) {
    using namespace device;
    const TokenRuns runs = token_runs(memory, count, vocabulary);
    std::int32_t* const sort_memory = runs.arrivals + arrival_lanes * runs.max_slots();
    sort_tokens(ctx, sort_memory, tokens, count, vocabulary, reinterpret_cast<std::int32_t*>(runs.counts),
                sizeof(RunCounts) / sizeof(std::int32_t));
    launch(ctx, cut_runs_kernel, blocks_for(count, cut_threads),
           Block{.threads = cut_threads, .starts_early = true}, runs);
}

}  // namespace gradtile::cuda
