#pragma once
/// INTERNAL. A two-level memory, the model in Dao et al. 2022, section 2.1: a slow memory of any size, and a
/// fast memory of fixed size. Algorithms compute on matrices in fast memory only; load() and store() are the
/// only functions that access matrices in slow memory. Therefore the counted traffic is exactly the
/// algorithm's traffic.
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
#include <gradtile/core/tensor.h>

namespace gradtile::attention::cpu::tiled {

/// A source line of an algorithm. Functions with a parameter of this type use the caller's line by default.
using SourceLine = std::source_location;

/// A part of a matrix in slow memory, whatever the type of its elements.
struct SlowRegion {
    const void* data = nullptr;
    std::int64_t rows = 0, columns = 0, row_stride = 0;  ///< in elements
    std::size_t element_bytes = 0;
};

/// Is told of everything that happens in fast memory, so that the lab can record a run. Outside the lab, an
/// operator runs without an observer. The address of its elements identifies a matrix in fast memory.
class MemoryObserver {
  public:
    enum class Transfer { load, store };
    virtual ~MemoryObserver() = default;
    virtual void allocated(const char* name, const void* data, std::size_t offset, std::int64_t rows,
                           std::int64_t columns, std::size_t element_bytes) = 0;
    /// The matrices at `offset` and at larger offsets were freed.
    virtual void released(std::size_t offset) = 0;
    virtual void moved(Transfer transfer, const SlowRegion& slow, const void* fast, SourceLine where) = 0;
    /// The matrix `result` was computed for a tile: for the pairs of these rows and keys. Both ranges are
    /// empty if `result` belongs to no tile.
    virtual void computed(const void* result, IndexRange rows, IndexRange keys, SourceLine where) = 0;
    /// A row's running maximum and sum were updated to these numbers.
    virtual void updated_statistics(std::int64_t row, double maximum, double sum, SourceLine where) = 0;
    /// The line `caller` calls an operation, which begins now.
    virtual void entered(SourceLine caller) = 0;
    /// The operation that began last has ended.
    virtual void returned() = 0;
};

/// A matrix [rows, columns] in slow memory. A row's elements are adjacent. Only FastMemory accesses elements.
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
    /// Returns a view of the rows in `range`.
    SlowMatrix rows(IndexRange range) const { return block(range, {0, columns_}); }
    /// Returns a view of these rows and columns.
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
    MemoryObserver* observer = nullptr;  ///< the fast memory's observer

    A* row(std::int64_t i) const { return data + i * columns; }
    /// Returns element i of a one-column matrix.
    A& operator[](std::int64_t i) const { return data[i * columns]; }
};

/// How many elements were loaded from slow memory and stored to slow memory.
struct Traffic {
    std::int64_t loads = 0, stores = 0;
    /// The bytes of all loads and stores. An element has the size of its dtype in slow memory.
    std::int64_t bytes = 0;
};

/// The fast memory: a fixed-size block in which matrices are allocated one after the other.
class FastMemory {
  public:
    FastMemory(std::byte* data, std::size_t bytes, MemoryObserver* observer = nullptr)
        : data_(data), capacity_(bytes), observer_(observer) {}
    /// Returns a memory without a limit, for measuring how many bytes an algorithm needs. Its matrices'
    /// elements must not be accessed.
    static FastMemory for_planning() { return {nullptr, ~std::size_t{0}}; }

    /// Allocates a matrix. Throws Error if the memory has no room for it. Only the observer uses the name.
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

    /// When a Scope ends, it frees the matrices that were allocated during its lifetime.
    class Scope {
      public:
        explicit Scope(FastMemory& memory) : memory_(memory), used_(memory.used_) {}
        /// A scope for an operation that the line `caller` calls.
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
    /// Returns the most bytes that were in use at the same time.
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

/// How many rows and keys an algorithm processes at once.
struct BlockSizes {
    std::int64_t rows = 1, keys = 1;
};

/// Returns how many fast memory bytes allocate(memory) needs.
template <class Allocate>
std::size_t fast_bytes(Allocate&& allocate) {
    FastMemory memory = FastMemory::for_planning();
    allocate(memory);
    return memory.peak_bytes();
}

/// Returns the largest block sizes with which allocate(memory, blocks) needs at most `bytes`. The search
/// halves the rows until the matrices fit. If they do not fit with one row, it halves the keys and starts
/// again with all rows. Throws Error if the matrices for one row and one key do not fit.
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
