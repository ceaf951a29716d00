// fused_linear.h on the GPU for up to 8 rows. Such a product takes as long as reading the weights, if enough
// loads are in flight at any moment. So each lane copies its own 16-byte weight vectors to a ring in shared
// memory, many vectors ahead, and the first ones before the preceding kernel has ended. No other thread reads
// a lane's vectors, so the ring needs no barrier.
#include <cstdlib>
#include <string_view>

#include <gradtile/core/shape.h>
#include <gradtile/layers/internal/activation_formulas.h>
#include <gradtile/layers/internal/fused_linear_backend.h>
#include <gradtile/core/cuda/device/async_copy.cuh>
#include <gradtile/core/cuda/device/early_start.cuh>
#include <gradtile/core/cuda/device/reduce.cuh>
#include <gradtile/layers/device/activation_math.cuh>
#include <gradtile/layers/device/vectors.cuh>

namespace gradtile::cuda {
namespace {

using namespace device;

constexpr int own_shared_bytes =
    2048;  // enough for the kernel's static arrays and the 1 KB that CUDA reserves in each thread block

template <class T>
struct FusedLinearParameters {
    const T *x, *weight, *bias, *norm_weight, *norm_bias, *residual;  // all but x and weight may be null
    void* y;
    std::int64_t x_stride, weight_stride, residual_stride, y_stride;  // between rows, in elements
    int rows, in, out;
    float eps, norm_weight_offset;
    bool centred, gated, y_is_f32, has_activation;
    Activation activation;  // with has_activation
    int parts_log2;         // 2^parts_log2 warps share a weight row
};

/// The columns of y that a thread block computes.
struct Columns {
    int begin, count;
};
__host__ __device__ inline Columns columns_of(int block, int blocks, int out) {
    const auto border = [&](int i) { return static_cast<int>(static_cast<std::int64_t>(i) * out / blocks); };
    return {border(block), border(block + 1) - border(block)};
}

/// Shared memory for x, for the warps' rings, and for the dot products.
struct FusedLinearShared {
    int x_bytes, ring_bytes, sums_bytes;

