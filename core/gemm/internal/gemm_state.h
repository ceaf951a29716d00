#pragma once
/// How cuBLASLt's algorithms are chosen, by timing, and kept.
#include <cublasLt.h>

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include <gradtile/core/gemm/gemm_algorithms.h>

namespace gradtile::cuda {

/// Everything the choice of an algorithm depends on, as plain numbers; types and epilogues in cuBLASLt's
/// numbering, alignments in bytes.
struct GemmProblem {
    std::int64_t library, architecture, multiprocessors;
    std::int64_t m, n, k, batch;
    std::int64_t trans_a, trans_b, accumulates, epilogue;
    std::int64_t in_type, out_type, bias_type, compute_type;
    std::int64_t a_row, b_row, c_row, hidden_row;  // elements between rows
    std::int64_t a_step, b_step, c_step;           // elements between matrices of a batch
    std::int64_t a_alignment, b_alignment, c_alignment, bias_alignment, hidden_alignment;
    friend auto operator<=>(const GemmProblem&, const GemmProblem&) = default;
};

/// Where one product's operands lie; null where there is none.
struct GemmPointers {
    const void *a, *b, *bias;
    void *c, *hidden;
};

/// What the products of one stream share: cuBLASLt's handle, its workspace, the algorithms chosen so far. One
/// workspace serves them all, since a stream runs one product at a time.
class GemmState {
  public:
    explicit GemmState(Device device);
    ~GemmState();
    GemmState(const GemmState&) = delete;
    GemmState& operator=(const GemmState&) = delete;

    bool run(const Context& ctx, GemmProblem problem, const GemmPointers& at, float alpha,
             const std::function<void()>& in_steps);
    void* workspace() { return workspace_.data(); }

    std::vector<GemmAlgorithm> algorithms();
    std::size_t restore(std::span<const GemmAlgorithm> algorithms);

  private:
    class Operation;
    void prepare();
    void place(GemmProblem& problem) const;
    bool sort_by_time(const Operation& operation, cudaStream_t stream, const std::function<void()>& in_steps,
                      std::vector<cublasLtMatmulAlgo_t>& candidates);

    Device device_;
    std::recursive_mutex mutex_;  // steps that compete with a fused product are products as well
    std::int64_t library_ = 0, architecture_ = 0, multiprocessors_ = 0;
    cublasLtHandle_t handle_ = nullptr;
    Buffer workspace_;  // from the start, so that plans made on the context see it taken
    std::map<GemmProblem, std::optional<cublasLtMatmulAlgo_t>> chosen_;  // none: not by cuBLASLt
    std::set<GemmProblem> restored_;  // whose algorithm has not run here yet
    std::size_t timed_ = 0;
};

}  // namespace gradtile::cuda
