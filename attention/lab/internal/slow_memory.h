#pragma once
/// INTERNAL. The slow memory of the lab, which measures how many bytes are in use.
#include <algorithm>
#include <vector>

#include <gradtile/attention/cpu/tiled/memory.h>

namespace gradtile::attention::lab {

class SlowMemory {
  public:
    void allocate(std::int64_t bytes) { peak_ = std::max(peak_, in_use_ += bytes); }
    void release(std::int64_t bytes) { in_use_ -= bytes; }
    std::int64_t peak_bytes() const { return peak_; }
    /// Forgets the peak of earlier work.
    void reset_peak() { peak_ = in_use_; }

  private:
    std::int64_t in_use_ = 0, peak_ = 0;
};

/// Owns a matrix in slow memory.
template <class T>
class SlowTensor {
  public:
    SlowTensor(SlowMemory& memory, std::int64_t rows, std::int64_t columns)
        : memory_(memory),
          rows_(rows),
          columns_(columns),
          elements_(static_cast<std::size_t>(rows * columns)) {
        memory_.allocate(bytes());
    }
    ~SlowTensor() { memory_.release(bytes()); }
    SlowTensor(const SlowTensor&) = delete;
    SlowTensor& operator=(const SlowTensor&) = delete;

    cpu::tiled::SlowMatrix<T> matrix() { return {elements_.data(), rows_, columns_, columns_}; }
    /// Accesses that are not counted: to provide inputs and to judge results.
    std::vector<T>& elements() { return elements_; }

  private:
    std::int64_t bytes() const { return rows_ * columns_ * static_cast<std::int64_t>(sizeof(T)); }

    SlowMemory& memory_;
    std::int64_t rows_, columns_;
    std::vector<T> elements_;
};

}  // namespace gradtile::attention::lab
