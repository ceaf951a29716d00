// QK norm and rotation on the GPU.
#include <numeric>

#include <gradtile/layers/internal/head_transform_backend.h>
#include <gradtile/core/cuda/device/reduce.cuh>
#include <gradtile/layers/device/partial_sums.cuh>
#include <gradtile/layers/device/place.cuh>
#include <gradtile/layers/device/vectors.cuh>

namespace gradtile::cuda {
namespace {

using namespace device;

constexpr int head_threads = 128;
// Blocks per multiprocessor: enough loads in flight for the memory's rate.
constexpr int forward_blocks = 6, backward_blocks = 4;

/// A team processes one head, token by token. A thread holds `held` column groups from the head's first half,
/// with n neighbouring columns each, and the columns that are rotated with them. Every team keeps its head,
/// so that weights and weight-gradient sums stay in registers.
template <int team_, int held_, int n_>
struct HeadTeam {
    static constexpr int team = team_, held = held_, n = n_, teams = head_threads / team;
    static constexpr int pieces = 2 * held;  ///< `held` in the first half, then `held` in the second half
    static constexpr int max_half = team * held * n;
};

/// [B,T,H,D] with a contiguous last axis.
template <class T>
struct HeadTensor {
    T* data = nullptr;
    std::int64_t sample_stride = 0, token_stride = 0, head_stride = 0;

    explicit HeadTensor(const Tensor& x)
        : data(x.data<std::remove_const_t<T>>()),
          sample_stride(x.stride(0)),
          token_stride(x.stride(1)),
          head_stride(x.stride(2)) {}
    bool in_vectors() const {
        constexpr int n = vector_length<std::remove_const_t<T>>;
        return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && sample_stride % n == 0 &&
               token_stride % n == 0 && head_stride % n == 0;
    }
};

template <class T>
struct HeadArguments {
    HeadTensor<const T> x;
    HeadTensor<T> y;               ///< backward: the gradient
    const T *q_weight, *k_weight;  ///< null without a norm, and with a norm without a gain
    Accumulator<T> weight_offset;  ///< without a gain 1, and the weights that are not read are 0
    Accumulator<T>* rstd;          ///< null without a norm
    const Accumulator<T>*cosines, *sines;
    Accumulator<T>* partials;
    Divisor length;  ///< T
    std::int64_t tokens;
    int heads, queries, half, dim;
    Accumulator<T> epsilon, sign;
};

/// A thread's place: its team's head and tokens, and its columns.
template <class Team>
struct HeadPlace {
    int lane, head;
    std::int64_t first_token, first_of_block, step;

    template <class T>
    __device__ __forceinline__ explicit HeadPlace(const HeadArguments<T>& p)
        : lane(static_cast<int>(threadIdx.x) % Team::team) {
        // The team count is a multiple of the head count.
        const std::int64_t block = blockIdx.x * std::int64_t{Team::teams};
        const std::int64_t index = block + threadIdx.x / Team::team;
        first_token = index / p.heads;
        head = static_cast<int>(index - first_token * p.heads);
        first_of_block = block / p.heads;
        step = gridDim.x * std::int64_t{Team::teams} / p.heads;
    }
    __device__ __forceinline__ int column(int k) const { return (lane + k * Team::team) * Team::n; }
};

template <class T>
__device__ __forceinline__ std::int64_t offset_of(const HeadTensor<T>& x, const Divisor& length,
                                                  std::int64_t token, int head) {
    const std::int64_t sample = length.quotient_of(token);
    return sample * x.sample_stride + (token - sample * length.value) * x.token_stride + head * x.head_stride;
}

/// Calls f(k, column) for the thread's columns in the head's first half, n at a time.
template <class Team, class F>
__device__ __forceinline__ void for_each_held(const HeadPlace<Team>& head_place, int half, const F& f) {
#pragma unroll
    for (int k = 0; k < Team::held; ++k) {
        const int column = head_place.column(k);
        if (column >= half) break;
        f(k, column);
    }
}

/// A thread's columns in a row.
template <class Team, class T>
struct HeadRow {
    Fetched<Team::n, T> piece[Team::pieces];

