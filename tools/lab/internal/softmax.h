#pragma once
/// INTERNAL. Softmax of one row x [1, n] in slow memory, y = e^x / sum e^x, `block` elements at a time.
/// Naive, safe and online: Milakov & Gimelshein 2018, algorithms 1 to 3.
#include <cmath>

#include <gradtile/attention/cpu/tiled/tile.h>

namespace gradtile::attention::lab {

using namespace cpu::tiled;

/// The largest element, and the sum of e^(x - maximum).
struct RowSum {
    float maximum, sum;
};

/// Loads the row once, block by block, and calls body(elements, count) for each block. `body` may change the
/// elements. Stores the elements to `y` if it is not null.
template <class Body>
void pass_over(const SlowMatrix<const float>& x, const SlowMatrix<float>* y, std::int64_t block,
               FastMemory& fast, Body&& body) {
    const FastMemory::Scope scope(fast);
    const auto elements = fast.matrix<float>(1, block);
    for_each_block({0, x.columns()}, block, x.columns(), [&](IndexRange columns) {
        fast.load(x.block({0, 1}, columns), elements);
        body(elements.data, columns.end - columns.begin);
        if (y != nullptr) fast.store(elements, y->block({0, 1}, columns));
    });
}

inline float maximum_of(const SlowMatrix<const float>& x, std::int64_t block, FastMemory& fast) {
    float maximum = minus_infinity<float>;
    pass_over(x, nullptr, block, fast, [&](const float* e, std::int64_t n) {
        maximum = std::max(maximum, row_maximum({0, n}, e));
    });
    return maximum;
}

inline float sum_of_exponentials(const SlowMatrix<const float>& x, float reference, std::int64_t block,
                                 FastMemory& fast) {
    float sum = 0;
    pass_over(x, nullptr, block, fast, [&](float* e, std::int64_t n) {
        sum += exponentials({0, n}, reference, e);
    });
    return sum;
}

inline void store_quotients(const SlowMatrix<const float>& x, RowSum row, const SlowMatrix<float>& y,
                            std::int64_t block, FastMemory& fast) {
    pass_over(x, &y, block, fast, [&](float* e, std::int64_t n) {
        exponentials({0, n}, row.maximum, e);
        for (std::int64_t j = 0; j < n; ++j) e[j] /= row.sum;
    });
}

/// Algorithm 1: 2 loads and 1 store per element. e^x overflows for large x.
inline void naive_softmax(const SlowMatrix<const float>& x, const SlowMatrix<float>& y, std::int64_t block,
                          FastMemory& fast) {
    store_quotients(x, {0, sum_of_exponentials(x, 0, block, fast)}, y, block, fast);
}

/// Algorithm 2: 3 loads and 1 store per element.
inline void safe_softmax(const SlowMatrix<const float>& x, const SlowMatrix<float>& y, std::int64_t block,
                         FastMemory& fast) {
    const float maximum = maximum_of(x, block, fast);
    store_quotients(x, {maximum, sum_of_exponentials(x, maximum, block, fast)}, y, block, fast);
}

/// Algorithm 3, lines 1 to 6: maximum and sum in one pass, 1 load per element.
inline RowSum online_statistics(const SlowMatrix<const float>& x, std::int64_t block, FastMemory& fast) {
    RowSum row{minus_infinity<float>, 0};
    pass_over(x, nullptr, block, fast, [&](float* e, std::int64_t n) {
        const float maximum = std::max(row.maximum, row_maximum({0, n}, e));
        row.sum = row.sum * std::exp(row.maximum - maximum) + exponentials({0, n}, maximum, e);
        row.maximum = maximum;
    });
    return row;
}

/// Algorithm 3: 2 loads and 1 store per element.
inline void online_softmax(const SlowMatrix<const float>& x, const SlowMatrix<float>& y, std::int64_t block,
                           FastMemory& fast) {
    store_quotients(x, online_statistics(x, block, fast), y, block, fast);
}

/// Maximum, exponentials, sum and division, each as an operation on slow memory: 4 loads and 2 stores per
/// element.
inline void unfused_softmax(const SlowMatrix<const float>& x, const SlowMatrix<float>& y, std::int64_t block,
                            FastMemory& fast) {
    const float maximum = maximum_of(x, block, fast);
    pass_over(x, &y, block, fast, [&](float* e, std::int64_t n) { exponentials({0, n}, maximum, e); });
    float sum = 0;
    pass_over(y, nullptr, block, fast, [&](const float* e, std::int64_t n) {
        for (std::int64_t j = 0; j < n; ++j) sum += e[j];
    });
    pass_over(y, &y, block, fast, [&](float* e, std::int64_t n) {
        for (std::int64_t j = 0; j < n; ++j) e[j] /= sum;
    });
}

/// Softmax of a row that fits in fast memory: 1 load and 1 store per element.
inline void fused_softmax(const SlowMatrix<const float>& x, const SlowMatrix<float>& y, FastMemory& fast) {
    pass_over(x, &y, x.columns(), fast, [&](float* e, std::int64_t n) {
        const float sum = exponentials({0, n}, row_maximum({0, n}, e), e);
        for (std::int64_t j = 0; j < n; ++j) e[j] /= sum;
    });
}

}  // namespace gradtile::attention::lab
