// fused_linear.h on the GPU for up to 8 rows. Such a product takes as long as reading the weights, if enough
// loads are in flight at any moment. So each lane copies its own 16-byte weight vectors to a ring in shared
// memory, many vectors ahead, and the first ones before the preceding kernel has ended. No other thread reads
// a lane's vectors, so the ring needs no barrier.
#include <gradtile/core/internal/data_or_null.h>
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

/// One thread's part in a block's work. fused_linear_kernel() calls the public functions in their order.
template <class T, int rows, int warps, int stages>
class FusedLinearThread {
    static constexpr int n = vector_length<T>, threads = warps * 32;
    using Parameters = FusedLinearParameters<T>;
    /// A task is a part of a weight row. A warp reads its vectors in steps_ steps.
    struct Position {
        int task, step;
    };

  public:
    __device__ __forceinline__ FusedLinearThread(const Parameters& p, uint4* shared)
        : p_(p),
          thread_(static_cast<int>(threadIdx.x)),
          lane_(thread_ % 32),
          vectors_(p.in / n),
          padded_(padded_vectors(vectors_)),
          columns_(columns_of(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), p.out)),
          parts_(1 << p.parts_log2),
          steps_((padded_ / 32 + parts_ - 1) >> p.parts_log2),
          tasks_((p.gated ? 2 * columns_.count : columns_.count) << p.parts_log2),
          outputs_(columns_.count * p.rows),
          x_(shared),
          ring_(shared + rows * padded_ + warp_index() * stages * 32 + lane_),
          sums_(reinterpret_cast<float*>(shared + rows * padded_ + warps * stages * 32)),
          next_{warp_index(), 0} {}

    __device__ __forceinline__ void start_copies() {
#pragma unroll 1
        for (int i = 0; i < stages - 1; ++i) copy_next();
    }

    /// Reads the first biases and norm parameters, which no preceding kernel writes.
    __device__ __forceinline__ void read_parameters() {
        if (thread_ < outputs_) first_addends_ = parameters_of(thread_);
        constexpr int team = threads / rows;
        if (p_.norm_weight == nullptr || thread_ % team >= vectors_) return;
        first_weight_ = reinterpret_cast<const uint4*>(p_.norm_weight)[thread_ % team];
        if (p_.norm_bias != nullptr)
            first_bias_ = reinterpret_cast<const uint4*>(p_.norm_bias)[thread_ % team];
    }

    __device__ __forceinline__ void load_inputs() {
        load_rows<T, rows, warps>(p_, x_, vectors_, first_weight_, first_bias_);
        if (thread_ < outputs_) first_addends_.residual = residual_of(thread_);
        __syncthreads();
    }

    /// Computes the dot products of x's rows and the tasks' vectors, in shared memory.
    __device__ __forceinline__ void multiply() {
        float sum[rows] = {};
        Position current{warp_index(), 0};
        int filled = 0;  // index of the stage in ring_ that holds the current step
#pragma unroll 1
        while (current.task < tasks_) {
            wait_for_copies<stages - 2>();
            copy_next();
            float w[n];
            unpack<T>(w, ring_[filled * 32]);
            filled = filled == stages - 1 ? 0 : filled + 1;
            const int vector = vector_of(current);
            if (vector < padded_) {
#pragma unroll
                for (int r = 0; r < rows; ++r) {
                    float values[n];
                    unpack<T>(values, x_[r * padded_ + vector]);
#pragma unroll
                    for (int k = 0; k < n; ++k) sum[r] = fmaf(w[k], values[k], sum[r]);
                }
            }
            if (current.step == steps_ - 1) {
#pragma unroll
                for (int r = 0; r < rows; ++r) {
                    const float total = reduce_lanes<32>(sum[r], Sum{});
                    if (lane_ == r) sums_[current.task * rows + r] = total;
                    sum[r] = 0;
                }
            }
            advance(current);
        }
        __syncthreads();
    }

    __device__ __forceinline__ void write_outputs() const {
        for (int output = thread_; output < outputs_; output += threads) {
            const int row = output / columns_.count, column = output % columns_.count;
            Addends addends = first_addends_;
            if (output != thread_) {
                addends = parameters_of(output);
                addends.residual = residual_of(output);
            }
            float value = dot_product(row, column) + addends.bias;
            if (p_.has_activation)
                value = activated(
                    p_.activation, value,
                    p_.gated ? dot_product(row, columns_.count + column) + addends.bias_of_up : 0.0f);
            value += addends.residual;
            const std::int64_t to = row * p_.y_stride + columns_.begin + column;
            if (p_.y_is_f32) {
                static_cast<float*>(p_.y)[to] = value;
            } else {
                static_cast<T*>(p_.y)[to] = device::convert<T>(value);
            }
        }
    }

  private:
    __device__ __forceinline__ int vector_of(const Position& position) const {
        return ((position.task & (parts_ - 1)) * steps_ + position.step) * 32 + lane_;
    }
    __device__ __forceinline__ void advance(Position& position) const {
        if (++position.step == steps_) {
            position.step = 0;
            position.task += warps;
        }
    }
    __device__ __forceinline__ void copy_next() {
        if (next_.task < tasks_) {
            const int weight_row = next_.task >> p_.parts_log2, vector = vector_of(next_);
            const std::int64_t row = weight_row < columns_.count
                                         ? columns_.begin + weight_row
                                         : p_.out + columns_.begin + weight_row - columns_.count;
            const bool exists = vector < vectors_;
            copy_16_bytes_async(shared_address(ring_ + place_ * 32),
                                p_.weight + row * p_.weight_stride + (exists ? vector : 0) * n, exists);
            advance(next_);
            place_ = place_ == stages - 1 ? 0 : place_ + 1;
        }
        commit_copies();
    }
    __device__ __forceinline__ Addends parameters_of(int output) const {
        const int column = columns_.begin + output % columns_.count;
        Addends addends{};
        if (p_.bias != nullptr) {
            addends.bias = device::convert<float>(p_.bias[column]);
            if (p_.gated) addends.bias_of_up = device::convert<float>(p_.bias[p_.out + column]);
        }
        return addends;
    }
    __device__ __forceinline__ float residual_of(int output) const {
        if (p_.residual == nullptr) return 0;
        return device::convert<float>(p_.residual[output / columns_.count * p_.residual_stride +
                                                  columns_.begin + output % columns_.count]);
    }
    __device__ __forceinline__ float dot_product(int row, int weight_row) const {
        float total = 0;
        for (int part = 0; part < parts_; ++part)
            total += sums_[((weight_row << p_.parts_log2) + part) * rows + row];
        return total;
    }

    const Parameters& p_;
    int thread_, lane_, vectors_, padded_;
    Columns columns_;
    int parts_, steps_, tasks_, outputs_;
    uint4* x_;       // [rows, padded_]
    uint4* ring_;    // this lane's vectors: one per stage, 32 vectors apart
    float* sums_;    // [tasks_, rows]
    Position next_;  // the next step to copy
    int place_ = 0;  // its place in the ring
    Addends first_addends_{};
    uint4 first_weight_{}, first_bias_{};
};