    __host__ __device__ int all() const { return x_bytes + ring_bytes + sums_bytes; }
};
__host__ __device__ inline int padded_vectors(int vectors) {
    return (vectors + 31) / 32 * 32;
}
/// `rows` is the kernel's row count, `sums` the number of dot products that a thread block computes per row
/// of x.
__host__ __device__ inline FusedLinearShared fused_linear_shared(int rows, int vectors, int warps, int stages,
                                                                 int sums) {
    return {rows * padded_vectors(vectors) * 16, warps * stages * 32 * 16, rows * sums * 4};
}

/// `up` is used by gated activations alone.
__device__ __forceinline__ float activated(Activation activation, float x, float up) {
    return activation_formulas::visit<ActivationMath, float>(
        activation, [&]<class Formula>(TypeTag<Formula>) {
            if constexpr (activation_formulas::Gated<Formula>) {
                return Formula::value(x, up);
            } else {
                return Formula::value(x);
            }
        });
}

/// Returns the sum over the threads that share a row of x, which are `row_warps` neighbouring warps.
template <int row_warps, int warps>
__device__ __forceinline__ float sum_of_row(float value, float* warp_sums) {
    value = reduce_lanes<32>(value, Sum{});
    if constexpr (row_warps > 1) {
        const int warp = static_cast<int>(threadIdx.x) / 32;
        __syncthreads();  // the previous sums are read
        if (threadIdx.x % 32 == 0) warp_sums[warp] = value;
        __syncthreads();
        value = 0;
#pragma unroll
        for (int i = 0; i < row_warps; ++i) value += warp_sums[warp / row_warps * row_warps + i];
    }
    return value;
}

/// Normalises the rows of x and writes them to shared memory. Missing rows and vectors become zeros.
template <class T, int rows, int warps>
__device__ __forceinline__ void load_rows(const FusedLinearParameters<T>& p, uint4* to, int vectors,
                                          uint4 first_weight, uint4 first_bias) {
    constexpr int n = vector_length<T>, row_warps = warps / rows, team = 32 * row_warps;
    static_assert(row_warps >= 1);
    __shared__ float warp_sums[warps];
    const int thread = static_cast<int>(threadIdx.x), row = thread / team, lane = thread % team,
              padded = padded_vectors(vectors);
    const bool has_row = row < p.rows;
    const T* const from = p.x + (has_row ? row : 0) * p.x_stride;
    uint4* const own = to + row * padded;
    float sum = 0;
    for (int i = lane; i < padded; i += team) {
        uint4 raw{};
        if (has_row && i < vectors) raw = *reinterpret_cast<const uint4*>(from + i * n);
        own[i] = raw;
        if (p.norm_weight != nullptr && p.centred) {
            float x[n];
            unpack<T>(x, raw);
#pragma unroll
            for (int k = 0; k < n; ++k) sum += x[k];
        }
    }
    if (p.norm_weight == nullptr) return;
    const float mean =
        p.centred ? sum_of_row<row_warps, warps>(sum, warp_sums) / static_cast<float>(p.in) : 0;
    float squares = 0;
    for (int i = lane; i < vectors; i += team) {
        float x[n];
        unpack<T>(x, own[i]);
#pragma unroll
        for (int k = 0; k < n; ++k) squares += (x[k] - mean) * (x[k] - mean);
    }
    squares = sum_of_row<row_warps, warps>(squares, warp_sums);
    const float rstd = 1 / sqrtf(squares / static_cast<float>(p.in) + p.eps);
    for (int i = lane; i < vectors; i += team) {
        float x[n], weight[n], bias[n] = {};
        unpack<T>(x, own[i]);
        unpack<T>(weight, i == lane ? first_weight : reinterpret_cast<const uint4*>(p.norm_weight)[i]);
        if (p.norm_bias != nullptr)
            unpack<T>(bias, i == lane ? first_bias : reinterpret_cast<const uint4*>(p.norm_bias)[i]);
#pragma unroll
        for (int k = 0; k < n; ++k)
            x[k] = (x[k] - mean) * rstd * (p.norm_weight_offset + weight[k]) + bias[k];
        own[i] = pack<T>(x);
    }
}

/// Values that are added to the dot product for one element of y.
struct Addends {
    float bias, bias_of_up, residual;
};

template <class T, int rows, int warps, int stages>
__global__ void __launch_bounds__(warps * 32,
                                  rows * sizeof(T) <= 16
                                      ? 32 / warps
                                      : 1)  // leaves registers for the next kernel's blocks
    fused_linear_kernel(const __grid_constant__ FusedLinearParameters<T> p) {
    constexpr int n = vector_length<T>, threads = warps * 32;
    extern __shared__ uint4 shared[];
    const int vectors = p.in / n, padded = padded_vectors(vectors);
    const auto [first_column, columns] =
        columns_of(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), p.out);
    const int weight_rows = p.gated ? 2 * columns : columns;
    const int thread = static_cast<int>(threadIdx.x), warp = warp_index(), lane = thread % 32;
    uint4* const x = shared;  // [rows, padded]
    uint4* const ring = shared + rows * padded + warp * stages * 32 +
                        lane;  // this lane's vectors: one per stage, 32 vectors apart
    float* const sums = reinterpret_cast<float*>(shared + rows * padded + warps * stages * 32);

    allow_successor();
    // A task is a part of a weight row. A warp reads its vectors in `steps` steps.
    const int parts = 1 << p.parts_log2, steps = (padded / 32 + parts - 1) >> p.parts_log2,
              tasks = weight_rows << p.parts_log2;
    struct Position {
        int task, step;
    };
    const auto vector_of = [&](const Position& position) {
        return ((position.task & (parts - 1)) * steps + position.step) * 32 + lane;
    };
    const auto advance = [&](Position& position) {
        if (++position.step == steps) {
            position.step = 0;
            position.task += warps;
        }
    };
    Position next{warp, 0};  // the next step to copy
    int place = 0;           // its place in the ring
    const auto copy_next = [&] {
        if (next.task < tasks) {
            const int weight_row = next.task >> p.parts_log2, vector = vector_of(next);
            const std::int64_t row = weight_row < columns ? first_column + weight_row
                                                          : p.out + first_column + weight_row - columns;
            const bool exists = vector < vectors;
            copy_16_bytes_async(shared_address(ring + place * 32),
                                p.weight + row * p.weight_stride + (exists ? vector : 0) * n, exists);
            advance(next);
            place = place == stages - 1 ? 0 : place + 1;
        }
        commit_copies();
    };
#pragma unroll 1
    for (int i = 0; i < stages - 1; ++i) copy_next();
    const int outputs = columns * p.rows;
    const auto parameters_of = [&](int output) {
        const int column = first_column + output % columns;
        Addends addends{};
        if (p.bias != nullptr) {
            addends.bias = device::convert<float>(p.bias[column]);
            if (p.gated) addends.bias_of_up = device::convert<float>(p.bias[p.out + column]);
        }
        return addends;
    };
    Addends first_addends{};
    if (thread < outputs) first_addends = parameters_of(thread);
    uint4 first_weight{}, first_bias{};
    if (constexpr int team = threads / rows; p.norm_weight != nullptr && thread % team < vectors) {
        first_weight = reinterpret_cast<const uint4*>(p.norm_weight)[thread % team];
        if (p.norm_bias != nullptr) first_bias = reinterpret_cast<const uint4*>(p.norm_bias)[thread % team];
    }
    await_results();
    load_rows<T, rows, warps>(p, x, vectors, first_weight, first_bias);
    const auto residual_of = [&](int output) {
        return p.residual == nullptr
                   ? 0.0f
                   : device::convert<float>(
                         p.residual[output / columns * p.residual_stride + first_column + output % columns]);
    };
    if (thread < outputs) first_addends.residual = residual_of(thread);
    __syncthreads();

