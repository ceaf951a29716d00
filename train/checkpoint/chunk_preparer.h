#pragma once
/// Cuts a checkpoint's tensors into the chunks of its file. A second thread prepares a few chunks ahead:
/// while the calling thread writes one chunk, the second thread copies the next one, checks it for infinities
/// and NaNs, and computes its checksum.
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

/// How a tensor is cut. A chunk is a contiguous element range in row-major order; the last chunk along the
/// cut axis is padded with zeros.
struct Chunking {
    Shape chunk_shape;          ///< [1, .., 1, part of the cut axis, whole axes]
    int axis = 0;               ///< the cut axis
    std::int64_t elements = 1;  ///< elements per chunk, including padding
    std::int64_t inner = 1;     ///< elements under one index of the cut axis
    std::int64_t along = 1;     ///< chunks along the cut axis
    std::int64_t count = 0;     ///< chunk count; 0 for a tensor without elements

    /// `shape` has 1 or more axes.
    Chunking(const Shape& shape, std::size_t element_bytes);
    /// Returns the indices of chunk i's first element, one per axis.
    std::array<std::int64_t, Shape::max_rank> corner(const Shape& shape, std::int64_t i) const;
    /// Returns chunk i's element count without padding.
    std::int64_t elements_of(const Shape& shape, std::int64_t i) const;
};

struct PreparedChunk {
    std::vector<std::byte> bytes;  ///< elements, padding, fletcher32, as in the file
    std::uint32_t crc = 0;         ///< CRC-32C over the elements without padding
    std::uint32_t file_crc = 0;    ///< CRC-32C over all bytes
    std::uint64_t data_bytes = 0;  ///< element bytes without padding
    bool finite = true;
};

/// Appends HDF5's fletcher32 to a chunk, as HDF5's filter does.
void append_fletcher32(std::vector<std::byte>& chunk);

class ChunkPreparer {
  public:
    /// Starts preparing the first tensor's first chunk. The tensors (CPU, any strides) must not change while
    /// this object exists.
    explicit ChunkPreparer(std::vector<Tensor> tensors);
    ~ChunkPreparer();
    ChunkPreparer(const ChunkPreparer&) = delete;
    ChunkPreparer& operator=(const ChunkPreparer&) = delete;

    /// Returns the next chunk; the tensors come in the given order. The reference is valid until the next
    /// call.
    const PreparedChunk& next();

  private:
    static constexpr std::size_t kAhead = 4;
    void run();
    PreparedChunk* free_slot();

    std::vector<Tensor> tensors_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::array<PreparedChunk, kAhead> ring_;
    std::uint64_t prepared_ = 0;  // chunks prepared so far
    std::uint64_t taken_ = 0;     // chunks that the caller no longer uses
    bool in_use_ = false;         // the caller uses chunk number taken_
    bool stop_ = false;
    std::exception_ptr failure_;
    std::thread thread_;
};

}  // namespace gradtile
