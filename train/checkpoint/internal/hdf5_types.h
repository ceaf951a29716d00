#pragma once
/// HDF5 types for tensor elements.
#include <gradtile/core/dtype.h>
#include <gradtile/train/checkpoint/internal/hdf5_library.h>

namespace gradtile {

/// Returns the HDF5 type for a dtype's elements in the file, little-endian. The type in memory is the same,
/// so libhdf5 converts nothing. bfloat16 is declared as a float with 8 exponent bits and 7 mantissa bits;
/// h5py reads it as float32. The caller holds an Hdf5Lock.
Hdf5Type hdf5_type(DType dtype);

}  // namespace gradtile
