#pragma once
/// How LayerNorm and RMSNorm distribute rows over threads. A team of threads processes a row and holds it in
/// registers, so that memory is read once. Rows that are too long, or do not consist of whole 16-byte
/// vectors, are read several times instead; the later reads hit the cache.
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/reduce.cuh>
#include <gradtile/layers/device/dropout_factors.cuh>
#include <gradtile/layers/device/vectors.cuh>

namespace gradtile::cuda {
namespace device {

/// A team of `team` threads that hold `held` vectors each. Teams of at most one warp share a block.
template <int team_threads, int held_vectors>
struct RowTeam {
    static constexpr int team = team_threads, held = held_vectors;
    static constexpr int threads = team > 32 ? team : held == 4 ? 384 : 256;  // threads per block
    static constexpr int teams = threads / team;
    static constexpr int max_vectors = team * held;

    // Backward holds three sums per column in registers. Their size limits the threads per block and the
    // blocks per multiprocessor.
    static constexpr int backward_threads = team > 32 ? team : held <= 3 ? 256 : 192;
    static constexpr int backward_teams = backward_threads / team;
    static constexpr int backward_blocks = held == 1 || team == 128 ? 3 : team <= 32 ? 2 : 1;
    // Rows in a team's shared memory: one is processed while the others are loaded. Short rows need more to
    // use the memory bandwidth.
    static constexpr int fetched_rows = held == 1 ? 4 : 2;
};

constexpr int fetched_tensors = 3;  // x, dy and dx

constexpr int long_row_threads = 256;  // threads per block for a row that is not held in registers

template <class S>
struct Statistics {
    S mean, rstd;
};

/// Arguments for y = norm(x), or for y = norm(x + branch * factors), which also stores the sum in branch.
/// mean is null for RMSNorm; bias is null if there is none.
template <class T>
struct NormForward {
    DeviceRows<T> y;
    DeviceRows<const T> x;
    DeviceRows<T> branch;
    DropoutFactors factors_of;
    Accumulator<T>*mean, *rstd;
    const T *weight, *bias;
    Accumulator<T> eps, weight_offset;
};

template <class T>
struct NormBackward {
    DeviceRows<T> dx;
    DeviceRows<const T> dy, x;
    const Accumulator<T>*mean, *rstd;
    const T* weight;
    Accumulator<T> weight_offset;
    Accumulator<T>* partials;     // [gridDim.x, 2, C]
    Accumulator<T>* column_sums;  // dx's partial column sums [gridDim.x, C], or null
    bool accumulate_dx;
};

}  // namespace device

/// Calls f(RowTeam) with the smallest team that holds rows of `vectors` vectors, or f(nullptr) if no team
/// does. Examples for 16-bit rows: with 64 columns (a head), each of 8 threads holds one vector; with 384
/// columns, each of 16 threads holds three; with GPT-2's 768, 1024 and 1280 columns, each of 32 threads holds
/// three, four and five.
template <class F>
void with_row_team(std::int64_t vectors, F&& f) {
    if (vectors <= device::RowTeam<8, 1>::max_vectors) {
        f(device::RowTeam<8, 1>{});
    } else if (vectors <= device::RowTeam<16, 3>::max_vectors) {
        f(device::RowTeam<16, 3>{});
    } else if (vectors <= device::RowTeam<32, 3>::max_vectors) {
        f(device::RowTeam<32, 3>{});
    } else if (vectors <= device::RowTeam<32, 4>::max_vectors) {
        f(device::RowTeam<32, 4>{});
    } else if (vectors <= device::RowTeam<32, 5>::max_vectors) {
        f(device::RowTeam<32, 5>{});
    } else if (vectors <= device::RowTeam<128, 2>::max_vectors) {
        f(device::RowTeam<128, 2>{});
    } else if (vectors <= device::RowTeam<128, 4>::max_vectors) {
        f(device::RowTeam<128, 4>{});
    } else if (vectors <= device::RowTeam<256, 4>::max_vectors) {
        f(device::RowTeam<256, 4>{});
    } else {
        f(nullptr);
    }
}

}  // namespace gradtile::cuda
