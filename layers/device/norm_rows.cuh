#pragma once
/// How LayerNorm and RMSNorm lay rows over threads: a team of threads owns a row and holds it in registers,
/// so that memory is read once. Rows that are too long or not made of whole 16-byte vectors are read again
/// from the cache instead.
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/reduce.cuh>
#include <gradtile/layers/device/dropout_factors.cuh>
#include <gradtile/layers/device/vectors.cuh>

namespace gradtile::cuda {
namespace device {

/// `team` threads hold `held` vectors each. Teams of a warp or less share a block.
template <int team_threads, int held_vectors>
struct RowTeam {
    static constexpr int team = team_threads, held = held_vectors;
    static constexpr int threads = team > 32 ? team : held == 4 ? 384 : 256;  // of a block
    static constexpr int teams = threads / team;
    static constexpr int most_vectors = team * held;

    // Backward holds three sums a column in registers, which leaves room for so many threads of a block and
    // blocks of a processor.
    static constexpr int backward_threads = team > 32 ? team : held <= 3 ? 256 : 192;
    static constexpr int backward_teams = backward_threads / team;
    static constexpr int backward_blocks = held == 1 || team == 128 ? 3 : team <= 32 ? 2 : 1;
    // Rows of x, dy and dx in its shared memory: one is worked on while the others arrive. Short ones must be
    // many to keep memory busy.
    static constexpr int fetched_rows = held == 1 ? 4 : 2;
};

constexpr int fetched_tensors = 3;

constexpr int long_row_threads = 256;  // of a block that reads its row again

template <class S>
struct Statistics {
    S mean, rstd;
};

/// x [.., C], or x + branch * factors, which then takes branch's place, -> y; mean is null for the
/// root-mean-square norm, bias when there is none.
template <class T>
struct NormForward {
    DeviceRows<T> y;
    DeviceRows<const T> x;
    DeviceRows<T> branch;
    DropoutFactors factors_of;
    Accumulator<T>*mean, *rstd;
    const T *weight, *bias;
    Accumulator<T> eps;
};

template <class T>
struct NormBackward {
    DeviceRows<T> dx;
    DeviceRows<const T> dy, x;
    const Accumulator<T>*mean, *rstd;
    const T* weight;
    Accumulator<T>* partials;     // [gridDim.x, 2, C]
    Accumulator<T>* column_sums;  // of dx [gridDim.x, C], or null
    bool accumulate_dx;
};

}  // namespace device

/// Calls f(RowTeam) with the smallest team that holds rows of so many vectors, f(nullptr) when none does.
/// 64 16-bit columns, a head, are one vector a lane of a quarter of a warp, 384 three a lane of half a warp,
/// GPT-2's 768, 1024 and 1280 three, four and five of a warp.
template <class F>
void with_row_team(std::int64_t vectors, F&& f) {
    if (vectors <= device::RowTeam<8, 1>::most_vectors) {
        f(device::RowTeam<8, 1>{});
    } else if (vectors <= device::RowTeam<16, 3>::most_vectors) {
        f(device::RowTeam<16, 3>{});
    } else if (vectors <= device::RowTeam<32, 3>::most_vectors) {
        f(device::RowTeam<32, 3>{});
    } else if (vectors <= device::RowTeam<32, 4>::most_vectors) {
        f(device::RowTeam<32, 4>{});
    } else if (vectors <= device::RowTeam<32, 5>::most_vectors) {
        f(device::RowTeam<32, 5>{});
    } else if (vectors <= device::RowTeam<128, 2>::most_vectors) {
        f(device::RowTeam<128, 2>{});
    } else if (vectors <= device::RowTeam<128, 4>::most_vectors) {
        f(device::RowTeam<128, 4>{});
    } else if (vectors <= device::RowTeam<256, 4>::most_vectors) {
        f(device::RowTeam<256, 4>{});
    } else {
        f(nullptr);
    }
}

}  // namespace gradtile::cuda
