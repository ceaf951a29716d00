#include <gradtile/core/tensor_ops.h>

#include <gradtile/core/cuda/cuda_runtime.h>
#include <gradtile/core/internal/tensor_ops_backend.h>

namespace gradtile {

void fill(const Context& ctx, const Tensor& x, double value) {
    on_device(ctx, cpu::fill, cuda::fill, x, value);
}

void copy(const Context& ctx, const Tensor& destination, const Tensor& source) {
    check(destination.shape() == source.shape(), "copy: ", source, " to ", destination);
    on_device(ctx, cpu::copy, cuda::copy, destination, source);
}

void axpy(const Context& ctx, const Tensor& y, double alpha, const Tensor& x) {
    check(y.shape() == x.shape(), "axpy: ", x, " to ", y);
    on_device(ctx, cpu::axpy, cuda::axpy, y, alpha, x);
}

Tensor cast(const Context& ctx, const Tensor& x, DType dtype) {
    Tensor result = empty(ctx, x.shape(), dtype);
    copy(ctx, result, x);
    return result;
}

namespace {
/// Host elements in memory of ctx's own allocator, whatever the device.
Tensor from_host_elements(const Context& ctx, const Tensor& host) {
    if (ctx.device().is_cuda()) return to_device(ctx, host);
    Tensor result = empty_like(ctx, host);
    if (!ctx.is_planning()) copy(ctx, result, host);
    return result;
}
}  // namespace

Tensor to_device(const Context& ctx, const Tensor& x) {
    if (x.device() == ctx.device()) return x;
    check(x.device().is_cpu() && ctx.device().is_cuda(), "to_device: ", x, " to ", ctx.device());
    Tensor result = empty(ctx, x.shape(), x.dtype());
    if (ctx.is_planning() || x.elements() == 0) return result;
    const Tensor packed = x.is_contiguous() ? x : cast(host_of(ctx), x, x.dtype());
    cuda::copy_bytes(result.raw_data(), packed.raw_data(), packed.bytes(), ctx.device(), ctx.stream());
    cuda::synchronize(ctx.device(), ctx.stream());
    return result;
}

Tensor from_host(const Context& ctx, std::span<const double> values, const Shape& shape, DType dtype) {
    check(static_cast<std::int64_t>(values.size()) == shape.elements(), "from_host: ", values.size(),
          " values for shape ", shape);
    const Context host = host_of(ctx);
    Tensor x = empty(host, shape, DType::f64);
    std::copy(values.begin(), values.end(), x.data<double>());
    return from_host_elements(ctx, cast(host, x, dtype));
}

Tensor from_host(const Context& ctx, std::span<const std::int32_t> values, const Shape& shape) {
    check(static_cast<std::int64_t>(values.size()) == shape.elements(), "from_host: ", values.size(),
          " values for shape ", shape);
    Tensor x = empty(host_of(ctx), shape, DType::i32);
    std::copy(values.begin(), values.end(), x.data<std::int32_t>());
    return from_host_elements(ctx, x);
}

std::vector<double> to_host(const Context& ctx, const Tensor& x) {
    std::vector<double> values(static_cast<std::size_t>(x.elements()));
    if (ctx.is_planning() || values.empty()) return values;
    const Context host = host_of(ctx);
    Tensor source = x;
    if (ctx.device().is_cuda()) {
        const Tensor packed = x.is_contiguous() ? x : cast(ctx, x, x.dtype());
        source = empty(host, x.shape(), x.dtype());
        cuda::copy_bytes(source.raw_data(), packed.raw_data(), packed.bytes(), ctx.device(), ctx.stream());
        cuda::synchronize(ctx.device(), ctx.stream());
    }
    const Tensor result(nullptr, reinterpret_cast<std::byte*>(values.data()), Device::cpu(), DType::f64,
                        x.shape(), contiguous_strides(x.shape()));
    copy(host, result, source);
    return values;
}

double item(const Context& ctx, const Tensor& x) {
    check(x.elements() == 1, "item: ", x, " has not exactly one element");
    return to_host(ctx, x)[0];
}

}  // namespace gradtile
