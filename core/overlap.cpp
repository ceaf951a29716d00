#include <gradtile/core/internal/overlap.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <numeric>

namespace gradtile {
namespace {

/// One axis of a tensor. An element's address is the base plus, for each term, n * stride with n in [0,
/// count).
struct Term {
    std::int64_t stride, count;
};

/// A set of integers: all sums with one multiple n * stride from each term.
class Sums {
  public:
    void add(std::int64_t stride, std::int64_t count) {
        if (count > 1 && stride != 0) terms_[size_++] = {stride, count};
    }

    /// Sorts the terms by decreasing stride and joins those whose sums have no gap.
    void normalise() {
        std::sort(terms_.begin(), terms_.begin() + size_,
                  [](const Term& a, const Term& b) { return a.stride > b.stride; });
        std::size_t last = 0;
        for (std::size_t i = 1; i < size_; ++i) {
            Term &outer = terms_[last], &inner = terms_[i];
            if (outer.stride % inner.stride == 0 && outer.stride / inner.stride <= inner.count) {
                // All multiples of the inner stride, up to the sum of both largest values.
                outer = {inner.stride, (outer.count - 1) * (outer.stride / inner.stride) + inner.count};
            } else {
                terms_[++last] = inner;
            }
        }
        if (size_ > 0) size_ = last + 1;
        largest_[size_] = divisor_[size_] = 0;
        for (std::size_t i = size_; i-- > 0;) {
            largest_[i] = largest_[i + 1] + terms_[i].stride * (terms_[i].count - 1);
            divisor_[i] = std::gcd(divisor_[i + 1], terms_[i].stride);
        }
    }

    /// Whether a sum lies in [low, high].
    bool has_sum_in(std::int64_t low, std::int64_t high) {
        steps_ = 0;
        return search(0, low, high);
    }

  private:
    static std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

    bool search(std::size_t i, std::int64_t low, std::int64_t high) {
        low = std::max<std::int64_t>(low, 0);
        high = std::min(high, largest_[i]);
        if (low > high) return false;
        if (low == 0 || high == largest_[i]) return true;  // the smallest and the largest sum exist
        // All sums are multiples of the divisor. A single term's sums are all multiples up to the largest.
        if (floor_div(high, divisor_[i]) * divisor_[i] < low) return false;
        if (i + 1 == size_) return true;
        constexpr int max_steps = 100'000;
        const auto& [stride, count] = terms_[i];
        const std::int64_t first = std::max<std::int64_t>(0, -floor_div(largest_[i + 1] - low, stride)),
                           last = std::min(count - 1, floor_div(high, stride));
        for (std::int64_t n = last; n >= first; --n) {
            if (++steps_ > max_steps) return false;
            if (search(i + 1, low - n * stride, high - n * stride)) return true;
        }
        return false;
    }

    static constexpr std::size_t max_terms = 2 * Shape::max_rank;
    std::array<Term, max_terms> terms_{};
    std::array<std::int64_t, max_terms + 1> largest_{}, divisor_{};  // for the sums over terms i, i + 1, ...
    std::size_t size_ = 0;
    int steps_ = 0;
};

/// The bytes [begin, end) from the first element's first byte to the last element's last byte.
struct Bytes {
    std::int64_t begin, end;
};
Bytes bytes_of(const Tensor& x) {
    const auto size = static_cast<std::int64_t>(size_of(x.dtype()));
    Bytes bytes{static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(x.raw_data())), 0};
    bytes.end = bytes.begin + size;
    for (int axis = 0; axis < x.rank(); ++axis) {
        const std::int64_t length = (x.size(axis) - 1) * x.stride(axis) * size;
        (length < 0 ? bytes.begin : bytes.end) += length;
    }
    return bytes;
}

}  // namespace

bool overlap(const Tensor& a, const Tensor& b) {
    if (!a.defined() || !b.defined() || a.elements() == 0 || b.elements() == 0 || a.device() != b.device())
        return false;
    const Bytes a_bytes = bytes_of(a), b_bytes = bytes_of(b);
    if (a_bytes.end <= b_bytes.begin || b_bytes.end <= a_bytes.begin) return false;
    // Elements at addresses x in a and y in b share a byte if -size_a < x - y < size_b. With end_y, the
    // largest y in b, x - y = (x - begin_a) + (end_y - y) + begin_a - end_y, and both brackets are sums over
    // stride multiples.
    Sums sums;
    for (const Tensor* x : {&a, &b})
        for (int axis = 0; axis < x->rank(); ++axis)
            sums.add(std::abs(x->stride(axis)) * static_cast<std::int64_t>(size_of(x->dtype())),
                     x->size(axis));
    sums.normalise();
    const auto size_a = static_cast<std::int64_t>(size_of(a.dtype())),
               size_b = static_cast<std::int64_t>(size_of(b.dtype()));
    const std::int64_t last_b = b_bytes.end - size_b, shift = last_b - a_bytes.begin;
    return sums.has_sum_in(shift - (size_a - 1), shift + (size_b - 1));
}

bool is_same_view(const Tensor& a, const Tensor& b) {
    if (a.raw_data() != b.raw_data() || a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
    for (int axis = 0; axis < a.rank(); ++axis)
        if (a.size(axis) > 1 && a.stride(axis) != b.stride(axis)) return false;
    return true;
}

void check_distinct_elements(const char* op, const Operand& written) {
    const Tensor& x = written.tensor;
    for (int axis = 0; axis < x.rank(); ++axis)
        check(x.size(axis) <= 1 || x.elements() == 0 || x.stride(axis) != 0, op, ": ", written.name, ' ', x,
              " has stride 0 along axis ", axis, "; expected separate memory for each element");
}

void check_sharing(const Context& ctx, const char* op, const Operand& written,
                   std::initializer_list<Operand> others, Sharing allowed) {
    if (ctx.is_planning()) return;
    for (const Operand& other : others) {
        if (!overlap(written.tensor, other.tensor)) continue;
        const bool same = is_same_view(written.tensor, other.tensor);
        check(same && allowed == Sharing::same_view, op, ": ", written.name, ' ', written.tensor,
              " shares memory with ", other.name, ' ', other.tensor, "; expected ",
              allowed == Sharing::same_view ? "the same view or separate memory" : "separate memory");
    }
}

}  // namespace gradtile