    float sum[rows] = {};
    Position current{warp, 0};
    int filled = 0;  // index of the stage in `ring` that holds the current step
#pragma unroll 1
    while (current.task < tasks) {
        wait_for_copies<stages - 2>();
        copy_next();
        float w[n];
        unpack<T>(w, ring[filled * 32]);
        filled = filled == stages - 1 ? 0 : filled + 1;
        const int vector = vector_of(current);
        if (vector < padded) {
#pragma unroll
            for (int r = 0; r < rows; ++r) {
                float values[n];
                unpack<T>(values, x[r * padded + vector]);
#pragma unroll
                for (int k = 0; k < n; ++k) sum[r] = fmaf(w[k], values[k], sum[r]);
            }
        }
        if (current.step == steps - 1) {
#pragma unroll
            for (int r = 0; r < rows; ++r) {
                const float total = reduce_lanes<32>(sum[r], Sum{});
                if (lane == r) sums[current.task * rows + r] = total;
                sum[r] = 0;
            }
        }
        advance(current);
    }
    __syncthreads();
    for (int output = thread; output < outputs; output += threads) {
        const int row = output / columns, column = output % columns;
        const auto sum_of = [&](int weight_row) {
            float total = 0;
            for (int part = 0; part < parts; ++part)
                total += sums[((weight_row << p.parts_log2) + part) * rows + row];
            return total;
        };
        Addends addends = first_addends;
        if (output != thread) {
            addends = parameters_of(output);
            addends.residual = residual_of(output);
        }
        float value = sum_of(column) + addends.bias;
        if (p.has_activation)
            value = activated(p.activation, value,
                              p.gated ? sum_of(columns + column) + addends.bias_of_up : 0.0f);
        value += addends.residual;
        const std::int64_t to = row * p.y_stride + first_column + column;
        if (p.y_is_f32) {
            static_cast<float*>(p.y)[to] = value;
        } else {
            static_cast<T*>(p.y)[to] = device::convert<T>(value);
        }
    }
}

template <class F>
void visit_rows(std::int64_t rows, F&& f) {
    if (rows <= 1) return f.template operator()<1>();
    if (rows <= 2) return f.template operator()<2>();
    if (rows <= 4) return f.template operator()<4>();
    f.template operator()<8>();
}

/// GRADTILE_FUSED_LINEAR=off computes the operator in steps, for comparisons.
bool is_turned_off() {
    const char* const setting = std::getenv("GRADTILE_FUSED_LINEAR");
    return setting != nullptr && setting == std::string_view("off");
}

bool in_vectors(const Tensor& x) {
    const auto size = static_cast<std::int64_t>(size_of(x.dtype()));
    return !x.defined() || (reinterpret_cast<std::uintptr_t>(x.raw_data()) % 16 == 0 &&
                            (x.rank() < 2 || x.size(0) == 1 || x.stride(0) * size % 16 == 0));
}

template <class T>
const T* data_or_null(const Tensor& x) {
    return x.defined() ? x.data<T>() : nullptr;
}

constexpr std::int64_t max_size = 1 << 24;

}  // namespace

