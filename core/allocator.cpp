#include <gradtile/core/allocator.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <ostream>
#include <set>

#include <gradtile/core/check.h>
#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/offload_allocator.h>
#include <gradtile/core/os/internal/operating_system.h>

namespace gradtile {
namespace {

constexpr std::size_t alignment = 256;

std::size_t round_up(std::size_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
}

/// Blocks of several megabytes request huge pages: a step accesses hundreds of megabytes, and with 4 KiB
/// pages a strided product misses the TLB in every row.
constexpr std::size_t huge_page = std::size_t{2} << 20;

std::byte* host_malloc(std::size_t bytes) {
    const std::size_t boundary = bytes >= 2 * huge_page ? huge_page : alignment;
    auto* const data =
        static_cast<std::byte*>(std::aligned_alloc(boundary, (bytes + boundary - 1) / boundary * boundary));
    if (data != nullptr && boundary == huge_page) os::request_huge_pages(data, bytes);
    return data;
}

class HostAllocator final : public Allocator {
  public:
    std::byte* allocate(std::size_t bytes) override {
        std::byte* const data = bytes > PTRDIFF_MAX - huge_page ? nullptr : host_malloc(bytes);
        if (data == nullptr)
            throw OutOfMemory(concat("out of memory: ", bytes, " bytes asked for on the CPU"));
        return data;
    }
    void release(std::byte* data, std::size_t) noexcept override { std::free(data); }
    Device device() const override { return Device::cpu(); }
};

class CudaAllocator final : public Allocator {
  public:
    explicit CudaAllocator(Device device) : device_(device) {}
    std::byte* allocate(std::size_t bytes) override { return cuda::device_malloc(device_, bytes); }
    void release(std::byte* data, std::size_t) noexcept override { cuda::device_free(device_, data); }
    Device device() const override { return device_; }

  private:
    Device device_;
};

class PageLockedAllocator final : public Allocator {
  public:
    PageLockedAllocator(Device gpu, Device device_of_tensors)
        : gpu_(gpu), device_of_tensors_(device_of_tensors) {}
    std::byte* allocate(std::size_t bytes) override { return cuda::page_locked_malloc(gpu_, bytes); }
    void release(std::byte* data, std::size_t) noexcept override { cuda::page_locked_free(gpu_, data); }
    Device device() const override { return device_of_tensors_; }

  private:
    Device gpu_, device_of_tensors_;
};

class FallbackAllocator final : public Allocator {
  public:
    FallbackAllocator(std::shared_ptr<Allocator> preferred, std::shared_ptr<Allocator> otherwise)
        : preferred_(std::move(preferred)), otherwise_(std::move(otherwise)) {}
    std::byte* allocate(std::size_t bytes) override {
        try {
            return preferred_->allocate(bytes);
        } catch (const OutOfMemory&) {
            std::byte* const data = otherwise_->allocate(bytes);
            fallback_blocks_.insert(data);
            return data;
        }
    }
    void release(std::byte* data, std::size_t bytes) noexcept override {
        (fallback_blocks_.erase(data) > 0 ? otherwise_ : preferred_)->release(data, bytes);
    }
    Device device() const override { return preferred_->device(); }

  private:
    std::shared_ptr<Allocator> preferred_, otherwise_;
    std::set<std::byte*> fallback_blocks_;
};

}  // namespace

std::ostream& operator<<(std::ostream& out, Device device) {
    return device.is_cpu() ? out << "cpu" : out << "cuda:" << device.index();
}

std::shared_ptr<Allocator> system_allocator(Device device) {
    if (device.is_cpu()) return std::make_shared<HostAllocator>();
    return std::make_shared<CudaAllocator>(device);
}

std::shared_ptr<Allocator> transfer_allocator(Device device) {
    if (device.is_cpu()) return system_allocator(device);
    return std::make_shared<PageLockedAllocator>(device, Device::cpu());
}

std::shared_ptr<Allocator> offload_allocator(Device device) {
    check(device.is_cuda(), "offload: memory of ", device, " is asked for; expected a GPU's");
    return std::make_shared<PageLockedAllocator>(device, device);
}

std::shared_ptr<Allocator> with_fallback(std::shared_ptr<Allocator> preferred,
                                         std::shared_ptr<Allocator> otherwise) {
    return std::make_shared<FallbackAllocator>(std::move(preferred), std::move(otherwise));
}

std::shared_ptr<Allocator> staging_allocator(Device device) {
    return with_fallback(transfer_allocator(device), system_allocator(Device::cpu()));
}

Buffer::Buffer(std::shared_ptr<Allocator> allocator, std::size_t bytes)
    : allocator_(std::move(allocator)),
      data_(bytes == 0 ? nullptr : allocator_->allocate(bytes)),
      bytes_(bytes) {}

Buffer::~Buffer() {
    if (bytes_ != 0) allocator_->release(data_, bytes_);
}

Arena::Arena(Device device, std::size_t capacity, std::shared_ptr<Allocator> source)
    : device_(device), capacity_(round_up(capacity)) {
    check(capacity_ >= capacity, "activation arena: a capacity of ", capacity, " bytes is too large");
    block_ = std::make_unique<Buffer>(source ? std::move(source) : system_allocator(device), capacity_);
    base_ = block_->data();
    if (capacity_ > 0) free_.emplace(0, capacity_);
}

Arena::Arena(Device device) : device_(device), capacity_(SIZE_MAX / 4) {
    constexpr std::uintptr_t never_touched = std::uintptr_t{1} << 40;  // never accessed: only offsets matter
    base_ = reinterpret_cast<std::byte*>(never_touched);
    free_.emplace(0, capacity_);
}

std::shared_ptr<Arena> Arena::for_planning(Device device) {
    return std::shared_ptr<Arena>(new Arena(device));
}

std::byte* Arena::allocate(std::size_t bytes) {
    // A request larger than the capacity must fail, but rounding up a size near SIZE_MAX would wrap to 0.
    const std::size_t needed = bytes > capacity_ ? SIZE_MAX : round_up(bytes);
    for (auto gap = free_.begin(); gap != free_.end(); ++gap) {
        const auto [offset, length] = *gap;
        if (length < needed) continue;
        free_.erase(gap);
        if (length > needed) free_.emplace(offset + needed, length - needed);
        in_use_ += needed;
        peak_ = std::max(peak_, offset + needed);
        return base_ + offset;
    }
    throw Error(concat("activation arena: ", bytes, " bytes do not fit; ", in_use_, " of ", capacity_,
                       " are in use"));
}

void Arena::release(std::byte* data, std::size_t bytes) noexcept {
    std::size_t offset = static_cast<std::size_t>(data - base_);
    std::size_t length = round_up(bytes);
    in_use_ -= length;
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && offset + length == next->first) {
        length += next->second;
        next = free_.erase(next);
    }
    if (next != free_.begin()) {
        const auto previous = std::prev(next);
        if (previous->first + previous->second == offset) {
            previous->second += length;
            return;
        }
    }
    free_.emplace(offset, length);
}

}  // namespace gradtile
