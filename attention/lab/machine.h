#pragma once
/// Short measurements of this machine, which the lab's verdicts compare with its counts: one CPU thread,
/// float32.
#include <gradtile/attention/lab/lab.h>

namespace gradtile::attention::lab {

/// Williams, Waterman & Patterson 2009: work of f FLOP that moves b bytes takes at least
/// max(f / flops_per_s, b / bytes_per_s).
struct Roofline {
    double bytes_per_s = 0;  ///< of a copy that fits no cache, reads and writes together
    double flops_per_s = 0;  ///< of a large square matrix product
    /// FLOP per byte from which on work is compute-bound.
    double ridge() const { return flops_per_s / bytes_per_s; }
};
/// Takes about a second.
Roofline measure_roofline();

/// Forward and backward pass together, best of three runs, in milliseconds.
struct Speed {
    /// Matrix products of the library and a softmax between them, with S and P in memory.
    double standard_ms = 0;
    double flash2_ms = 0;  ///< the operator's own kernels
};
Speed measure_speed(const Setup& setup);

struct Machine {
    Roofline roofline;
    Speed speed;
};

/// A claim of the literature, and what this machine's run says about it.
struct Verdict {
    std::string claim;
    bool holds = false;
    std::string figures = {};
};
/// Judges the claims. Runs the algorithms at other lengths and sizes of the fast memory, too.
std::vector<Verdict> judge_claims(const Setup& setup, const std::vector<Measurement>& attention,
                                  const std::vector<SoftmaxMeasurement>& softmax, const Machine& machine);

}  // namespace gradtile::attention::lab
