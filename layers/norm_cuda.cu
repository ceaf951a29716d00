// LayerNorm and RMSNorm on the GPU.
#include <gradtile/core/internal/data_or_null.h>
#include <gradtile/layers/internal/norm_backend.h>
#include <gradtile/core/cuda/device/async_copy.cuh>
#include <gradtile/layers/device/norm_rows.cuh>
#include <gradtile/layers/device/partial_sums.cuh>

namespace gradtile::cuda {
namespace {

using namespace device;

// ---- Forward ----

/// Computes the variance from differences to the mean, which avoids cancellation. The row is in registers.
template <class Team, class T, int n, class S = Accumulator<T>>
__device__ __forceinline__ Statistics<S> statistics_of(const S (&x)[Team::held][n], int lane, int vectors,
                                                       bool centred, S eps) {
    const S count = static_cast<S>(vectors * n);
    S mean = 0, squares = 0;
    if (centred) {
        S sum = 0;
#pragma unroll
        for (int k = 0; k < Team::held; ++k)
#pragma unroll
            for (int i = 0; i < n; ++i) sum += x[k][i];  // x is zero beyond the row's end
        mean = reduce_team<Team::team>(sum, Sum{}) / count;
    }
#pragma unroll
    for (int k = 0; k < Team::held; ++k) {
        if (lane + k * Team::team >= vectors) break;
#pragma unroll
        for (int i = 0; i < n; ++i) squares += (x[k][i] - mean) * (x[k][i] - mean);
    }
    return {mean, 1 / sqrt(reduce_team<Team::team>(squares, Sum{}) / count + eps)};
}

/// x += branch * factors, rounded to T. Also stores the sum in branch.
template <class T, int n, class S = Accumulator<T>>
__device__ __forceinline__ void add_branch(S (&x)[n], T* branch, const DropoutFactors& factors_of,
                                           Philox::Key key, Place place) {
    S values[n], factors[n];
    load<n>(values, branch);
#pragma unroll
    for (int i = 0; i < n; ++i) factors[i] = 1;
    if constexpr (n == dropout_group)
        if (factors_of.mask.threshold != 0) factors_of.draw(factors, key, place);
#pragma unroll
    for (int i = 0; i < n; ++i) x[i] = values[i] * factors[i] + x[i];
    const uint4 sum = pack<T>(x);
    *reinterpret_cast<uint4*>(branch) = sum;
    unpack<T>(x, sum);
}

template <class Team, class T, bool adds>
__global__ void __launch_bounds__(Team::threads) held_forward_kernel(const NormForward<T> norm) {
    using S = Accumulator<T>;
    constexpr int n = vector_length<T>;
    const int lane = threadIdx.x % Team::team, vectors = static_cast<int>(norm.x.layout.width / n);
    // From the last row to the first, see map_rows.cuh.
    const std::int64_t row =
        (gridDim.x - 1 - blockIdx.x) * std::int64_t{Team::teams} + threadIdx.x / Team::team;
    const bool has_row = row < norm.x.layout.rows;  // lanes without a row still take part in reductions
    S x[Team::held][n] = {};
    await_predecessor();
    const T* from = norm.x[has_row ? row : 0];
#pragma unroll
    for (int k = 0; k < Team::held; ++k) {
        const int vector = lane + k * Team::team;
        if (has_row && vector < vectors) load<n>(x[k], from + vector * n);
    }
    if constexpr (adds) {
        const Philox::Key key = norm.factors_of.mask.key();
        T* branch = norm.branch[has_row ? row : 0];
#pragma unroll
        for (int k = 0; k < Team::held; ++k) {
            const int vector = lane + k * Team::team;
            if (has_row && vector < vectors)
                add_branch<T>(x[k], branch + vector * n, norm.factors_of, key, {row, vector * n});
        }
    }
    const auto statistics = statistics_of<Team, T>(x, lane, vectors, norm.mean != nullptr, norm.eps);
    if (!has_row) return;
    if (lane == 0) {
        if (norm.mean != nullptr) norm.mean[row] = statistics.mean;
        norm.rstd[row] = statistics.rstd;
    }
    T* to = norm.y[row];
#pragma unroll
    for (int k = 0; k < Team::held; ++k) {
        const int vector = lane + k * Team::team;
        if (vector >= vectors) break;
        S weight[n], bias[n] = {};
        load<n>(weight, norm.weight + vector * n);
        if (norm.bias != nullptr) load<n>(bias, norm.bias + vector * n);
#pragma unroll
        for (int i = 0; i < n; ++i)
            x[k][i] =
                (x[k][i] - statistics.mean) * statistics.rstd * (norm.weight_offset + weight[i]) + bias[i];
        store<n>(to + vector * n, x[k]);
    }
}

/// One block per row, for any width.
template <class T>
__global__ void __launch_bounds__(long_row_threads) long_forward_kernel(const NormForward<T> norm) {
    using S = Accumulator<T>;
    const std::int64_t row = blockIdx.x, width = norm.x.layout.width;
    const T* x = norm.x[row];
    T* y = norm.y[row];
    S sum = 0, mean = 0, squares = 0;
    if (norm.mean != nullptr) {
        for (std::int64_t i = threadIdx.x; i < width; i += long_row_threads) sum += device::convert<S>(x[i]);
        mean = reduce_team<long_row_threads>(sum, Sum{}) / static_cast<S>(width);
    }
    for (std::int64_t i = threadIdx.x; i < width; i += long_row_threads) {
        const S d = device::convert<S>(x[i]) - mean;
        squares += d * d;
    }
    const S rstd = 1 / sqrt(reduce_team<long_row_threads>(squares, Sum{}) / static_cast<S>(width) + norm.eps);
    if (threadIdx.x == 0) {
        if (norm.mean != nullptr) norm.mean[row] = mean;
        norm.rstd[row] = rstd;
    }
    for (std::int64_t i = threadIdx.x; i < width; i += long_row_threads) {
        S value = (device::convert<S>(x[i]) - mean) * rstd *
                  (norm.weight_offset + device::convert<S>(norm.weight[i]));
        if (norm.bias != nullptr) value += device::convert<S>(norm.bias[i]);
        y[i] = device::convert<T>(value);
    }
}

// ---- Backward ----
// With n = (x - mean) rstd and g = dy (offset + weight):  dx = rstd (g - mean(g) - n mean(g n)), where
// mean(g) is 0 for RMSNorm; dweight += dy n; dbias += dy. Every block sums the parameter gradients over its
// rows, each thread for its own columns, and stores them in its part of `partials`. If requested, dx's column
// sums are computed in the same way.

/// A thread's vectors in the rows that its team processes next, in shared memory. No other thread reads them,
/// so no barrier is needed.
template <class Team>
struct FetchedRows {
    uint4* vectors;

