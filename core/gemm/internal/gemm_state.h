#pragma once
/// Chooses cuBLASLt algorithms by timing, and keeps a table of the choices.
#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include <gradtile/core/gemm/gemm_algorithms.h>
#include <gradtile/core/gemm/internal/gemm_lt.h>

namespace gradtile::cuda {

/// Epilogue numbers from this one on are gradtile's, for products that cuBLASLt cannot fuse.
inline constexpr std::int64_t first_own_epilogue = std::int64_t{1} << 32;

/// The key of a choice: everything that the chosen algorithm depends on. Types and epilogues have cuBLASLt's
/// numbers; alignments are in bytes.
struct GemmProblem {
    std::int64_t library, architecture, multiprocessors;
    std::int64_t m, n, k, batch;
    std::int64_t trans_a, trans_b, accumulates, epilogue;
    std::int64_t in_type, out_type, bias_type, compute_type;
    std::int64_t a_row, b_row, c_row, hidden_row;  // elements between rows
    std::int64_t a_step, b_step, c_step;           // elements between matrices in a batch
    std::int64_t a_alignment, b_alignment, c_alignment, bias_alignment, hidden_alignment;
    friend auto operator<=>(const GemmProblem&, const GemmProblem&) = default;
};

/// A product's operand addresses; null for an absent operand.
struct GemmPointers {
    const void *a, *b, *bias;
    void *c, *hidden;
};

/// How a product is computed.
struct GemmChoice {
    enum class By { steps, library, kernel };
    By by = By::steps;
    cublasLtMatmulAlgo_t algorithm = {};  ///< the library's algorithm
    /// The configuration of `algorithm`, which is the same in every process. Some bytes of `algorithm` are
    /// padding, and differ.
    std::array<std::uint64_t, 4> configuration = {};
    std::uint64_t kernel = 0;  ///< the number that names a gradtile kernel
};

/// The state that all products on one stream share: cuBLASLt's handle, its workspace, the algorithms chosen
/// so far. One workspace is enough, because a stream runs one product at a time.
class GemmState {
  public:
    explicit GemmState(Device device);
    ~GemmState();
    GemmState(const GemmState&) = delete;
    GemmState& operator=(const GemmState&) = delete;

    bool run(const Context& ctx, GemmProblem problem, const GemmPointers& addresses, float alpha,
             const GemmAlternatives& alternatives);
    void* workspace() { return workspace_.data(); }
    void restrict_to(std::optional<std::uint64_t> kernel);  ///< see gemm_candidates.h

    std::vector<GemmAlgorithm> algorithms();
    std::size_t restore(std::span<const GemmAlgorithm> algorithms);
    std::size_t refused_choices();

  private:
    class Operation;
    void prepare();
    void place(GemmProblem& problem) const;
    bool find_algorithm(const Operation* operation, GemmChoice& choice) const;
    // operation is null when cuBLASLt cannot compute the product.
    bool launch(const Operation* operation, const GemmChoice& choice, const GemmAlternatives& alternatives,
                cudaStream_t stream, void* result);
    void sort_by_time(const Operation* operation, cudaStream_t stream, const GemmAlternatives& alternatives,
                      std::vector<GemmChoice>& candidates);

    Device device_;
    std::recursive_mutex mutex_;  // recursive, because in_steps() runs products, too
    std::int64_t library_ = 0, architecture_ = 0, multiprocessors_ = 0;
    cublasLtHandle_t handle_ = nullptr;
    Buffer workspace_;  // allocated by the constructor, so that memory plans count it
    std::map<GemmProblem, GemmChoice> chosen_;
    std::set<GemmProblem> restored_;  // restored algorithms that have not run yet
    std::size_t timed_ = 0, refused_ = 0;
    std::optional<std::uint64_t> only_kernel_;  // see restrict_to()
};

}  // namespace gradtile::cuda
