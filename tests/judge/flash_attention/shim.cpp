/// gradtile's attention behind a C interface, for ctypes. A function returns 0, or 1 if gradtile refuses the
/// call, 2 if memory is short, 3 after another error; shim_message() then says why.
#include <cstdint>
#include <optional>
#include <string>

#include <gradtile/attention/attention.h>
#include <gradtile/attention/decode.h>
#include <gradtile/core/tensor_ops.h>

using namespace gradtile;

extern "C" {

/// A PyTorch tensor; strides are in elements. Rank -1 means undefined.
struct View {
    void* data;
    std::int32_t rank, dtype;  // dtype: the number of a DType
    std::int64_t shape[4], strides[4];
};

struct Call {
    void* stream;  // nullptr on the CPU
    std::int32_t causal, deterministic;
    std::int64_t left, right;  // the window
    double scale, softcap, dropout_p;
    std::uint64_t seed;
    View alibi_slopes, cumulative_q, cumulative_k;
};

using Allocate = void* (*)(std::size_t bytes);
using Release = void (*)(void* data);

}  // extern "C"

namespace {

/// PyTorch's caching allocator. With cudaMalloc and cudaFree each call would wait for the device.
class PytorchAllocator final : public Allocator {
  public:
    PytorchAllocator(Device device, Allocate allocate, Release release)
        : device_(device), allocate_(allocate), release_(release) {}
    std::byte* allocate(std::size_t bytes) override {
        void* data = allocate_(bytes);
        if (data == nullptr)
            throw OutOfMemory("PyTorch's allocator has no " + std::to_string(bytes) + " bytes");
        return static_cast<std::byte*>(data);
    }
    void release(std::byte* data, std::size_t) noexcept override { release_(data); }
    Device device() const override { return device_; }

  private:
    Device device_;
    Allocate allocate_;
    Release release_;
};

std::optional<Context> opened;
std::string message;

Tensor tensor(const View& view) {
    if (view.rank < 0) return {};
    const auto rank = static_cast<std::size_t>(view.rank);
    return Tensor(nullptr, static_cast<std::byte*>(view.data), opened->device(),
                  static_cast<DType>(view.dtype), Shape(std::span(view.shape, rank)),
                  Strides(std::span(view.strides, rank)));
}

attention::Options options(const Call& call) {
    return {.scale = call.scale,
            .causal = call.causal != 0,
            .window = {.left = call.left, .right = call.right},
            .deterministic = call.deterministic != 0,
            .softcap = call.softcap,
            .alibi_slopes = tensor(call.alibi_slopes),
            .dropout_p = call.dropout_p,
            .dropout_key = {.training = call.dropout_p > 0, .seed = call.seed},
            .cumulative_q = tensor(call.cumulative_q),
            .cumulative_k = tensor(call.cumulative_k)};
}

template <class Body>
int guarded(const Body& body) {
    try {
        body();
        return 0;
    } catch (const OutOfMemory& error) {
        message = error.what();
        return 2;
    } catch (const Error& error) {
        message = error.what();
        return 1;
    } catch (const std::exception& error) {
        message = error.what();
        return 3;
    }
}

/// Calls body(ctx) with the context on the call's stream.
template <class Body>
int guarded(const Call& call, const Body& body) {
    return guarded(
        [&] { body(opened->with_stream(std::shared_ptr<void>(std::shared_ptr<void>(), call.stream))); });
}

}  // namespace

extern "C" {

const char* shim_message() {
    return message.c_str();
}

/// Every later call is on this device: the CPU, or the GPU with this index.
int shim_open(std::int32_t gpu, Allocate allocate, Release release) {
    return guarded([&] {
        opened = Context(gpu < 0 ? Device::cpu() : Device::cuda(gpu));
        if (gpu >= 0)
            opened = opened->with_allocator(
                std::make_shared<PytorchAllocator>(opened->device(), allocate, release));
    });
}

/// x: q, k, v, o, lse. Writes o and lse.
int shim_forward(const Call* call, const View* x) {
    return guarded(*call, [&](const Context& ctx) {
        attention::Saved saved;
        attention::forward(ctx, tensor(x[0]), tensor(x[1]), tensor(x[2]), options(*call), saved,
                           tensor(x[3]));
        copy(ctx, tensor(x[4]), saved.lse);
    });
}

/// x: d_o, d_lse, q, k, v, o, lse, d_q, d_k, d_v. Writes the last three.
int shim_backward(const Call* call, const View* x) {
    return guarded(*call, [&](const Context& ctx) {
        const attention::Saved saved{
            .q = tensor(x[2]), .k = tensor(x[3]), .v = tensor(x[4]), .o = tensor(x[5]), .lse = tensor(x[6])};
        const attention::Gradients into{.q = tensor(x[7]), .k = tensor(x[8]), .v = tensor(x[9])};
        attention::backward(ctx, tensor(x[0]), options(*call), saved, into, tensor(x[1]));
    });
}

/// x: q, k, v, slots, positions, cached k, cached v, o, lse. Writes the last four.
int shim_decode(const Call* call, const View* x) {
    return guarded(*call, [&](const Context& ctx) {
        const attention::DecodeInputs in{.q = tensor(x[0]),
                                         .k = tensor(x[1]),
                                         .v = tensor(x[2]),
                                         .slots = tensor(x[3]),
                                         .positions = tensor(x[4])};
        const attention::DecodeCache cache{.k = tensor(x[5]), .v = tensor(x[6])};
        const attention::DecodeScratch scratch(ctx, in.q.size(0), in.q.size(2), cache, in.q.size(1));
        attention::decode(ctx, tensor(x[7]), in, cache, options(*call), scratch, tensor(x[8]));
    });
}

/// Merges two partial results. x: the output's o and lse, then those of both parts.
int shim_merge(const Call* call, const View* x) {
    const auto result = [&](int i) {
        return attention::PartialResult{.o = tensor(x[i]), .lse = tensor(x[i + 1])};
    };
    return guarded(*call,
                   [&](const Context& ctx) { attention::merge(ctx, result(0), result(2), result(4)); });
}

/// x: q, k, v. Writes to the message which kernels compute the forward call.
int shim_explain(const Call* call, const View* x) {
    return guarded(*call, [&](const Context& ctx) {
        message = attention::explain_forward(ctx, tensor(x[0]), tensor(x[1]), tensor(x[2]), options(*call));
    });
}

}  // extern "C"
