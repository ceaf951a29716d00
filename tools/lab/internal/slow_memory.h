#pragma once
/// INTERNAL. The lab's slow memory. The class lists its matrices and measures how many bytes are in use.
#include <algorithm>
#include <string>
#include <vector>

#include <gradtile/attention/cpu/tiled/memory.h>

namespace gradtile::attention::lab {

class SlowMemory {
  public:
    /// A matrix that exists now. No later matrix gets the same `id`.
    struct Matrix {
        int id = 0;
        std::string name;
        const void* data = nullptr;
        std::int64_t rows = 0, columns = 0, bytes = 0;

        bool contains(const void* address) const {
            const auto *first = static_cast<const std::byte*>(data),
                       *byte = static_cast<const std::byte*>(address);
            return byte >= first && byte < first + bytes;
        }
    };

    void add(Matrix matrix) {
        peak_ = std::max(peak_, in_use_ += matrix.bytes);
        matrix.id = next_id_++;
        matrices_.push_back(std::move(matrix));
    }
    /// Removes the matrix whose elements are at `data`.
    void remove(const void* data) {
        const auto found = std::find_if(matrices_.begin(), matrices_.end(),
                                        [&](const Matrix& matrix) { return matrix.data == data; });
        in_use_ -= found->bytes;
        matrices_.erase(found);
    }
    const Matrix& matrix_at(const void* address) const {
        for (const Matrix& matrix : matrices_)
            if (matrix.contains(address)) return matrix;
        throw Error("lab: no matrix of the slow memory has this address");
    }
    std::int64_t peak_bytes() const { return peak_; }
    /// Sets the peak to the bytes that are in use now.
    void reset_peak() { peak_ = in_use_; }

  private:
    std::int64_t in_use_ = 0, peak_ = 0;
    int next_id_ = 0;
    std::vector<Matrix> matrices_;
};

/// Owns a matrix in slow memory.
template <class T>
class SlowTensor {
  public:
    SlowTensor(SlowMemory& memory, std::int64_t rows, std::int64_t columns, std::string name = "")
        : memory_(memory),
          rows_(rows),
          columns_(columns),
          elements_(static_cast<std::size_t>(rows * columns)) {
        memory_.add({.name = std::move(name),
                     .data = elements_.data(),
                     .rows = rows,
                     .columns = columns,
                     .bytes = rows * columns * static_cast<std::int64_t>(sizeof(T))});
    }
    ~SlowTensor() { memory_.remove(elements_.data()); }
    SlowTensor(const SlowTensor&) = delete;
    SlowTensor& operator=(const SlowTensor&) = delete;

    cpu::tiled::SlowMatrix<T> matrix() { return {elements_.data(), rows_, columns_, columns_}; }
    const std::vector<T>& elements() const { return elements_; }
    /// Writes all elements. The access is not counted, because it prepares an algorithm's inputs.
    void assign(const T* numbers) { std::copy_n(numbers, elements_.size(), elements_.begin()); }

  private:
    SlowMemory& memory_;
    std::int64_t rows_, columns_;
    std::vector<T> elements_;
};

}  // namespace gradtile::attention::lab
