#pragma once
/// Devices and their memory: a Buffer owns a block, an Allocator provides blocks, an Arena is an allocator
/// over one block with a planned size.
#include <cstddef>
#include <iosfwd>
#include <map>
#include <memory>

#include <gradtile/core/check.h>

namespace gradtile {

/// A CPU or a GPU, which has memory and runs operators.
class Device {
  public:
    enum class Kind { cpu, cuda };
    static constexpr Device cpu() { return Device(Kind::cpu, 0); }
    static constexpr Device cuda(int index = 0) { return Device(Kind::cuda, index); }

    constexpr Kind kind() const { return kind_; }
    constexpr int index() const { return index_; }
    constexpr bool is_cpu() const { return kind_ == Kind::cpu; }
    constexpr bool is_cuda() const { return kind_ == Kind::cuda; }
    constexpr bool operator==(const Device&) const = default;

  private:
    constexpr Device(Kind kind, int index) : kind_(kind), index_(index) {}
    Kind kind_;
    int index_;
};
/// Prints "cpu" or "cuda:0".
std::ostream& operator<<(std::ostream& out, Device device);

/// Returns how many CUDA devices are usable: 0 if the build had no CUDA toolkit, or the machine has no driver
/// or no GPU.
int cuda_device_count();

/// Thrown by the system allocators. The message says how much was requested, where, and how much is free.
class OutOfMemory : public Error {
  public:
    explicit OutOfMemory(const std::string& message) : Error(message) {}
};

/// Provides device memory. allocate() returns memory that is aligned to at least 64 bytes (256 on CUDA), and
/// throws Error when there is not enough. Only one thread at a time may use an allocator.
class Allocator {
  public:
    virtual ~Allocator() = default;
    virtual std::byte* allocate(std::size_t bytes) = 0;
    virtual void release(std::byte* data, std::size_t bytes) noexcept = 0;
    virtual Device device() const = 0;
};

/// Returns the allocator that calls malloc (CPU) or cudaMalloc (CUDA).
std::shared_ptr<Allocator> system_allocator(Device device);

/// Returns a host memory allocator for asynchronous copies from and to `device`: page-locked for CUDA,
/// pageable for the CPU.
std::shared_ptr<Allocator> transfer_allocator(Device device);

/// Allocates from `preferred`, and from `otherwise` when `preferred` fails. Both allocators have the same
/// device.
std::shared_ptr<Allocator> with_fallback(std::shared_ptr<Allocator> preferred,
                                         std::shared_ptr<Allocator> otherwise);

/// Like transfer_allocator(), but for gigabytes: when the host cannot lock more pages, the allocator provides
/// pageable memory, which is copied more slowly.
std::shared_ptr<Allocator> staging_allocator(Device device);

/// One memory block, given back to its allocator on destruction.
class Buffer {
  public:
    Buffer(std::shared_ptr<Allocator> allocator, std::size_t bytes);
    ~Buffer();
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    std::byte* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }
    Device device() const { return allocator_->device(); }
    const std::shared_ptr<Allocator>& allocator() const { return allocator_; }

  private:
    std::shared_ptr<Allocator> allocator_;
    std::byte* data_;
    std::size_t bytes_;
};

/// First-fit allocator over one fixed-size block. Since a training step allocates and frees in the same order
/// every time, addresses repeat from step to step, and a dry run (see Context::plan) measures the size in
/// advance.
class Arena final : public Allocator {
  public:
    /// Allocates the whole block from `source`; from the system allocator if `source` is null.
    Arena(Device device, std::size_t capacity, std::shared_ptr<Allocator> source = {});
    /// An arena that only measures how much memory some work needs. Its addresses must not be accessed.
    static std::shared_ptr<Arena> for_planning(Device device);

    std::byte* allocate(std::size_t bytes) override;
    void release(std::byte* data, std::size_t bytes) noexcept override;
    Device device() const override { return device_; }

    std::size_t capacity() const { return capacity_; }
    std::size_t bytes_in_use() const { return in_use_; }
    /// The highest allocation end so far: the capacity that the same requests in the same order need.
    std::size_t peak_bytes() const { return peak_; }
    void reset_peak() { peak_ = in_use_; }

  private:
    explicit Arena(Device device);  // an arena without memory, for planning
    Device device_;
    std::size_t capacity_;
    std::unique_ptr<Buffer> block_;
    std::byte* base_ = nullptr;
    std::map<std::size_t, std::size_t> free_;  // offset -> length, neighbours merged
    std::size_t in_use_ = 0;
    std::size_t peak_ = 0;
};

}  // namespace gradtile