    enum Tensor { x_row, dy_row, dx_row };
    __device__ __forceinline__ uint4* at(int stage, Tensor tensor, int k) const {
        const int vector = (stage * fetched_tensors + tensor) * Team::held + k;
        return vectors + vector * Team::backward_threads + threadIdx.x;
    }
    static constexpr std::size_t bytes =
        std::size_t{16} * Team::fetched_rows * fetched_tensors * Team::held * Team::backward_threads;
};

/// The gradients that are summed over columns.
enum class SumKind { weight, bias, dx };

/// A thread's sums over its columns: the weight and bias gradients, and, if requested, dx.
template <class S, int held, int n, bool sums_dx>
struct ColumnSums {
    static constexpr int kinds = sums_dx ? 3 : 2;
    S weight[held][n] = {}, bias[held][n] = {}, dx[sums_dx ? held : 1][n] = {};

    __device__ __forceinline__ const S (&of(SumKind kind, int k) const)[n] {
        return kind == SumKind::weight ? weight[k] : kind == SumKind::bias ? bias[k] : dx[sums_dx ? k : 0];
    }
};

/// Starts copying a row to shared memory, and returns its statistics.
template <class Team, class T, class S = Accumulator<T>>
__device__ __forceinline__ Statistics<S> fetch_row(const NormBackward<T>& norm,
                                                   const FetchedRows<Team>& fetched, int stage,
                                                   std::int64_t row, int lane, int vectors) {
    using namespace device;
    constexpr int n = vector_length<T>;
    Statistics<S> statistics{0, 0};
    if (row >= 0) {
        statistics = {norm.mean != nullptr ? norm.mean[row] : S(0), norm.rstd[row]};
        const T *x = norm.x[row], *dy = norm.dy[row], *dx = norm.dx[row];
#pragma unroll
        for (int k = 0; k < Team::held; ++k) {
            const int vector = lane + k * Team::team;
            if (vector >= vectors) break;
            using Rows = FetchedRows<Team>;
            const auto copy = [&](typename Rows::Tensor tensor, const T* from) {
                copy_16_bytes_async(shared_address(fetched.at(stage, tensor, k)), from + vector * n, true);
            };
            copy(Rows::x_row, x);
            copy(Rows::dy_row, dy);
            if (norm.accumulate_dx) copy(Rows::dx_row, dx);
        }
    }
    commit_copies();
    return statistics;
}

/// Processes a row that is in shared memory: adds its terms to the thread's sums and writes dx. If a thread
/// holds only one vector per row, `only_weights` holds the weights for its columns.
template <class Team, bool sums_dx, class T, int n, class S = Accumulator<T>>
__device__ __forceinline__ void differentiate_row(const NormBackward<T>& norm,
                                                  ColumnSums<S, Team::held, n, sums_dx>& sums,
                                                  const FetchedRows<Team>& fetched, int stage,
                                                  const Statistics<S>& statistics,
                                                  const Fetched<n, T>& only_weights, std::int64_t row,
                                                  int lane, int vectors) {
    using Rows = FetchedRows<Team>;
    const bool has_row = row >= 0;
    S sum_g = 0, sum_gn = 0;
    S x[n], dy[n], weight[n];
    const auto read = [&](int k) {
        unpack<T>(x, *fetched.at(stage, Rows::x_row, k));
        unpack<T>(dy, *fetched.at(stage, Rows::dy_row, k));
        if constexpr (Team::held == 1) {
            only_weights.values(weight);
        } else {
            load<n>(weight, norm.weight + (lane + k * Team::team) * n);
        }
#pragma unroll
        for (int i = 0; i < n; ++i) weight[i] += norm.weight_offset;
    };
#pragma unroll
    for (int k = 0; k < Team::held; ++k) {
        const int vector = lane + k * Team::team;
        if (!has_row || vector >= vectors) break;
        read(k);
#pragma unroll
        for (int i = 0; i < n; ++i) {
            const S normalised = (x[i] - statistics.mean) * statistics.rstd, g = dy[i] * weight[i];
            sums.weight[k][i] += dy[i] * normalised;
            sums.bias[k][i] += dy[i];
            sum_g += g;
            sum_gn += g * normalised;
        }
    }
    const S share = 1 / static_cast<S>(vectors * n);
    const S mean_g = norm.mean != nullptr ? reduce_team<Team::team>(sum_g, Sum{}) * share : S(0);
    const S mean_gn = reduce_team<Team::team>(sum_gn, Sum{}) * share;
    if (!has_row) return;
    T* to = norm.dx[row];
#pragma unroll
    for (int k = 0; k < Team::held; ++k) {
        const int vector = lane + k * Team::team;
        if (vector >= vectors) break;
        if constexpr (Team::held > 1) read(k);
        S dx[n] = {};
        if (norm.accumulate_dx) unpack<T>(dx, *fetched.at(stage, Rows::dx_row, k));
#pragma unroll
        for (int i = 0; i < n; ++i) {
            const S normalised = (x[i] - statistics.mean) * statistics.rstd, g = dy[i] * weight[i];
            dx[i] += statistics.rstd * (g - mean_g - normalised * mean_gn);
        }
        const uint4 stored = pack<T>(dx);
        *reinterpret_cast<uint4*>(to + vector * n) = stored;
        if constexpr (sums_dx) {
            unpack<T>(dx, stored);
#pragma unroll
            for (int i = 0; i < n; ++i) sums.dx[k][i] += dx[i];
        }
    }
}

/// Adds the block's team sums in team order and stores them in the block's part of the results.
template <class Team, bool sums_dx, class T, int n, class S = Accumulator<T>>
__device__ __forceinline__ void store_sums(const NormBackward<T>& norm,
                                           const ColumnSums<S, Team::held, n, sums_dx>& sums, uint4* shared,
                                           int lane, int vectors) {
    const int width = vectors * n;
    const auto part_of = [&](SumKind kind) {
        return kind == SumKind::dx
                   ? norm.column_sums + std::int64_t{blockIdx.x} * width
                   : norm.partials + (2 * std::int64_t{blockIdx.x} + static_cast<int>(kind)) * width;
    };
    constexpr int kinds = ColumnSums<S, Team::held, n, sums_dx>::kinds, teams = Team::backward_teams;
    static_assert(std::size_t{kinds} * Team::backward_threads * Team::held * n * sizeof(S) <=
                  FetchedRows<Team>::bytes);
    S* const team_sums = reinterpret_cast<S*>(shared);  // [kinds, teams, width], in the rows' memory
    __syncthreads();
#pragma unroll
    for (int kind = 0; kind < kinds; ++kind)
#pragma unroll
        for (int k = 0; k < Team::held; ++k) {
            const int vector = lane + k * Team::team;
            if (vector >= vectors) break;
            S* const to = teams == 1 ? part_of(static_cast<SumKind>(kind))
                                     : team_sums + (kind * teams + threadIdx.x / Team::team) * width;
            store<n>(to + vector * n, sums.of(static_cast<SumKind>(kind), k));
        }
    if constexpr (teams > 1) {
        __syncthreads();
#pragma unroll
        for (int kind = 0; kind < kinds; ++kind)
            for (int column = threadIdx.x; column < width; column += Team::backward_threads) {
                S sum = 0;
#pragma unroll 8
                for (int team = 0; team < teams; ++team)
                    sum += team_sums[(kind * teams + team) * width + column];
                part_of(static_cast<SumKind>(kind))[column] = sum;
            }
    }
}

template <class Team, class T, bool sums_dx>
__global__ void __launch_bounds__(Team::backward_threads,
                                  Team::backward_blocks - (Team::held == 1 && sums_dx))
    held_backward_kernel(const NormBackward<T> norm) {
    using S = Accumulator<T>;
    constexpr int n = vector_length<T>;
    extern __shared__ uint4 shared[];
    const FetchedRows<Team> fetched{shared};
    const int lane = threadIdx.x % Team::team, vectors = static_cast<int>(norm.x.layout.width / n);
    // From the last row to the first, see map_rows.cuh. A team whose index has become negative has no row.
    const std::int64_t step = gridDim.x * std::int64_t{Team::backward_teams};
    std::int64_t last = norm.x.layout.rows - 1 - blockIdx.x * std::int64_t{Team::backward_teams};
    std::int64_t row = last - threadIdx.x / Team::team;
    const auto fetch = [&](int stage, std::int64_t row_to_fetch) {
        return fetch_row(norm, fetched, stage, row_to_fetch, lane, vectors);
    };
    ColumnSums<S, Team::held, n, sums_dx> sums;
    await_predecessor();
    Fetched<n, T> only_weights{};  // the weights, if a thread holds only one vector per row
    if (Team::held == 1 && lane < vectors) only_weights.read(norm.weight + lane * n);
    // Statistics for the current row and for the rows that are being copied.
    Statistics<S> statistics[Team::fetched_rows];
#pragma unroll
    for (int i = 0; i < Team::fetched_rows; ++i) statistics[i] = fetch(i, row - i * step);
    // All lanes in a warp stay in the loop, because lanes without a row still take part in reductions.
    int stage = 0;
    for (; last >= 0; last -= step) {
        device::wait_for_copies<Team::fetched_rows - 1>();
        differentiate_row<Team, sums_dx, T>(norm, sums, fetched, stage, statistics[0], only_weights, row,
                                            lane, vectors);
#pragma unroll
        for (int i = 1; i < Team::fetched_rows; ++i) statistics[i - 1] = statistics[i];
        statistics[Team::fetched_rows - 1] = fetch(stage, row - Team::fetched_rows * step);
        row -= step;
        stage = (stage + 1) % Team::fetched_rows;
    }
    store_sums<Team, sums_dx, T>(norm, sums, shared, lane, vectors);
}

/// Processes rows of any width, one at a time per block. The block's partial sums are in global memory; every
/// thread has its own columns.
template <class T>
__global__ void __launch_bounds__(long_row_threads) long_backward_kernel(const NormBackward<T> norm) {
    using S = Accumulator<T>;
    const std::int64_t width = norm.x.layout.width;
    S* d_weight = norm.partials + blockIdx.x * 2 * width;
    S* d_bias = d_weight + width;
    S* const sums = norm.column_sums != nullptr ? norm.column_sums + blockIdx.x * width : nullptr;
    for (std::int64_t i = threadIdx.x; i < width; i += long_row_threads) {
        d_weight[i] = d_bias[i] = 0;
        if (sums != nullptr) sums[i] = 0;
    }
    for (std::int64_t row = blockIdx.x; row < norm.x.layout.rows; row += gridDim.x) {
        const T *x = norm.x[row], *dy = norm.dy[row];
        T* dx = norm.dx[row];
        const Statistics<S> statistics{norm.mean != nullptr ? norm.mean[row] : S(0), norm.rstd[row]};
        const auto normalised = [&](std::int64_t i) {
            return (device::convert<S>(x[i]) - statistics.mean) * statistics.rstd;
        };
        const auto gain = [&](std::int64_t i) {
            return norm.weight_offset + device::convert<S>(norm.weight[i]);
        };
        S sum_g = 0, sum_gn = 0;
        for (std::int64_t i = threadIdx.x; i < width; i += long_row_threads) {
            const S d = device::convert<S>(dy[i]), g = d * gain(i);
            sum_g += g;
            sum_gn += g * normalised(i);
            d_weight[i] += d * normalised(i);
            d_bias[i] += d;
        }
        const S mean_gn = reduce_team<long_row_threads>(sum_gn, Sum{}) / static_cast<S>(width);
        S mean_g = 0;
        if (norm.mean != nullptr)
            mean_g = reduce_team<long_row_threads>(sum_g, Sum{}) / static_cast<S>(width);
        for (std::int64_t i = threadIdx.x; i < width; i += long_row_threads) {
            const S g = device::convert<S>(dy[i]) * gain(i);
            S value = statistics.rstd * (g - mean_g - normalised(i) * mean_gn);
            if (norm.accumulate_dx) value += device::convert<S>(dx[i]);
            dx[i] = device::convert<T>(value);
            if (sums != nullptr) sums[i] += device::convert<S>(dx[i]);
        }
    }
}

/// Whether a team may hold rows of T in registers. float64 is for verification and uses the simple kernels.
template <class T>
constexpr bool may_be_held = sizeof(T) <= 4;

}  // namespace

void norm_forward(const Context& ctx, const NormOutputs& out, const Residual& residual,
                  const NormParameters& parameters) {
    const Tensor &x = residual.x, &branch = residual.branch;
    const Tensor &weight = parameters.weight, &bias = parameters.bias;
    const DropoutMask mask =
        branch.defined() ? dropout_mask(residual.dropout.p, residual.key, branch) : DropoutMask{};
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        using S = Accumulator<T>;
        NormForward<T> norm{.y = DeviceRows<T>(out.y, "norm"),
                            .x = DeviceRows<const T>(x, "norm"),
                            .branch = branch.defined() ? DeviceRows<T>(branch, "norm") : DeviceRows<T>(),
                            .factors_of = DropoutFactors(mask),
                            .mean = data_or_null<S>(out.mean),
                            .rstd = out.rstd.data<S>(),
                            .weight = weight.data<T>(),
                            .bias = data_or_null<T>(bias),
                            .eps = static_cast<S>(parameters.eps),
                            .weight_offset = static_cast<S>(parameters.weight_offset)};
        const std::int64_t rows = norm.x.layout.rows;
        const auto add_first = [&] {
            norm.x = DeviceRows<const T>(residual.sum(ctx), "norm");
            norm.branch = {};
        };
        const auto any_width = [&] {
            if (norm.branch.data != nullptr) add_first();
            launch(ctx, long_forward_kernel<T>, blocks_for(rows, 1), Block{long_row_threads}, norm);
        };
        if constexpr (may_be_held<T>) {
            if (norm.x.in_vectors() && norm.y.in_vectors() && on_vector_boundary(weight) &&
                (!bias.defined() || on_vector_boundary(bias)) &&
                (!branch.defined() || norm.branch.in_vectors())) {
                // One random draw covers 8 columns, which are one vector only in 16 bits.
                if (mask.threshold != 0 && vector_length<T> != dropout_group) add_first();
                with_row_team(x.size(-1) / vector_length<T>, [&]<class Team>(Team) {
                    if constexpr (std::is_null_pointer_v<Team>) {
                        any_width();
                    } else {
                        launch(ctx,
                               norm.branch.data != nullptr ? held_forward_kernel<Team, T, true>
                                                           : held_forward_kernel<Team, T, false>,
                               blocks_for(rows, Team::teams),
                               Block{.threads = Team::threads, .starts_early = true}, norm);
                    }
                });
                return;
            }
        }
        any_width();
    });
}

