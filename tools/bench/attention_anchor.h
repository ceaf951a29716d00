#pragma once
/// The file that bench/attention_anchor.py prints: other implementations' times for calls of attention.
#include <cstdint>
#include <string>
#include <vector>

namespace gradtile::cli {

struct AnchorTimes {
    std::string implementation;
    double forward_ms = 0, backward_ms = 0;
};
struct AnchoredCall {
    std::int64_t batch = 0, heads = 0, length = 0, head_dim = 0;
    bool causal = false;
    std::vector<AnchorTimes> times;
};

/// Reads lines "BATCH,HEADS,LENGTH,HEAD_DIM,CAUSAL | IMPLEMENTATION FORWARD_MS BACKWARD_MS | ...", all with
/// the same implementations. Throws Error that names the file and the line on another one.
std::vector<AnchoredCall> read_anchors(const std::string& path);

/// Speedups over one implementation in a pass.
class Speedups {
  public:
    void add(double speedup);
    double geometric_mean() const;
    double smallest() const { return smallest_; }

  private:
    double log_sum_ = 0, smallest_ = 0;
    int count_ = 0;
};

}  // namespace gradtile::cli
