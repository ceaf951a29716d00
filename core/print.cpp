#include <gradtile/core/compare.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

constexpr std::int64_t max_elements_in_full = 1000;
constexpr std::int64_t places_at_an_end = 3;

bool is_shortened(const Tensor& x, int axis) {
    return x.elements() > max_elements_in_full && x.size(axis) > 2 * places_at_an_end;
}

/// The elements that are shown, as a small tensor, so that only they are copied to the host.
Tensor shown_part(const Context& ctx, const Tensor& x) {
    Tensor shown = x;
    for (int axis = 0; axis < x.rank(); ++axis) {
        if (!is_shortened(x, axis)) continue;
        Shape shape = shown.shape();
        shape[axis] = 2 * places_at_an_end;
        const Tensor ends = empty(ctx, shape, x.dtype());
        const std::int64_t last = shown.size(axis) - places_at_an_end;
        copy(ctx, ends.slice(axis, 0, places_at_an_end), shown.slice(axis, 0, places_at_an_end));
        copy(ctx, ends.slice(axis, places_at_an_end, places_at_an_end),
             shown.slice(axis, last, places_at_an_end));
        shown = ends;
    }
    return shown;
}

std::string text_of(double value, DType dtype) {
    char text[32];
    std::snprintf(text, sizeof text, dtype == DType::i32 ? "%.0f" : "%.5g", value);
    return text;
}

/// Writes the numbers of `shown`, padded to one width, in x's brackets.
class Printer {
  public:
    Printer(const Tensor& x, const Tensor& shown, std::vector<std::string> numbers)
        : x_(x), shown_(shown), numbers_(std::move(numbers)) {
        for (const std::string& number : numbers_) width_ = std::max(width_, number.size());
    }

    std::string text() {
        write(0);
        return std::move(text_);
    }

  private:
    void write(int axis) {
        if (axis == x_.rank()) return write_number();
        text_ += '[';
        for (std::int64_t i = 0; i < shown_.size(axis); ++i) {
            if (i > 0) separate(axis);
            if (i == places_at_an_end && is_shortened(x_, axis)) {
                text_ += "...";
                separate(axis);
            }
            write(axis + 1);
        }
        text_ += ']';
    }

    void write_number() {
        const std::string& number = numbers_[next_++];
        text_.append(width_ - number.size(), ' ').append(number);
    }

    /// Each row has its own line, and an empty line separates matrices.
    void separate(int axis) {
        const int inner_axes = x_.rank() - 1 - axis;
        text_ += inner_axes == 0 ? ", " : ",";
        text_.append(static_cast<std::size_t>(inner_axes), '\n');
        if (inner_axes > 0) text_.append(static_cast<std::size_t>(axis + 1), ' ');
    }

    const Tensor& x_;
    const Tensor& shown_;
    std::vector<std::string> numbers_;
    std::size_t width_ = 0, next_ = 0;
    std::string text_;
};

}  // namespace

std::string to_string(const Context& ctx, const Tensor& x) {
    const std::string description = concat(x);
    if (!x.defined()) return description;
    const Context where = x.device().is_cpu() ? host_of(ctx) : ctx;
    check(x.device() == where.device(), "to_string: ", x, " in a context of ", ctx.device(),
          "; devices must be equal");
    const Tensor shown = shown_part(where, x);
    std::vector<std::string> numbers;
    for (const double value : to_host(where, shown)) numbers.push_back(text_of(value, x.dtype()));
    return description + '\n' + Printer(x, shown, std::move(numbers)).text();
}

std::string to_string(const Tensor& x) {
    check(!x.defined() || x.device().is_cpu(), "to_string: ", x,
          "; without a context, the tensor must be on the CPU");
    return to_string(Context(Device::cpu(), 1), x);
}

}  // namespace gradtile
