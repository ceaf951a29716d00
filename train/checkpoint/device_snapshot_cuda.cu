#include <gradtile/train/checkpoint/device_snapshot.h>

#include <algorithm>

#include <gradtile/core/allocator.h>
#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/internal/cuda_check.h>

namespace gradtile {
namespace {

using cuda::cuda_check;

constexpr int threads_per_block = 256;
// Bytes that a thread block copies: large enough that the block's start-up time is negligible, small enough
// to distribute the work evenly.
constexpr std::uint64_t piece_bytes = 64 << 10;

__global__ void __launch_bounds__(threads_per_block)
    gather_kernel(std::byte* snapshot, const SnapshotPart* pieces) {
    const SnapshotPart piece = pieces[blockIdx.x];
    std::byte* const to = snapshot + piece.offset;
    std::uint64_t copied = 0;
    if (reinterpret_cast<std::uintptr_t>(piece.from) % sizeof(uint4) == 0) {
        const auto* const words = reinterpret_cast<const uint4*>(piece.from);
        const std::uint64_t count = piece.bytes / sizeof(uint4);
#pragma unroll 4
        for (std::uint64_t i = threadIdx.x; i < count; i += threads_per_block)
            reinterpret_cast<uint4*>(to)[i] = words[i];
        copied = count * sizeof(uint4);
    }
    for (std::uint64_t i = copied + threadIdx.x; i < piece.bytes; i += threads_per_block)
        to[i] = piece.from[i];
}

struct DestroyEvent {
    void operator()(cudaEvent_t event) const { (void)cudaEventDestroy(event); }
};
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;

Event make_event() {
    cudaEvent_t event = nullptr;
    cuda_check(cudaEventCreate(&event));
    return Event(event);
}

}  // namespace

struct DeviceSnapshot::Impl {
    explicit Impl(const Context& context)
        : ctx(context),
          side_stream(cuda::make_stream(context.device())),
          begun(make_event()),
          taken(make_event()) {}

    cudaStream_t stream() const { return static_cast<cudaStream_t>(ctx.stream()); }
    cudaStream_t side() const { return static_cast<cudaStream_t>(side_stream.get()); }

    Context ctx;
    std::shared_ptr<void> side_stream;
    Event begun, taken;
    std::unique_ptr<Buffer> memory, table;
    std::vector<SnapshotPart> parts;  // the parts in `table`
    std::byte* host = nullptr;        // where they are copied to; null: `memory`
    std::size_t pieces = 0;
    double seconds = 0.0;
};

DeviceSnapshot::DeviceSnapshot(const Context& ctx) : impl_(std::make_unique<Impl>(ctx)) {}
DeviceSnapshot::~DeviceSnapshot() = default;

void DeviceSnapshot::reserve(const std::vector<SnapshotPart>& parts, std::byte* host) {
    Impl& s = *impl_;
    s.host = host;
    if (parts == s.parts && (host != nullptr || s.memory)) return;
    cuda::use_device(s.ctx.device());
    std::vector<SnapshotPart> pieces;
    std::uint64_t end = 0;
    for (const SnapshotPart& part : parts) {
        for (std::uint64_t begin = 0; begin < part.bytes; begin += piece_bytes)
            pieces.push_back(
                {part.from + begin, part.offset + begin, std::min(piece_bytes, part.bytes - begin)});
        end = std::max(end, part.offset + part.bytes);
    }
    s.parts.clear();
    const auto memory_of = [&](std::unique_ptr<Buffer>& buffer, std::size_t bytes) {
        if (buffer && buffer->bytes() >= bytes) return;
        buffer.reset();  // frees the old buffer before the new one is allocated
        buffer = std::make_unique<Buffer>(system_allocator(s.ctx.device()), bytes);
    };
    if (host == nullptr) memory_of(s.memory, end);
    memory_of(s.table, pieces.size() * sizeof(SnapshotPart));
    if (!pieces.empty())
        cuda::copy_bytes(s.table->data(), reinterpret_cast<const std::byte*>(pieces.data()),
                         pieces.size() * sizeof(SnapshotPart), s.ctx.device(), s.ctx.stream());
    cuda::synchronize(s.ctx.device(), s.ctx.stream());
    s.pieces = pieces.size();
    s.parts = parts;
}

void DeviceSnapshot::take(const std::vector<SnapshotPart>& parts, std::byte* host) {
    reserve(parts, host);
    Impl& s = *impl_;
    cuda::use_device(s.ctx.device());
    cuda_check(cudaEventRecord(s.begun.get(), s.stream()));
    if (s.pieces > 0) {
        gather_kernel<<<static_cast<unsigned>(s.pieces), threads_per_block, 0, s.stream()>>>(
            host != nullptr ? host : s.memory->data(),
            reinterpret_cast<const SnapshotPart*>(s.table->data()));
        cuda_check(cudaGetLastError());
    }
    cuda_check(cudaEventRecord(s.taken.get(), s.stream()));
}

void DeviceSnapshot::download(std::byte* to, std::uint64_t bytes) {
    Impl& s = *impl_;
    cuda::use_device(s.ctx.device());
    cuda_check(cudaStreamWaitEvent(s.side(), s.taken.get(), 0));
    if (bytes > 0 && s.host == nullptr)
        cuda_check(cudaMemcpyAsync(to, s.memory->data(), std::min<std::uint64_t>(bytes, s.memory->bytes()),
                                   cudaMemcpyDeviceToHost, s.side()));
    cuda_check(cudaStreamSynchronize(s.side()));
    float milliseconds = 0.0f;
    cuda_check(cudaEventElapsedTime(&milliseconds, s.begun.get(), s.taken.get()));
    s.seconds = 1e-3 * static_cast<double>(milliseconds);
}

double DeviceSnapshot::seconds_on_stream() const {
    return impl_->seconds;
}

}  // namespace gradtile
