#pragma once
/// Cuts a checkpoint's tensors into the chunks of its file and makes them ready, on a thread of its own and a
/// few chunks ahead: while one chunk is handed to the kernel, the next is copied, checked and summed.
#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <gradtile/core/tensor.h>

namespace gradtile {

/// How a tensor is cut: every chunk is a run of consecutive elements of the row-major order, padded with
/// zeros where the cut axis ends.
struct Chunking {
    Shape chunk_shape;          ///< 1, .., 1, cut, whole axes
    int axis = 0;               ///< the cut one
    std::int64_t elements = 1;  ///< of a chunk
    std::int64_t inner = 1;     ///< elements under one index of the cut axis
    std::int64_t along = 1;     ///< chunks along the cut axis
    std::int64_t count = 0;     ///< of chunks; 0 for a tensor without elements

    /// For a tensor of 1 or more axes.
    Chunking(const Shape& shape, std::size_t element_bytes);
    /// Index of chunk i's first element along every axis.
    std::array<std::int64_t, Shape::max_rank> corner(const Shape& shape, std::int64_t i) const;
    /// Elements of chunk i without its padding.
    std::int64_t elements_of(const Shape& shape, std::int64_t i) const;
};

struct PreparedChunk {
    std::vector<std::byte> bytes;  ///< elements, padding, fletcher32: as they lie in the file
    std::uint32_t crc = 0;         ///< CRC-32C of the elements without padding
    std::uint32_t file_crc = 0;    ///< and of all bytes
    std::uint64_t data_bytes = 0;  ///< of the elements without padding
    bool finite = true;
};

/// Appends HDF5's fletcher32 to a chunk, as its filter does.
void append_fletcher32(std::vector<std::byte>& chunk);

class ChunkPreparer {
  public:
    /// Begins with the first chunk of the first tensor. The tensors (CPU, any strides) must stay as they are.
    explicit ChunkPreparer(std::vector<Tensor> tensors);
    ~ChunkPreparer();
    ChunkPreparer(const ChunkPreparer&) = delete;
    ChunkPreparer& operator=(const ChunkPreparer&) = delete;

    /// The next chunk, tensor by tensor in the order given; valid until the next call.
    const PreparedChunk& next();

  private:
    static constexpr std::size_t kAhead = 4;
    void run();
    PreparedChunk* free_slot();

    std::vector<Tensor> tensors_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::array<PreparedChunk, kAhead> ring_;
    std::uint64_t prepared_ = 0;  // chunks made ready so far
    std::uint64_t taken_ = 0;     // chunks handed out and no longer in use
    bool handed_out_ = false;     // the chunk after those is in use
    bool stop_ = false;
    std::exception_ptr failure_;
    std::thread thread_;
};

}  // namespace gradtile