template <class T, int rows, int warps, int stages>
__global__ void __launch_bounds__(warps * 32,
                                  rows * sizeof(T) <= 16
                                      ? 32 / warps
                                      : 1)  // leaves registers for the next kernel's blocks
    fused_linear_kernel(const __grid_constant__ FusedLinearParameters<T> p) {
    extern __shared__ uint4 shared[];
    allow_successor();
    FusedLinearThread<T, rows, warps, stages> thread(p, shared);
    thread.start_copies();
    thread.read_parameters();
    await_results();
    thread.load_inputs();
    thread.multiply();
    thread.write_outputs();
}

template <class F>
void visit_rows(std::int64_t rows, F&& f) {
    if (rows <= 1) return f.template operator()<1>();
    if (rows <= 2) return f.template operator()<2>();
    if (rows <= 4) return f.template operator()<4>();
    f.template operator()<8>();
}

bool in_vectors(const Tensor& x) {
    const auto size = static_cast<std::int64_t>(size_of(x.dtype()));
    return !x.defined() || (reinterpret_cast<std::uintptr_t>(x.raw_data()) % 16 == 0 &&
                            (x.rank() < 2 || x.size(0) == 1 || x.stride(0) * size % 16 == 0));
}

constexpr std::int64_t max_size = 1 << 24;

}  // namespace

bool fuses_products(const Tensor& x) {
    const std::int64_t in = x.size(1);
    // GRADTILE_FUSED_LINEAR=off computes the operator in steps, for comparisons.
    return x.size(0) <= max_fused_rows && x.dtype() != DType::f64 && in <= max_size &&
           in * static_cast<std::int64_t>(size_of(x.dtype())) % 16 == 0 && in_vectors(x) &&
           !is_off("GRADTILE_FUSED_LINEAR");
}

bool fused_linear_in_blocks(const Context& ctx, const Tensor& y, const Tensor& x, const FusedLinear& op,
                            const FusedLinearTiles& tiles) {
    const std::int64_t rows = x.size(0), in = x.size(1), out = y.size(1);
    if (!fuses_products(x) || out > max_size) return false;
    const NormParameters norm = op.norm.value_or(NormParameters{});
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
    return fused_linear_in_blocks(ctx, y, x, op, FusedLinearTiles::of(op.weight.size(0), processors_of(ctx)));
}

}  // namespace gradtile::cuda