bool fuses_products(const Tensor& x) {
    const std::int64_t in = x.size(1);
    return x.size(0) <= max_fused_rows && x.dtype() != DType::f64 && in <= max_size &&
           in * static_cast<std::int64_t>(size_of(x.dtype())) % 16 == 0 && in_vectors(x) && !is_turned_off();
}

bool fused_linear(const Context& ctx, const Tensor& y, const Tensor& x, const FusedLinear& op,
                  const FusedLinearTiles& tiles) {
    const std::int64_t rows = x.size(0), in = x.size(1), out = y.size(1);
    if (!fuses_products(x) || out > max_size) return false;
    const FusedLinear::Norm norm = op.norm.value_or(FusedLinear::Norm{});
    for (const Tensor* read : {&op.weight, &norm.weight, &norm.bias})
        if (!in_vectors(*read)) return false;
    use_device(ctx.device());
    const bool gated = op.activation && traits_of(*op.activation).gated;
    const auto blocks = static_cast<int>(
        std::min<std::int64_t>(out, std::int64_t{processors_of(ctx)} * tiles.blocks_of_multiprocessor));
    const int vectors = static_cast<int>(in * static_cast<std::int64_t>(size_of(x.dtype())) / 16);
    const int weight_rows = static_cast<int>(ceil_div(out, blocks)) * (gated ? 2 : 1);
    // If there are few weight rows, each row is divided into parts, so that all warps have work. A part has
    // at least four steps.
    int parts_log2 = 0;
    while (weight_rows << (parts_log2 + 1) <= tiles.warps && vectors >= 32 * 4 << (parts_log2 + 1))
        ++parts_log2;

    bool launched = false;
    const auto launch_kernel = [&]<class T>(TypeTag<T>) {
        const FusedLinearParameters<T> p{.x = x.data<T>(),
                                         .weight = op.weight.data<T>(),
                                         .bias = data_or_null<T>(op.bias),
                                         .norm_weight = data_or_null<T>(norm.weight),
                                         .norm_bias = data_or_null<T>(norm.bias),
                                         .residual = data_or_null<T>(op.residual),
                                         .y = y.raw_data(),
                                         .x_stride = x.stride(0),
                                         .weight_stride = op.weight.stride(0),
                                         .residual_stride = op.residual.defined() ? op.residual.stride(0) : 0,
                                         .y_stride = y.stride(0),
                                         .rows = static_cast<int>(rows),
                                         .in = static_cast<int>(in),
                                         .out = static_cast<int>(out),
                                         .eps = static_cast<float>(norm.eps),
                                         .norm_weight_offset = static_cast<float>(norm.weight_offset),
                                         .centred = norm.centred,
                                         .gated = gated,
                                         .y_is_f32 = y.dtype() == DType::f32,
                                         .has_activation = op.activation.has_value(),
                                         .activation = op.activation.value_or(Activation{}),
                                         .parts_log2 = parts_log2};
        visit_rows(rows, [&]<int kernel_rows>() {
            const auto launch_with = [&]<int warps>() {
                constexpr int stages = FusedLinearTiles::stages;
                const int bytes =
                    fused_linear_shared(kernel_rows, vectors, warps, stages, weight_rows << parts_log2).all();
                if (bytes + own_shared_bytes > shared_memory_of_a_block()) return;
                launch(ctx, fused_linear_kernel<T, kernel_rows, warps, stages>,
                       dim3(static_cast<unsigned>(blocks)),
                       {.threads = warps * 32,
                        .shared_bytes = static_cast<std::size_t>(bytes),
                        .starts_early = true},
                       p);
                launched = true;
            };
            check(tiles.warps == 8 || tiles.warps == 16, "fused_linear: no kernel of ", tiles.warps,
                  " warps");
            tiles.warps == 8 ? launch_with.template operator()<8>() : launch_with.template operator()<16>();
        });
    };
    switch (x.dtype()) {
        case DType::f32:
            launch_kernel(TypeTag<float>{});
            break;
        case DType::bf16:
            launch_kernel(TypeTag<bfloat16>{});
            break;
        case DType::f16:
            launch_kernel(TypeTag<float16>{});
            break;
        default:
            return false;
    }
    return launched;
}

bool fused_linear(const Context& ctx, const Tensor& y, const Tensor& x, const FusedLinear& op) {
    return fused_linear(ctx, y, x, op, FusedLinearTiles::of(op.weight.size(0), processors_of(ctx)));
}

}  // namespace gradtile::cuda