/// Block count: for each of an H200's 132 multiprocessors, at most two blocks for GPT-2's widths, and three
/// for heads and for wider rows. The count is the same for every GPU, so that memory plans and results do not
/// depend on the GPU.
std::int64_t norm_partials(std::int64_t rows, std::int64_t width) {
    const std::int64_t blocks = width > 64 && width <= 1280 ? 264 : 396;
    return std::min(blocks, ceil_div(rows, 16));
}

void norm_backward(const Context& ctx, const NormGradients& out, const NormInputs& in) {
    visit_floating(in.x.dtype(), [&]<class T>(TypeTag<T>) {
        using S = Accumulator<T>;
        const NormBackward<T> norm{.dx = DeviceRows<T>(out.dx, "norm"),
                                   .dy = DeviceRows<const T>(in.dy, "norm"),
                                   .x = DeviceRows<const T>(in.x, "norm"),
                                   .mean = data_or_null<S>(in.mean),
                                   .rstd = in.rstd.data<S>(),
                                   .weight = in.weight.data<T>(),
                                   .weight_offset = static_cast<S>(in.weight_offset),
                                   .partials = out.partials.data<S>(),
                                   .column_sums = data_or_null<S>(out.column_sums),
                                   .accumulate_dx = out.accumulate_dx};
        const std::int64_t width = in.x.size(-1);
        const dim3 grid = blocks_for(out.partials.size(0), 1);
        const auto any_width = [&] {
            launch(ctx, long_backward_kernel<T>, grid, Block{long_row_threads}, norm);
        };
        const auto differentiate = [&] {
            if constexpr (may_be_held<T>) {
                if (norm.x.in_vectors() && norm.dy.in_vectors() && norm.dx.in_vectors() &&
                    on_vector_boundary(in.weight) && on_vector_boundary(out.partials)) {
                    with_row_team(width / vector_length<T>, [&]<class Team>(Team) {
                        if constexpr (std::is_null_pointer_v<Team>) {
                            any_width();
                        } else {
                            launch(ctx,
                                   norm.column_sums != nullptr ? held_backward_kernel<Team, T, true>
                                                               : held_backward_kernel<Team, T, false>,
                                   grid,
                                   Block{Team::backward_threads, FetchedRows<Team>::bytes,
                                         /*starts_early=*/true},
                                   norm);
                        }
                    });
                    return;
                }
            }
            any_width();
        };
        differentiate();
        if (out.weight.grad.defined())
            add_partials<S, 2>(ctx, {out.weight, out.bias}, norm.partials, out.partials.size(0));
    });
}

}  // namespace gradtile::cuda
