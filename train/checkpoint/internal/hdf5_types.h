#pragma once
/// The HDF5 types of tensor elements.
#include <gradtile/core/dtype.h>
#include <gradtile/train/checkpoint/internal/hdf5_library.h>

namespace gradtile {

/// The HDF5 type of a dtype's elements in the file, little-endian; the same in memory, so that libhdf5
/// converts nothing. bfloat16 is declared as the float it is (8 exponent bits, 7 mantissa bits): h5py reads
/// it as float32. The caller holds an Hdf5Lock.
Hdf5Type hdf5_type(DType dtype);

}  // namespace gradtile
