#include <gradtile/core/tensor_ops.h>

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/internal/overlap.h>
#include <gradtile/core/internal/tensor_ops_backend.h>

namespace gradtile {
namespace {

/// Throws Error unless the context can access the elements. An undefined tensor has shape [] but no element,
/// and the CPU cannot read a GPU's memory. A context on a GPU also takes tensors in page-locked host memory.
void check_accessible(const Context& ctx, const Tensor& x, const char* what) {
    check(x.defined(), what, ": an operand is undefined; expected a tensor");
    check(x.device().is_cpu() || ctx.device().is_cuda(), what, ": ", x, " in a context of ", ctx.device(),
          "; devices must be equal");
}

}  // namespace

void fill(const Context& ctx, const Tensor& x, double value) {
    check_accessible(ctx, x, "fill");
    on_device(ctx, cpu::fill, cuda::fill, x, value);
}

void copy(const Context& ctx, const Tensor& destination, const Tensor& source) {
    check(destination.shape() == source.shape(), "copy: ", source, " to ", destination,
          "; shapes must be equal");
    check_accessible(ctx, destination, "copy");
    check_accessible(ctx, source, "copy");
    check_distinct_elements("copy", {"destination", destination});
    check_sharing(ctx, "copy", {"destination", destination}, {{"source", source}}, Sharing::same_view);
    on_device(ctx, cpu::copy, cuda::copy, destination, source);
}

void axpy(const Context& ctx, const Tensor& y, double alpha, const Tensor& x) {
    check(y.shape() == x.shape(), "axpy: ", x, " added to ", y, "; shapes must be equal");
    check_accessible(ctx, y, "axpy");
    check_accessible(ctx, x, "axpy");
    check_distinct_elements("axpy", {"y", y});
    check_sharing(ctx, "axpy", {"y", y}, {{"x", x}}, Sharing::same_view);
    on_device(ctx, cpu::axpy, cuda::axpy, y, alpha, x);
}

Tensor cast(const Context& ctx, const Tensor& x, DType dtype) {
    check_accessible(ctx, x, "cast");
    Tensor result = empty(ctx, x.shape(), dtype);
    copy(ctx, result, x);
    return result;
}

Tensor to_device(const Context& ctx, const Tensor& x) {
    check(x.defined(), "to_device: an operand is undefined; expected a tensor");
    if (x.device() == ctx.device()) return x;
    check(x.device().is_cpu() && ctx.device().is_cuda(), "to_device: ", x, " to ", ctx.device(),
          "; expected a CPU tensor and a CUDA device");
    Tensor result = empty(ctx, x.shape(), x.dtype());
    if (ctx.is_planning() || x.elements() == 0) return result;
    const Tensor packed = x.is_contiguous() ? x : cast(host_of(ctx), x, x.dtype());
    cuda::copy_bytes(result.raw_data(), packed.raw_data(), packed.bytes(), ctx.device(), ctx.stream());
    cuda::synchronize(ctx.device(), ctx.stream());
    return result;
}

namespace {
template <class T>
Tensor from_values(const Context& ctx, std::span<const T> values, const Shape& shape, DType dtype) {
    check(static_cast<std::int64_t>(values.size()) == shape.elements(), "from_host: ", values.size(),
          " values for shape ", shape, "; expected ", shape.elements());
    // from_blob takes non-const memory, but this tensor is only read.
    const Tensor host = Tensor::from_blob(const_cast<T*>(values.data()), shape, dtype_of<T>);
    if (ctx.device().is_cpu()) return cast(ctx, host, dtype);
    return to_device(ctx, host.dtype() == dtype ? host : cast(host_of(ctx), host, dtype));
}
}  // namespace

Tensor from_host(const Context& ctx, std::span<const double> values, const Shape& shape, DType dtype) {
    return from_values(ctx, values, shape, dtype);
}

Tensor from_host(const Context& ctx, std::span<const float> values, const Shape& shape, DType dtype) {
    return from_values(ctx, values, shape, dtype);
}

Tensor from_host(const Context& ctx, std::span<const std::int32_t> values, const Shape& shape) {
    return from_values(ctx, values, shape, DType::i32);
}

std::vector<double> to_host(const Context& ctx, const Tensor& x) {
    check_accessible(ctx, x, "to_host");
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
    copy(host, Tensor::from_blob(values.data(), x.shape(), DType::f64), source);
    return values;
}

double item(const Context& ctx, const Tensor& x) {
    check_accessible(ctx, x, "item");
    check(x.elements() == 1, "item: ", x, "; expected exactly one element");
    return to_host(ctx, x)[0];
}

}  // namespace gradtile
