#pragma once
/// Short measurements on this machine, which the lab's verdicts compare with its counts: one CPU thread,
/// float32.
#include <gradtile/tools/lab/lab.h>

namespace gradtile::attention::lab {

/// The roofline model (Williams, Waterman & Patterson 2009): work that computes f FLOP and moves b bytes
/// takes at least max(f / flops_per_s, b / bytes_per_s) seconds.
struct Roofline {
    double bytes_per_s = 0;  ///< bandwidth of a copy that fits no cache; reads and writes both count
    double flops_per_s = 0;  ///< speed of a large square matrix product
    /// Returns the FLOP per byte above which work is compute-bound.
    double ridge() const { return flops_per_s / bytes_per_s; }
};
/// Measures this machine's roofline, in about a second.
Roofline measure_roofline();

/// Time for forward and backward pass together, in milliseconds: the fastest of three runs.
struct Speed {
    /// Standard attention: the library's matrix products with a softmax between them, and S and P in memory.
    double standard_ms = 0;
    double flash2_ms = 0;  ///< flash2 by the operator's kernels
};
Speed measure_speed(const Setup& setup);

struct Machine {
    Roofline roofline;
    Speed speed;
};

/// A claim from the literature, and the test result on this machine.
struct Verdict {
    std::string claim;
    bool holds = false;
    std::string figures = {};
};
/// Tests the claims. For some claims, also runs the algorithms at other lengths and fast-memory sizes.
std::vector<Verdict> judge_claims(const Setup& setup, const std::vector<Measurement>& attention,
                                  const std::vector<SoftmaxMeasurement>& softmax, const Machine& machine);

}  // namespace gradtile::attention::lab
