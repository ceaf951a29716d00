#pragma once
/// INTERNAL. A memory of two levels, the model of Dao et al. 2022, section 2.1: a slow memory of any size,
/// and a fast memory of fixed size. Algorithms compute on matrices in fast memory only; load() and store()
/// are the only access to matrices in slow memory. So the counted traffic is what an algorithm did.
///
/// The operator and `gradtile lab` run the same algorithms. In the operator, the fast memory is a task's
/// scratch memory.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <source_location>

#include <gradtile/attention/mask.h>
#include <gradtile/core/check.h>
#include <gradtile/core/dtype.h>
#include <gradtile/core/shape.h>

namespace gradtile::attention::cpu::tiled {

/// The line of an algorithm's source that does something. Functions take the caller's line by default.
using SourceLine = std::source_location;

/// A part of a matrix in slow memory, without its type.
struct SlowRegion {
    const void* data = nullptr;
    std::int64_t rows = 0, columns = 0, row_stride = 0;  ///< in elements
    std::size_t element_bytes = 0;
};

/// Receives every event of a fast memory, so that the lab can record a run. The operator has no observer.
/// A matrix in fast memory is identified by the address of its elements.
class MemoryObserver {
  public:
    enum class Transfer { load, store };
    virtual ~MemoryObserver() = default;
    virtual void allocated(const char* name, const void* data, std::size_t offset, std::int64_t rows,
                           std::int64_t columns, std::size_t element_bytes) = 0;
    /// The matrices at this offset and beyond are free.
    virtual void released(std::size_t offset) = 0;
    virtual void moved(Transfer transfer, const SlowRegion& slow, const void* fast, SourceLine where) = 0;
    /// A matrix was computed, from the pairs (row, key) of a tile; empty ranges: from no pair.
    virtual void computed(const void* result, IndexRange rows, IndexRange keys, SourceLine where) = 0;
    /// A row's running maximum and sum after an update.
    virtual void updated_statistics(std::int64_t row, double maximum, double sum, SourceLine where) = 0;
    /// An operation begins, which `caller` calls.
    virtual void entered(SourceLine caller) = 0;
    /// The operation that began last ends.
    virtual void returned() = 0;
};

/// A matrix [rows, columns] in slow memory. The elements of a row are adjacent. Only FastMemory accesses
/// elements.
template <class T>
class SlowMatrix {
  public:
    SlowMatrix() = default;
    SlowMatrix(T* data, std::int64_t rows, std::int64_t columns, std::int64_t row_stride)
        : data_(data), rows_(rows), columns_(columns), row_stride_(row_stride) {}
    // NOLINTNEXTLINE(google-explicit-constructor): a matrix that may be written may be read.
    operator SlowMatrix<const T>() const { return {data_, rows_, columns_, row_stride_}; }

    std::int64_t rows() const { return rows_; }
    std::int64_t columns() const { return columns_; }
    /// Some of the rows.
    SlowMatrix rows(IndexRange range) const { return block(range, {0, columns_}); }
    /// Some of the rows and columns.
    SlowMatrix block(IndexRange rows, IndexRange columns) const {
        return {data_ + rows.begin * row_stride_ + columns.begin, rows.end - rows.begin,
                columns.end - columns.begin, row_stride_};
    }

  private:
    friend class FastMemory;
    T* row(std::int64_t i) const { return data_ + i * row_stride_; }
    SlowRegion region() const { return {data_, rows_, columns_, row_stride_, sizeof(T)}; }

    T* data_ = nullptr;
    std::int64_t rows_ = 0, columns_ = 0, row_stride_ = 0;
};

/// A matrix [rows, columns] in fast memory.
template <class A>
struct FastMatrix {
    A* data = nullptr;
    std::int64_t rows = 0, columns = 0;
    MemoryObserver* observer = nullptr;  ///< of its memory

    A* row(std::int64_t i) const { return data + i * columns; }
    /// Element i of a matrix with one column.
    A& operator[](std::int64_t i) const { return data[i * columns]; }
};

/// The number of elements that a fast memory loaded from slow memory and stored to it.
struct Traffic {
    std::int64_t loads = 0, stores = 0;
    std::int64_t bytes = 0;  ///< of loads and stores together, in the dtypes of the slow matrices
};

/// The fast memory: a block of fixed size in which matrices are allocated one after the other.
class FastMemory {
  public:
    FastMemory(std::byte* data, std::size_t bytes, MemoryObserver* observer = nullptr)
        : data_(data), capacity_(bytes), observer_(observer) {}
    /// A memory without a limit that only measures. The elements of its matrices must not be accessed.
    static FastMemory for_planning() { return {nullptr, ~std::size_t{0}}; }

