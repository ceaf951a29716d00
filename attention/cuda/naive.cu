// The textbook algorithm on the GPU: S and P are whole matrices in memory, in the dtype of the inputs. cuBLAS
// computes the matrix products; one kernel computes the softmax of the rows, and one its backward pass.
#include <cmath>
#include <cstdint>

#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/core/cuda/device/convert.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {
namespace {

namespace core_device = gradtile::cuda::device;

constexpr int threads_per_row = 128;
constexpr int warps_per_row = threads_per_row / 32;

/// Combines one value of every thread of the block, in a fixed order. All threads get the result.
template <class A, class Combine>
__device__ A reduce_over_block(A value, Combine combine) {
    __shared__ A of_warp[warps_per_row];
    for (int distance = 16; distance > 0; distance /= 2)
        value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
    __syncthreads();  // all threads have read the values of the previous reduction
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    A result = of_warp[0];
    for (int warp = 1; warp < warps_per_row; ++warp) result = combine(result, of_warp[warp]);
    return result;
}

/// Replaces the scores s [rows, keys] by P: probabilities for visible keys, 0 for the others. One thread
/// block per row; row = (batch, head, query). lse may be null.
template <class T>
__global__ void softmax_kernel(T* s, Accumulator<T>* lse, Mask mask) {
    using A = Accumulator<T>;
    const std::int64_t row = blockIdx.x;
    const IndexRange visible = mask.visible_keys(row % mask.queries);
    T* const p = s + row * mask.keys;
    const A infinity = static_cast<A>(HUGE_VAL);

    A maximum = -infinity;
    for (std::int64_t j = visible.begin + threadIdx.x; j < visible.end; j += threads_per_row)
        maximum = max(maximum, core_device::convert<A>(p[j]));
    maximum = reduce_over_block(maximum, [](A a, A b) { return max(a, b); });
    A sum = 0;
    for (std::int64_t j = visible.begin + threadIdx.x; j < visible.end; j += threads_per_row)
        sum += exp(core_device::convert<A>(p[j]) - maximum);
    sum = reduce_over_block(sum, [](A a, A b) { return a + b; });
    for (std::int64_t j = threadIdx.x; j < mask.keys; j += threads_per_row) {
        const bool is_visible = j >= visible.begin && j < visible.end;
        p[j] =
            core_device::convert<T>(is_visible ? exp(core_device::convert<A>(p[j]) - maximum) / sum : A(0));
    }
    if (lse && threadIdx.x == 0) lse[row] = visible.begin < visible.end ? maximum + log(sum) : -infinity;
}

/// Replaces d_p [rows, keys] by dS = P * (dP - rowsum(P * dP)) for visible keys, 0 for the others.
template <class T>
__global__ void softmax_backward_kernel(T* d_p, const T* probabilities, Mask mask) {
    using A = Accumulator<T>;
    const std::int64_t row = blockIdx.x;
    const IndexRange visible = mask.visible_keys(row % mask.queries);
    T* const d_s = d_p + row * mask.keys;
    const T* const p = probabilities + row * mask.keys;

    A mean = 0;
    for (std::int64_t j = visible.begin + threadIdx.x; j < visible.end; j += threads_per_row)
        mean += core_device::convert<A>(p[j]) * core_device::convert<A>(d_s[j]);
    mean = reduce_over_block(mean, [](A a, A b) { return a + b; });
    for (std::int64_t j = threadIdx.x; j < mask.keys; j += threads_per_row) {
        const bool is_visible = j >= visible.begin && j < visible.end;
        d_s[j] = core_device::convert<T>(
            is_visible ? core_device::convert<A>(p[j]) * (core_device::convert<A>(d_s[j]) - mean) : A(0));
    }
}

/// Launches a kernel with one thread block for each row.
template <class Kernel, class... Arguments>
void for_every_row(const Context& ctx, std::int64_t rows, Kernel kernel, Arguments... arguments) {
    if (rows == 0) return;
    check(rows <= INT32_MAX, "attention: naive on CUDA takes at most 2^31 - 1 rows, not ", rows);
    gradtile::cuda::launch(ctx, kernel, dim3(static_cast<unsigned>(rows)), {.threads = threads_per_row},
                           arguments...);
}

/// A copy of a [B, S, H, D] tensor in the order [B, H, S, D]. Query heads that share a K/V head are adjacent
/// in it, so their rows form one matrix: [B * Hkv, group * Sq, D].
class ByHead {
  public:
    ByHead(const Context& ctx, const Tensor& x, std::int64_t key_heads)
        : view_(x.transpose(1, 2)),
          packed_(empty(ctx, view_.shape(), x.dtype())),
          matrices_(packed_.reshape(
              {x.size(0) * key_heads, key_heads == 0 ? 0 : x.size(2) / key_heads * x.size(1), x.size(3)})) {}
    void load(const Context& ctx) const { copy(ctx, packed_, view_); }
    void store(const Context& ctx) const { copy(ctx, view_, packed_); }
    const Tensor& matrices() const { return matrices_; }

