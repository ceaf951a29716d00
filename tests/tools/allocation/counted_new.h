#pragma once
/// This test program's operator new counts bytes and calls, and can fail.
#include <cstddef>
#include <cstdint>

namespace gradtile::test {

/// Measures the largest number of bytes that the program holds, beyond the bytes held at construction.
class AllocationPeak {
  public:
    AllocationPeak();
    std::size_t bytes() const;

  private:
    std::int64_t before_;
};

enum class Failing { once, from_then_on };

/// Lets operator new throw std::bad_alloc, in any thread, at its `number`-th call (from 1) and, if asked, at
/// all later ones. The destructor ends this.
class FailingNew {
  public:
    FailingNew(std::int64_t number, Failing failing);
    ~FailingNew();
    FailingNew(const FailingNew&) = delete;
    FailingNew& operator=(const FailingNew&) = delete;
    /// Returns whether a call has failed.
    bool has_failed() const;
};

}  // namespace gradtile::test
