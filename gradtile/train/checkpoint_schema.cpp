#include <bit>

#include <gradtile/train/checkpoint_schema.h>

namespace gradtile::checkpoint_schema {

// Elements are written as they lie in memory.
static_assert(std::endian::native == std::endian::little, "checkpoints need a little-endian machine");

namespace {

Hdf5Type copy_of(hid_t type) {
    return Hdf5Type(H5Tcopy(type), "copy a type");
}

// A 16-bit IEEE-like float: sign, exponent and mantissa in a row, nothing padded.
Hdf5Type float_16_bit(std::size_t exponent_bits, std::size_t exponent_bias) {
    Hdf5Type type = copy_of(H5T_IEEE_F32LE);
    const std::size_t mantissa_bits = 15 - exponent_bits;
    // The fields first: they must lie inside the size the type shrinks to.
    hdf5_check(H5Tset_fields(type.get(), 15, mantissa_bits, exponent_bits, 0, mantissa_bits),
               "set float fields");
    hdf5_check(H5Tset_size(type.get(), 2), "set a type's size");
    hdf5_check(H5Tset_ebias(type.get(), exponent_bias), "set an exponent bias");
    return type;
}

}  // namespace

Hdf5Type file_type(DType dtype) {
    switch (dtype) {
        case DType::f64:
            return copy_of(H5T_IEEE_F64LE);
        case DType::f32:
            return copy_of(H5T_IEEE_F32LE);
        case DType::bf16:
            return float_16_bit(8, 127);
        case DType::f16:
            return float_16_bit(5, 15);
        case DType::i32:
            return copy_of(H5T_STD_I32LE);
    }
    throw Error("unknown dtype");
}

bool is_tensor_name(std::string_view name) {
    constexpr std::size_t kLongest = 1024;
    if (name.empty() || name.size() > kLongest) return false;
    while (true) {
        const std::size_t slash = name.find('/');
        const std::string_view part = name.substr(0, slash);
        if (part.empty() || part == "." || part == "..") return false;
        for (const char c : part) {
            if (c <= ' ' || c > '~') return false;
        }
        if (slash == std::string_view::npos) return true;
        name.remove_prefix(slash + 1);
    }
}

}  // namespace gradtile::checkpoint_schema
