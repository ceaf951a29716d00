#include <gradtile/core/internal/master_weights.h>

#include <gradtile/core/context.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

void check_masters(const char* op, const Tensor& masters, const Tensor& remainders) {
    check(masters.dtype() == DType::f32 && masters.is_contiguous() && remainders.dtype() == DType::i32 &&
              remainders.is_contiguous() && masters.elements() == remainders_per_word * remainders.elements(),
          op, ": masters ", masters, " and remainders ", remainders,
          "; expected contiguous float32 [n] and int32 [n / 2]");
}

}  // namespace

void round_masters(const Context& ctx, const Tensor& masters, const Tensor& values) {
    if (values.dtype() != DType::bf16) {
        copy(ctx, values, masters);
        return;
    }
    check(masters.dtype() == DType::f32 && masters.shape() == values.shape() && masters.is_contiguous() &&
              values.is_contiguous(),
          "round_masters: masters ", masters, " and values ", values,
          "; expected contiguous float32 masters in the values' shape");
    on_device(ctx, cpu::round_masters, cuda::round_masters, masters, values);
}

void split_masters(const Context& ctx, const Tensor& masters, const Tensor& remainders) {
    check_masters("split_masters", masters, remainders);
    on_device(ctx, cpu::split_masters, cuda::split_masters, masters, remainders);
}

void join_masters(const Context& ctx, const Tensor& values, const Tensor& remainders, const Tensor& masters) {
    check_masters("join_masters", masters, remainders);
    check(values.dtype() == DType::bf16 && values.is_contiguous() && values.elements() == masters.elements(),
          "join_masters: values ", values, "; expected contiguous bfloat16 for masters ", masters);
    on_device(ctx, cpu::join_masters, cuda::join_masters, values, remainders, masters);
}

namespace cpu {
namespace {

template <class Body>
void for_masters(const Context& ctx, std::int64_t n, const Body& body) {
    constexpr std::int64_t grain = 1 << 15;
    parallel_ranges(ctx, n, grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) body(i);
    });
}

}  // namespace

void round_masters(const Context& ctx, const Tensor& masters, const Tensor& values) {
    for_masters(ctx, masters.elements(),
                [from = masters.data<float>(), to = values.data<bfloat16>()](std::int64_t i) {
                    to[i] = rounded_master(from[i]);
                });
}

void split_masters(const Context& ctx, const Tensor& masters, const Tensor& remainders) {
    for_masters(ctx, masters.elements(),
                [from = masters.data<float>(), to = weight_data<std::int16_t>(remainders)](std::int64_t i) {
                    to[i] = remainder_of(from[i]);
                });
}

void join_masters(const Context& ctx, const Tensor& values, const Tensor& remainders, const Tensor& masters) {
    for_masters(ctx, masters.elements(),
                [from = values.data<bfloat16>(), low = weight_data<std::int16_t>(remainders),
                 to = masters.data<float>()](std::int64_t i) { to[i] = joined_master(from[i], low[i]); });
}

}  // namespace cpu
}  // namespace gradtile
