#include <gradtile/train/checkpoint/internal/hdf5_types.h>

namespace gradtile {

namespace {

Hdf5Type copy_of(hid_t type) {
    return Hdf5Type(H5Tcopy(type), "copy a type");
}

// A 16-bit IEEE-like float: sign, exponent and mantissa without padding.
Hdf5Type float_16_bit(std::size_t exponent_bits, std::size_t exponent_bias) {
    Hdf5Type type = copy_of(H5T_IEEE_F32LE);
    const std::size_t mantissa_bits = 15 - exponent_bits;
    // The fields are set first, because they must be inside the smaller size.
    hdf5_check(H5Tset_fields(type.get(), 15, mantissa_bits, exponent_bits, 0, mantissa_bits),
               "set float fields");
    hdf5_check(H5Tset_size(type.get(), 2), "set a type's size");
    hdf5_check(H5Tset_ebias(type.get(), exponent_bias), "set an exponent bias");
    return type;
}

}  // namespace

Hdf5Type hdf5_type(DType dtype) {
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

}  // namespace gradtile