    __device__ __forceinline__ void read(const T* row, const HeadPlace<Team>& head_place, int half, int dim) {
        for_each_held(head_place, half, [&](int k, int column) {
            piece[k].read(row + column);
            // If dim is odd, a head's second half has one column less.
            if (half + column < dim) piece[Team::held + k].read(row + half + column);
        });
    }
    template <class S>
    __device__ __forceinline__ void values(S (&to)[Team::pieces][Team::n]) const {
#pragma unroll
        for (int k = 0; k < Team::held; ++k) {
            piece[k].values(to[k]);
            piece[Team::held + k].values(to[Team::held + k]);
        }
    }
};

template <class Team, class T, class S>
__device__ __forceinline__ void write_row(T* row, const S (&values)[Team::pieces][Team::n],
                                          const HeadPlace<Team>& head_place, int half, int dim) {
    for_each_held(head_place, half, [&](int k, int column) {
        store<Team::n>(row + column, values[k]);
        if (half + column < dim) store<Team::n>(row + half + column, values[Team::held + k]);
    });
}

/// Rotates a thread's columns by a token's angles. sign -1 rotates back.
template <class Team, class T, class S = Accumulator<T>>
__device__ __forceinline__ void rotate(S (&x)[Team::pieces][Team::n], const HeadArguments<T>& p,
                                       std::int64_t token, const HeadPlace<Team>& head_place, S sign) {
    const std::int64_t row = (token - p.length.quotient_of(token) * p.length.value) * p.half;
    for_each_held(head_place, p.half, [&](int k, int column) {
        S cosine[Team::n], sine[Team::n];
        // Table rows are on 16-byte boundaries if a row has whole vectors.
        load<Team::n>(cosine, p.cosines + row + column);
        load<Team::n>(sine, p.sines + row + column);
#pragma unroll
        for (int i = 0; i < Team::n; ++i) {
            const S u = x[k][i], v = x[Team::held + k][i], s = sign * sine[i];
            x[k][i] = u * cosine[i] - v * s;
            x[Team::held + k][i] = v * cosine[i] + u * s;
        }
    });
}

template <class Team, class T>
__global__ void __launch_bounds__(head_threads, forward_blocks) transform_kernel(const HeadArguments<T> p) {
    using S = Accumulator<T>;
    const HeadPlace<Team> head_place(p);
    await_predecessor();
    HeadRow<Team, T> weight{}, next{};
    const bool has_norm = p.rstd != nullptr;
    if (p.q_weight != nullptr)
        weight.read(head_place.head < p.queries ? p.q_weight : p.k_weight, head_place, p.half, p.dim);
    // From the last token to the first, see map_rows.cuh.
    const auto fetch = [&](std::int64_t index) {
        if (index < p.tokens)
            next.read(p.x.data + offset_of(p.x, p.length, p.tokens - 1 - index, head_place.head), head_place,
                      p.half, p.dim);
    };
    fetch(head_place.first_token);
    std::int64_t index = head_place.first_token;
    // All lanes in a warp stay in the loop, because lanes without a row still take part in reductions.
    for (std::int64_t first = head_place.first_of_block; first < p.tokens;
         first += head_place.step, index += head_place.step) {
        S x[Team::pieces][Team::n];
        next.values(x);
        fetch(index + head_place.step);
        const bool has_row = index < p.tokens;
        const std::int64_t token = p.tokens - 1 - index;
        if (has_norm) {
            S squares = 0;
#pragma unroll
            for (int j = 0; j < Team::pieces; ++j) {
#pragma unroll
                for (int i = 0; i < Team::n; ++i) squares += x[j][i] * x[j][i];
            }
            squares = reduce_lanes<Team::team>(squares, Sum{});
            const S rstd = 1 / sqrt(squares / static_cast<S>(p.dim) + p.epsilon);
            if (has_row && head_place.lane == 0) p.rstd[token * p.heads + head_place.head] = rstd;
#pragma unroll
            for (int j = 0; j < Team::pieces; ++j) {
                S w[Team::n];
                weight.piece[j].values(w);
#pragma unroll
                for (int i = 0; i < Team::n; ++i) x[j][i] *= rstd * (p.weight_offset + w[i]);
            }
        }
        if (!has_row) continue;
        if (p.cosines != nullptr) rotate<Team>(x, p, token, head_place, p.sign);
        write_row<Team>(p.y.data + offset_of(p.y, p.length, token, head_place.head), x, head_place, p.half,
                        p.dim);
    }
}

/// Adds the block's team sums in team order, separately for queries and keys, and stores the results in the
/// block's row in p.partials.
template <class Team, class T, class S = Accumulator<T>>
__device__ __forceinline__ void store_weight_sums(const HeadArguments<T>& p,
                                                  const HeadPlace<Team>& head_place,
                                                  const S (&sums)[Team::pieces][Team::n]) {
    __shared__ S team_sums[Team::teams][2 * Team::max_half];
    const int team = static_cast<int>(threadIdx.x) / Team::team;
#pragma unroll
    for (int j = 0; j < Team::pieces; ++j) {
#pragma unroll
        for (int i = 0; i < Team::n; ++i)
            team_sums[team][j / Team::held * Team::max_half + head_place.column(j % Team::held) + i] =
                sums[j][i];
    }
    __syncthreads();
    const int first_head = static_cast<int>(blockIdx.x * std::int64_t{Team::teams} % p.heads);
    for (int item = static_cast<int>(threadIdx.x); item < 2 * p.dim; item += head_threads) {
        const bool is_query = item < p.dim;
        const int column = is_query ? item : item - p.dim;
        const int place = column < p.half ? column : Team::max_half + column - p.half;
        S sum = 0;
        int head = first_head;
        for (int i = 0; i < Team::teams; ++i) {
            if ((head < p.queries) == is_query) sum += team_sums[i][place];
            if (++head == p.heads) head = 0;
        }
        p.partials[std::int64_t{blockIdx.x} * 2 * p.dim + item] = sum;
    }
}

/// With n = x rstd, d the gradient with respect to n gain, and g = d gain: gradient = rstd (g - n mean(g n));
/// the weight gradients are the sums of d n.
template <class Team, class T>
__global__ void __launch_bounds__(head_threads, backward_blocks)
    differentiate_kernel(const HeadArguments<T> p) {
    using S = Accumulator<T>;
    const HeadPlace<Team> head_place(p);
    await_predecessor();
    HeadRow<Team, T> weight{}, next_x{}, next_d{};
    if (p.q_weight != nullptr)
        weight.read(head_place.head < p.queries ? p.q_weight : p.k_weight, head_place, p.half, p.dim);
    S next_rstd = 0;
    const auto fetch = [&](std::int64_t index) {
        if (index >= p.tokens) return;
        const std::int64_t token = p.tokens - 1 - index;
        next_x.read(p.x.data + offset_of(p.x, p.length, token, head_place.head), head_place, p.half, p.dim);
        next_d.read(p.y.data + offset_of(p.y, p.length, token, head_place.head), head_place, p.half, p.dim);
        next_rstd = p.rstd[token * p.heads + head_place.head];
    };
    S sums[Team::pieces][Team::n] = {};
    fetch(head_place.first_token);
    std::int64_t index = head_place.first_token;
    for (std::int64_t first = head_place.first_of_block; first < p.tokens;
         first += head_place.step, index += head_place.step) {
        S d[Team::pieces][Team::n];
        const HeadRow<Team, T> row = next_x;
        const S rstd = next_rstd;
        next_d.values(d);
        fetch(index + head_place.step);
        const bool has_row = index < p.tokens;
        const std::int64_t token = p.tokens - 1 - index;
        S sum = 0;
        if (has_row) {
            if (p.cosines != nullptr) rotate<Team>(d, p, token, head_place, S(-1));
#pragma unroll
            for (int j = 0; j < Team::pieces; ++j) {
                S x[Team::n], w[Team::n];
                row.piece[j].values(x);
                weight.piece[j].values(w);
#pragma unroll
                for (int i = 0; i < Team::n; ++i) {
                    const S term = d[j][i] * x[i] * rstd;
                    sums[j][i] += term;
                    sum += term * (p.weight_offset + w[i]);
                }
            }
        }
        const S mean = reduce_lanes<Team::team>(sum, Sum{}) / static_cast<S>(p.dim);
        if (!has_row) continue;
#pragma unroll
        for (int j = 0; j < Team::pieces; ++j) {
            S x[Team::n], w[Team::n];
            row.piece[j].values(x);
            weight.piece[j].values(w);
#pragma unroll
            for (int i = 0; i < Team::n; ++i)
                d[j][i] = rstd * (d[j][i] * (p.weight_offset + w[i]) - x[i] * rstd * mean);
        }
        write_row<Team>(p.y.data + offset_of(p.y, p.length, token, head_place.head), d, head_place, p.half,
                        p.dim);
    }
    store_weight_sums<Team>(p, head_place, sums);
}

/// Returns the number by which the block count must be divisible, so that the team count is divisible by the
/// head count. A block has a multiple of 4 teams, because every team has at most 32 threads.
std::int64_t block_multiple(std::int64_t heads) {
    return heads / std::gcd(heads, std::int64_t{head_threads / 32});
}
std::int64_t block_count(std::int64_t wanted, std::int64_t at_most, std::int64_t heads) {
    const std::int64_t multiple = block_multiple(heads);
    return std::clamp(rounded_up(wanted, multiple), multiple,
                      std::max(multiple, at_most / multiple * multiple));
}

/// Calls f(HeadTeam) with the smallest team that holds a head with one vector per half and thread, or with
/// single elements if a head does not consist of whole vectors.
template <class T, class F>
void with_head_team(std::int64_t half, bool vectors, F&& f) {
    constexpr int n = vector_length<T>;
    if constexpr (sizeof(T) <= 4) {  // float64 is for verification
        if (vectors && half <= 4 * n) return f(HeadTeam<4, 1, n>{});
        if (vectors && half <= 8 * n) return f(HeadTeam<8, 1, n>{});
        if (vectors && half <= 16 * n) return f(HeadTeam<16, 1, n>{});
    }
    using Single = HeadTeam<32, 4, 1>;
    check(half <= Single::max_half, "head_transform: head_dim ", 2 * half, " on a GPU; expected at most ",
          2 * Single::max_half);
    f(Single{});
}

/// Fills in a kernel's arguments and calls launch_for(HeadTeam, arguments), which launches the kernel.
template <class T, class F>
void with_arguments(const Tensor& y, const Tensor& rstd, const Tensor& x, const HeadTransform& transform,
                    F&& launch_for) {
    using S = Accumulator<T>;
    const std::int64_t dim = x.size(3);
    HeadArguments<T> p{
        .x = HeadTensor<const T>(x),
        .y = HeadTensor<T>(y),
        .q_weight = nullptr,
        .k_weight = nullptr,
        .weight_offset = static_cast<S>(transform.without_gain ? 1.0 : transform.weight_offset),
        .rstd = nullptr,
        .cosines = nullptr,
        .sines = nullptr,
        .partials = nullptr,
        .length = Divisor(x.size(1)),
        .tokens = x.size(0) * x.size(1),
        .heads = static_cast<int>(x.size(2)),
        .queries = static_cast<int>(transform.queries),
        .half = static_cast<int>(ceil_div(dim, std::int64_t{2})),
        .dim = static_cast<int>(dim),
        .epsilon = static_cast<S>(transform.epsilon),
        .sign = 1};
    bool vectors = p.x.in_vectors() && p.y.in_vectors() && dim % (2 * vector_length<T>) == 0;
    if (transform.has_norm()) p.rstd = rstd.data<S>();
    if (transform.q_weight.defined()) {
        p.q_weight = transform.q_weight.data<T>();
        p.k_weight = transform.k_weight.data<T>();
        vectors &= on_vector_boundary(transform.q_weight) && on_vector_boundary(transform.k_weight);
    }
    if (transform.rotates()) {
        p.cosines = transform.angles.cosines.data<S>();
        p.sines = transform.angles.sines.data<S>();
        vectors &= on_vector_boundary(transform.angles.cosines) && on_vector_boundary(transform.angles.sines);
    }
    with_head_team<T>(p.half, vectors, [&](auto team) { launch_for(team, p); });
}

}  // namespace

void transform_heads(const Context& ctx, const Tensor& y, const Tensor& rstd, const Tensor& x,
                     const HeadTransform& transform, bool inverse) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        with_arguments<T>(y, rstd, x, transform, [&]<class Team>(Team, HeadArguments<T>& p) {
            p.sign = inverse ? -1 : 1;
            const std::int64_t blocks =
                block_count(ceil_div(p.tokens * p.heads, std::int64_t{Team::teams}),
                            processors_of(ctx) * std::int64_t{forward_blocks}, p.heads);
            launch(ctx, transform_kernel<Team, T>, blocks_for(blocks, 1),
                   Block{.threads = head_threads, .starts_early = true}, p);
        });
    });
}

/// Block count: at most what an H200's 132 multiprocessors hold. The count is the same for every GPU and
/// every alignment, so that memory plans and results do not depend on them.
std::int64_t head_partials(std::int64_t tokens, std::int64_t heads) {
    return block_count(ceil_div(tokens * heads, std::int64_t{64}), 132 * backward_blocks, heads);
}

void differentiate_heads(const Context& ctx, const Tensor& gradient, const Tensor& rstd, const Tensor& x,
                         const HeadTransform& transform, const HeadWeightGradients& weights,
                         const Tensor& partials) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        with_arguments<T>(gradient, rstd, x, transform, [&]<class Team>(Team, HeadArguments<T>& p) {
            p.partials = partials.data<Accumulator<T>>();
            launch(ctx, differentiate_kernel<Team, T>, blocks_for(partials.size(0), 1),
                   Block{.threads = head_threads, .starts_early = true}, p);
        });
        if (weights.q.grad.defined())
            add_partials<Accumulator<T>, 2>(ctx, {weights.q, weights.k}, partials.data<Accumulator<T>>(),
                                            partials.size(0));
    });
}

}  // namespace gradtile::cuda
