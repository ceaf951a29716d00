#include <gradtile/train/checkpoint/chunk_preparer.h>

#include <algorithm>
#include <cstring>

#include <gradtile/core/io/checksum.h>
#include <gradtile/core/start_thread.h>
#include <gradtile/train/checkpoint/tensor_bytes.h>

namespace gradtile {

namespace {

// A chunk of half a MiB stays in a core's cache while it is copied, checked for infinities and NaNs,
// checksummed twice and written. This size also gives fast disk writes and a small index.
constexpr std::int64_t kChunkBytes = std::int64_t{512} << 10;

void prepare(const Tensor& x, const Chunking& cut, std::int64_t i, PreparedChunk& chunk) {
    const std::size_t element = size_of(x.dtype());
    const std::int64_t slab =
        x.size(cut.axis) * cut.inner;  // elements under one index of the axes before the cut
    const std::int64_t begin = i / cut.along * slab + i % cut.along * cut.elements;
    const std::int64_t end = begin + cut.elements_of(x.shape(), i);
    chunk.data_bytes = static_cast<std::uint64_t>(end - begin) * element;
    chunk.bytes.resize(static_cast<std::size_t>(cut.elements) * element);
    copy_row_major(x, begin, end, chunk.bytes.data());
    std::memset(chunk.bytes.data() + chunk.data_bytes, 0, chunk.bytes.size() - chunk.data_bytes);
    chunk.finite = all_finite(x.dtype(), chunk.bytes.data(), static_cast<std::size_t>(end - begin));
    chunk.crc = crc32c({chunk.bytes.data(), static_cast<std::size_t>(chunk.data_bytes)});
    append_fletcher32(chunk.bytes);
    chunk.file_crc = crc32c(std::span(chunk.bytes).subspan(chunk.data_bytes), chunk.crc);
}

}  // namespace

Chunking::Chunking(const Shape& shape, std::size_t element_bytes)
    : chunk_shape(shape), axis(shape.rank() - 1) {
    // libhdf5 needs chunks with at least one element, even for an empty tensor.
    for (int i = 0; i < shape.rank(); ++i) chunk_shape[i] = std::max<std::int64_t>(shape[i], 1);
    const std::int64_t limit = kChunkBytes / static_cast<std::int64_t>(element_bytes);
    while (axis > 0 && inner * chunk_shape[axis] <= limit) inner *= chunk_shape[axis--];
    const std::int64_t length = chunk_shape[axis];
    const std::int64_t fitting = std::clamp<std::int64_t>(limit / inner, 1, length);
    const std::int64_t pieces = ceil_div(length, fitting);
    chunk_shape[axis] = ceil_div(length, pieces);  // equal pieces: less padding in the last
    elements = chunk_shape[axis] * inner;
    along = ceil_div(length, chunk_shape[axis]);
    std::int64_t outer = 1;
    for (int i = 0; i < axis; ++i) {
        chunk_shape[i] = 1;
        outer *= shape[i];
    }
    count = shape.elements() == 0 ? 0 : outer * along;
}

std::array<std::int64_t, Shape::max_rank> Chunking::corner(const Shape& shape, std::int64_t i) const {
    std::array<std::int64_t, Shape::max_rank> corner{};
    corner[static_cast<std::size_t>(axis)] = i % along * chunk_shape[axis];
    std::int64_t outer = i / along;
    for (int a = axis - 1; a >= 0; --a) {
        corner[static_cast<std::size_t>(a)] = outer % shape[a];
        outer /= shape[a];
    }
    return corner;
}

std::int64_t Chunking::elements_of(const Shape& shape, std::int64_t i) const {
    return std::min(elements, shape[axis] * inner - i % along * elements);
}

void append_fletcher32(std::vector<std::byte>& chunk) {
    const std::uint32_t sum = fletcher32(chunk);
    const std::size_t end = chunk.size();
    chunk.resize(end + sizeof sum);
    std::memcpy(chunk.data() + end, &sum, sizeof sum);
}

ChunkPreparer::ChunkPreparer(std::vector<Tensor> tensors)
    : tensors_(std::move(tensors)), thread_(start_thread("preparing a checkpoint", [this] { run(); })) {}

ChunkPreparer::~ChunkPreparer() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

PreparedChunk* ChunkPreparer::free_slot() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stop_ || prepared_ - taken_ < kAhead; });
    return stop_ ? nullptr : &ring_[prepared_ % kAhead];
}

void ChunkPreparer::run() {
    try {
        for (const Tensor& x : tensors_) {
            const Chunking cut(x.shape(), size_of(x.dtype()));
            for (std::int64_t i = 0; i < cut.count; ++i) {
                PreparedChunk* const slot = free_slot();
                if (slot == nullptr) return;
                prepare(x, cut, i, *slot);
                const std::lock_guard lock(mutex_);
                ++prepared_;
                changed_.notify_all();
            }
        }
    } catch (...) {  // out of memory
        const std::lock_guard lock(mutex_);
        failure_ = std::current_exception();
        changed_.notify_all();
    }
}

const PreparedChunk& ChunkPreparer::next() {
    std::unique_lock lock(mutex_);
    if (in_use_) {
        ++taken_;
        changed_.notify_all();
    }
    changed_.wait(lock, [this] { return prepared_ > taken_ || failure_ != nullptr; });
    if (prepared_ <= taken_) std::rethrow_exception(failure_);
    in_use_ = true;
    return ring_[taken_ % kAhead];
}

}  // namespace gradtile