  private:
    Tensor view_;
    Tensor packed_;
    Tensor matrices_;
};

/// Computes S and then, in the same memory, P [B * Hkv, group * Sq, Sk].
template <class T>
void probabilities(const Context& ctx, const Resolved& options, const Tensor& p, const ByHead& q,
                   const ByHead& k, Accumulator<T>* lse) {
    gemm(ctx, p, q.matrices(), k.matrices(), {.trans_b = true, .alpha = options.scale});
    for_every_row(ctx, p.size(0) * p.size(1), softmax_kernel<T>, p.data<T>(), lse, options.mask);
}

Tensor scores(const Context& ctx, const ByHead& q, const ByHead& k) {
    return empty(ctx, {q.matrices().size(0), q.matrices().size(1), k.matrices().size(1)},
                 q.matrices().dtype());
}

template <class T>
void naive_forward_typed(const Context& ctx, const Resolved& options, const Tensor& q_in, const Tensor& k_in,
                         const Tensor& v_in, const Tensor& o_out, const Tensor& lse) {
    const std::int64_t key_heads = k_in.size(2);
    const ByHead q(ctx, q_in, key_heads), k(ctx, k_in, key_heads), v(ctx, v_in, key_heads),
        o(ctx, o_out, key_heads);
    const Tensor p = scores(ctx, q, k);
    if (ctx.is_planning()) return;
    for (const ByHead* x : {&q, &k, &v}) x->load(ctx);
    probabilities<T>(ctx, options, p, q, k, lse.data<Accumulator<T>>());
    gemm(ctx, o.matrices(), p, v.matrices());
    o.store(ctx);
}

template <class T>
void naive_backward_typed(const Context& ctx, const Resolved& options, const Saved& saved,
                          const Tensor& d_o_in, const Gradients& into) {
    const std::int64_t key_heads = saved.k.size(2);
    const ByHead q(ctx, saved.q, key_heads), k(ctx, saved.k, key_heads), v(ctx, saved.v, key_heads),
        d_o(ctx, d_o_in, key_heads);
    const ByHead d_q(ctx, into.q, key_heads), d_k(ctx, into.k, key_heads), d_v(ctx, into.v, key_heads);
    const Tensor p = scores(ctx, q, k), d_s = scores(ctx, q, k);
    if (ctx.is_planning()) return;
    for (const ByHead* x : {&q, &k, &v, &d_o}) x->load(ctx);
    probabilities<T>(ctx, options, p, q, k, nullptr);
    gemm(ctx, d_s, d_o.matrices(), v.matrices(), {.trans_b = true});  // dP
    for_every_row(ctx, p.size(0) * p.size(1), softmax_backward_kernel<T>, d_s.data<T>(),
                  static_cast<const T*>(p.data<T>()), options.mask);
    gemm(ctx, d_q.matrices(), d_s, k.matrices(), {.alpha = options.scale});
    // The next two products sum over the rows of all query heads that share a K/V head.
    gemm(ctx, d_k.matrices(), d_s, q.matrices(), {.trans_a = true, .alpha = options.scale});
    gemm(ctx, d_v.matrices(), p, d_o.matrices(), {.trans_a = true});
    for (const ByHead* x : {&d_q, &d_k, &d_v}) x->store(ctx);
}

}  // namespace

void naive_forward(const Context& ctx, const Resolved& options, const Tensor& q, const Tensor& k,
                   const Tensor& v, const Tensor& o, const Tensor& lse) {
    visit_floating(q.dtype(),
                   [&]<class T>(TypeTag<T>) { naive_forward_typed<T>(ctx, options, q, k, v, o, lse); });
}

void naive_backward(const Context& ctx, const Resolved& options, const Saved& saved,
                    const OutputGradients& d_out, const Gradients& into) {
    visit_floating(saved.q.dtype(),
                   [&]<class T>(TypeTag<T>) { naive_backward_typed<T>(ctx, options, saved, d_out.o, into); });
}

}  // namespace gradtile::attention::cuda
