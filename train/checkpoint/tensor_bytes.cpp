#include <algorithm>
#include <cstring>
#include <memory>

#include <gradtile/core/allocator.h>
#include <gradtile/train/checkpoint/tensor_bytes.h>

namespace gradtile {

namespace {

// Copies elements along the last axis that are `stride` elements apart.
template <class Word>
void copy_strided(const std::byte* from, std::int64_t stride, std::int64_t count, std::byte* to) {
    for (std::int64_t i = 0; i < count; ++i) {
        std::memcpy(to + i * static_cast<std::int64_t>(sizeof(Word)),
                    from + i * stride * static_cast<std::int64_t>(sizeof(Word)), sizeof(Word));
    }
}

void copy_row(const std::byte* from, std::int64_t stride, std::int64_t count, std::size_t element,
              std::byte* to) {
    if (stride == 1) {
        std::memcpy(to, from, static_cast<std::size_t>(count) * element);
    } else if (element == 2) {
        copy_strided<std::uint16_t>(from, stride, count, to);
    } else if (element == 4) {
        copy_strided<std::uint32_t>(from, stride, count, to);
    } else {
        copy_strided<std::uint64_t>(from, stride, count, to);
    }
}

// A float is finite unless its exponent bits are all ones.
template <class Word>
bool exponents_below(const std::byte* data, std::size_t count, Word exponent_mask) {
    constexpr std::size_t kBlock = 4096;
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
        const std::size_t n = std::min(kBlock, count - begin);
        Word full = 0;  // no early exit inside a block, so that the compiler can vectorise it
        for (std::size_t i = 0; i < n; ++i) {
            Word word;
            std::memcpy(&word, data + (begin + i) * sizeof(Word), sizeof(Word));
            full = static_cast<Word>(full | ((word & exponent_mask) == exponent_mask));
        }
        if (full != 0) return false;
    }
    return true;
}

}  // namespace

void copy_row_major(const Tensor& x, std::int64_t begin, std::int64_t end, std::byte* out) {
    if (begin >= end) return;
    const std::size_t element = size_of(x.dtype());
    if (x.is_contiguous()) {
        std::memcpy(out, x.raw_data() + static_cast<std::size_t>(begin) * element,
                    static_cast<std::size_t>(end - begin) * element);
        return;
    }
    const int last = x.rank() - 1;
    const std::int64_t row = x.size(last);
    while (begin < end) {
        // Element `begin`'s index along each axis, last axis fastest.
        std::int64_t remaining = begin / row;
        const std::int64_t column = begin % row;
        std::int64_t offset = column * x.stride(last);
        for (int axis = last - 1; axis >= 0; --axis) {
            offset += remaining % x.size(axis) * x.stride(axis);
            remaining /= x.size(axis);
        }
        const std::int64_t count = std::min(row - column, end - begin);
        copy_row(x.raw_data() + offset * static_cast<std::int64_t>(element), x.stride(last), count, element,
                 out);
        out += static_cast<std::size_t>(count) * element;
        begin += count;
    }
}

bool all_finite(DType dtype, const std::byte* data, std::size_t elements) {
    switch (dtype) {
        case DType::f64:
            return exponents_below<std::uint64_t>(data, elements, 0x7ff0000000000000u);
        case DType::f32:
            return exponents_below<std::uint32_t>(data, elements, 0x7f800000u);
        case DType::bf16:
            return exponents_below<std::uint16_t>(data, elements, 0x7f80u);
        case DType::f16:
            return exponents_below<std::uint16_t>(data, elements, 0x7c00u);
        case DType::i32:
            return true;
    }
    throw Error("unknown dtype");
}

Tensor empty_on_host(const Shape& shape, DType dtype) {
    const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
    auto buffer = std::make_shared<Buffer>(system_allocator(Device::cpu()), std::max<std::size_t>(bytes, 1));
    std::byte* const data = buffer->data();
    return Tensor(std::move(buffer), data, Device::cpu(), dtype, shape, contiguous_strides(shape));
}

}  // namespace gradtile
