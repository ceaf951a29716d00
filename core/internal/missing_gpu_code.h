#pragma once
/// INTERNAL. What the error says about a GPU that the build has no code for. This header is plain C++, so
/// that tests can check it for every GPU without a GPU.
#include <string>

#include <gradtile/core/check.h>

namespace gradtile::cuda {

/// Tells the user how to run on a GPU with compute capability major.minor, or that only the CPU can.
inline std::string way_out_of_missing_code(int major, int minor) {
    if (major < 8) return "gradtile supports 8.0 and later; use --device cpu";
    const char* const suffix = major == 9 && minor == 0 ? "a" : "";  // wgmma and TMA need the a
    return concat("build it with scripts/build.sh -DCMAKE_CUDA_ARCHITECTURES=", major, minor, suffix,
                  " or use --device cpu");
}

}  // namespace gradtile::cuda