    /// Throws Error if the memory cannot hold the matrix in addition to those that it holds. The name is for
    /// the observer.
    template <class A>
    FastMatrix<A> matrix(std::int64_t rows, std::int64_t columns, const char* name = "") {
        const std::size_t bytes = static_cast<std::size_t>(rows * columns) * sizeof(A);
        check(bytes <= capacity_ - used_, "fast memory: ", rows, " x ", columns, " elements need ", bytes,
              " bytes; ", capacity_ - used_, " of ", capacity_, " are free");
        const FastMatrix<A> result{data_ == nullptr ? nullptr : reinterpret_cast<A*>(data_ + used_), rows,
                                   columns, observer_};
        if (observer_ != nullptr) observer_->allocated(name, result.data, used_, rows, columns, sizeof(A));
        used_ += bytes;
        peak_ = std::max(peak_, used_);
        return result;
    }

    /// Copies a matrix to the first rows and columns of `to`.
    template <class T, class A>
    void load(const SlowMatrix<T>& from, const FastMatrix<A>& to, SourceLine where = SourceLine::current()) {
        check_holds(to, from.rows(), from.columns());
        for (std::int64_t i = 0; i < from.rows(); ++i)
            for (std::int64_t c = 0; c < from.columns(); ++c) to.row(i)[c] = convert<A>(from.row(i)[c]);
        const std::int64_t count = from.rows() * from.columns();
        traffic_.loads += count;
        traffic_.bytes += count * static_cast<std::int64_t>(sizeof(T));
        report(MemoryObserver::Transfer::load, from, to.data, where);
    }
    /// Copies the first rows and columns of `from` to a matrix.
    template <class A, class T>
    void store(const FastMatrix<A>& from, const SlowMatrix<T>& to, SourceLine where = SourceLine::current()) {
        check_holds(from, to.rows(), to.columns());
        for (std::int64_t i = 0; i < to.rows(); ++i)
            for (std::int64_t c = 0; c < to.columns(); ++c) to.row(i)[c] = convert<T>(from.row(i)[c]);
        const std::int64_t count = to.rows() * to.columns();
        traffic_.stores += count;
        traffic_.bytes += count * static_cast<std::int64_t>(sizeof(T));
        report(MemoryObserver::Transfer::store, to, from.data, where);
    }

    /// Frees the matrices that were allocated during its lifetime.
    class Scope {
      public:
        explicit Scope(FastMemory& memory) : memory_(memory), used_(memory.used_) {}
        /// The scope of an operation that this line calls.
        Scope(FastMemory& memory, SourceLine caller) : Scope(memory) {
            is_operation_ = true;
            if (memory_.observer_ != nullptr) memory_.observer_->entered(caller);
        }
        ~Scope() {
            memory_.used_ = used_;
            if (memory_.observer_ == nullptr) return;
            memory_.observer_->released(used_);
            if (is_operation_) memory_.observer_->returned();
        }
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;

      private:
        FastMemory& memory_;
        std::size_t used_;
        bool is_operation_ = false;
    };

    std::size_t capacity() const { return capacity_; }
    std::size_t free_bytes() const { return capacity_ - used_; }
    /// The most bytes that were in use at the same time.
    std::size_t peak_bytes() const { return peak_; }
    const Traffic& traffic() const { return traffic_; }

  private:
    template <class A>
    static void check_holds(const FastMatrix<A>& matrix, std::int64_t rows, std::int64_t columns) {
        check(rows <= matrix.rows && columns <= matrix.columns, "fast memory: a matrix of ", matrix.rows,
              " x ", matrix.columns, " cannot hold ", rows, " x ", columns);
    }

    template <class T>
    void report(MemoryObserver::Transfer transfer, const SlowMatrix<T>& slow, const void* fast,
                SourceLine where) {
        if (observer_ != nullptr && slow.rows() > 0 && slow.columns() > 0)
            observer_->moved(transfer, slow.region(), fast, where);
    }

    std::byte* data_;
    std::size_t capacity_, used_ = 0, peak_ = 0;
    Traffic traffic_;
    MemoryObserver* observer_ = nullptr;
};

/// Numbers of rows and keys that an algorithm processes at once.
struct BlockSizes {
    std::int64_t rows = 1, keys = 1;
};

/// The bytes of fast memory that `allocate(memory)` takes.
template <class Allocate>
std::size_t fast_bytes(Allocate&& allocate) {
    FastMemory memory = FastMemory::for_planning();
    allocate(memory);
    return memory.peak_bytes();
}

/// The block sizes with which allocate(memory, blocks) needs at most `bytes`: the rows are halved until the
/// matrices fit. If they do not fit with one row, the keys are halved and the rows start again. Throws Error
/// if the matrices of one row and one key do not fit.
template <class Allocate>
BlockSizes fitting_blocks(BlockSizes wanted, std::size_t bytes, Allocate&& allocate) {
    BlockSizes blocks = wanted;
    while (true) {
        const std::size_t needed = fast_bytes([&](FastMemory& memory) { allocate(memory, blocks); });
        if (needed <= bytes) return blocks;
        check(blocks.rows > 1 || blocks.keys > 1, "fast memory: ", bytes, " bytes; one row and one key need ",
              needed);
        if (blocks.rows > 1) {
            blocks.rows = ceil_div(blocks.rows, 2);
        } else {
            blocks.keys = ceil_div(blocks.keys, 2);
            blocks.rows = std::min(wanted.rows, blocks.keys);
        }
    }
}

}  // namespace gradtile::attention::cpu::tiled
