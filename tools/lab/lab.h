#pragma once
/// The lab: attention from naive to FlashAttention-2, and softmax alone, on a two-level memory (Dao et al.
/// 2022, section 2.1). The slow memory has any size, the fast memory a fixed one. The algorithms access slow
/// memory only through load() and store(), and these functions count the elements. So the reported traffic is
/// measured and never computed by a formula. memory_efficient and flash1 are the operator's own code. A run
/// computes one head in float32 without a mask.
#include <cstdint>
#include <string>
#include <vector>

namespace gradtile::attention::lab {

struct Setup {
    std::int64_t length = 1024;           ///< N: queries and keys
    std::int64_t head_dim = 64;           ///< d
    std::int64_t fast_memory = 64 << 10;  ///< bytes
};

/// The smallest fast memory in bytes with which every algorithm runs at this head dim.
std::int64_t smallest_fast_memory(std::int64_t head_dim);

inline double megabytes(double bytes) {
    return 1e-6 * bytes;
}

/// One pass of one algorithm.
struct Measurement {
    std::string name;                             ///< naive, memory_efficient, flash1, flash2
    std::string pass;                             ///< forward, backward
    std::int64_t block_rows = 0, block_keys = 0;  ///< rows and keys per block
    std::int64_t loads = 0, stores = 0;           ///< elements copied from and to slow memory
    std::int64_t slow_bytes = 0;                  ///< bytes loaded and stored
    /// The papers' asymptotic traffic without its constant, 4 bytes per element: N d + N^2 for naive and
    /// memory_efficient, N^2 d^2 / M for flash1 and flash2, M in elements.
    double formula_bytes = 0;
    double flops = 0;                  ///< floating-point operations in the matrix products
    std::int64_t peak_bytes = 0;       ///< peak slow-memory bytes, including inputs and outputs
    std::int64_t peak_fast_bytes = 0;  ///< peak fast-memory bytes
    double ms = 0;                     ///< milliseconds for the counted run, on one thread
    double error = 0;                  ///< largest error against float64, over all outputs of the pass

    /// The arithmetic intensity, FLOP per byte moved.
    double intensity() const { return flops / static_cast<double>(slow_bytes); }
};

/// Softmax of one long row.
struct SoftmaxMeasurement {
    /// naive: e^x / sum e^x. safe: subtracts the maximum. online: maximum and sum in one pass.
    /// online_statistics: online without the last pass, because a later operation can divide. unfused: safe,
    /// as four operations that each read slow memory; two of them write it. fused: the row is in fast memory.
    std::string name;
    std::int64_t loads = 0, stores = 0, slow_bytes = 0;
    double formula_bytes = 0;  ///< from 2+1, 3+1, 2+1, 1+0, 4+2 and 1+1 accesses per element
    double ms = 0;
    double error = 0;  ///< largest relative error against float64; for online_statistics the sum's error
};

/// Runs all algorithms, forward and backward, in publication order. Throws Error if the fast memory is
/// smaller than smallest_fast_memory().
std::vector<Measurement> measure_attention(const Setup& setup);
/// Runs the softmaxes on a row of setup.length elements. The softmax `fused` runs only if the row fits the
/// fast memory.
std::vector<SoftmaxMeasurement> measure_softmax(const Setup& setup);

/// Returns the exponent p in the best-fitting power law y = c x^p. p is the regression slope when log y is
/// fitted to log x. At least two x must be different, and all numbers must be positive.
double log_log_slope(const std::vector<double>& x, const std::vector<double>& y);

}  // namespace gradtile::attention::lab
