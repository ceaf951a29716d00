#include "counted_new.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

namespace gradtile::test {
namespace {

constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();

std::atomic<std::int64_t> live_bytes{0}, peak_bytes{0}, calls{0}, first_failing{never}, last_failing{never};

/// Precedes each block, and keeps its alignment.
struct alignas(__STDCPP_DEFAULT_NEW_ALIGNMENT__) Header {
    std::size_t bytes;
};

void* allocate(std::size_t bytes) {
    const std::int64_t call = ++calls;
    if (call >= first_failing && call <= last_failing) return nullptr;
    auto* const header = static_cast<Header*>(std::malloc(sizeof(Header) + bytes));
    if (header == nullptr) return nullptr;
    header->bytes = bytes;
    const std::int64_t live = live_bytes += static_cast<std::int64_t>(bytes);
    for (std::int64_t peak = peak_bytes; live > peak && !peak_bytes.compare_exchange_weak(peak, live);) {
    }
    return header + 1;
}

void release(void* block) {
    if (block == nullptr) return;
    Header* const header = static_cast<Header*>(block) - 1;
    live_bytes -= static_cast<std::int64_t>(header->bytes);
    std::free(header);
}

}  // namespace

AllocationPeak::AllocationPeak() : before_(live_bytes) {
    peak_bytes = before_;
}
std::size_t AllocationPeak::bytes() const {
    return static_cast<std::size_t>(peak_bytes - before_);
}

FailingNew::FailingNew(std::int64_t number, Failing failing) {
    calls = 0;
    last_failing = failing == Failing::once ? number : never;
    first_failing = number;
}
FailingNew::~FailingNew() {
    first_failing = never;
}
bool FailingNew::has_failed() const {
    return calls >= first_failing;
}

}  // namespace gradtile::test

void* operator new(std::size_t bytes) {
    void* const block = gradtile::test::allocate(bytes);
    if (block == nullptr) throw std::bad_alloc();
    return block;
}
void* operator new[](std::size_t bytes) {
    return operator new(bytes);
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
    return gradtile::test::allocate(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
    return gradtile::test::allocate(bytes);
}
void operator delete(void* block) noexcept {
    gradtile::test::release(block);
}
void operator delete[](void* block) noexcept {
    gradtile::test::release(block);
}
void operator delete(void* block, std::size_t) noexcept {
    gradtile::test::release(block);
}
void operator delete[](void* block, std::size_t) noexcept {
    gradtile::test::release(block);
}
