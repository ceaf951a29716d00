#pragma once
/// INTERNAL. Few queries against many keys, as when a model generates text: the driver for the kernels in
/// few_queries/. A task computes one K/V head's query heads, or as many as fit, against one key part, so it
/// reads its part of K and V once.
#include <string>

#include <gradtile/attention/cpu/kernels.h>
#include <gradtile/attention/cpu/key_parts.h>

namespace gradtile::attention::cpu {

/// How a call is divided into tasks. heads_together = 0: the call uses the kernels for many queries.
struct FewQueriesPlan {
    std::int64_t heads_together = 0;  ///< query heads per task
    KeyParts parts = {};

    explicit operator bool() const { return heads_together > 0; }
};

/// The most queries and the most rows per task. With more queries the kernels for many queries are faster:
/// they hold 16 or 32 queries from one head in a vector's lanes or in a tile.
inline constexpr std::int64_t max_queries_of_few_rows = 8;
inline constexpr std::int64_t max_rows_of_few_queries = 64;

/// Returns the query heads per task: as many of the `group` heads that share a K/V head as fit.
inline std::int64_t heads_together(std::int64_t group, std::int64_t queries) {
    std::int64_t heads = std::min(group, max_rows_of_few_queries / queries);
    while (group % heads != 0) --heads;
    return heads;
}

/// Plans a call with the chosen kernels for dtype T; there are none for float64. The plan depends on the
/// shape and the mask only. Packed sequences use the kernels for many queries, because their lengths are not
/// known when scratch memory is allocated.
template <class T>
FewQueriesPlan few_queries_plan(const ResolvedOptions& options, const Tensor& q, const Tensor& k);

/// Computes a call by its plan. The parameters are those of a ForwardFunction.
template <class T>
void few_queries_forward(const Context& ctx, const FewQueriesPlan& plan, const ResolvedOptions& options,
                         const Saved& saved);

/// A call's products q k, computed for the backward pass as in the forward pass. See BackwardTask::products.
/// A call that few_queries_plan() leaves to the kernels for many queries has none.
template <class T>
class FewQueriesProducts {
  public:
    /// `keys` is the number of keys per backward block.
    FewQueriesProducts(const ResolvedOptions& options, const Geometry& geometry, const Tensor& q,
                       const Tensor& k, std::int64_t keys);
    /// The scratch memory per task, aligned to 64 bytes.
    std::size_t scratch_bytes() const { return rows_bytes_ + kernel_bytes_; }
    /// Computes a task's products; the task holds the inputs.
    StridedRows<const float> compute(const BackwardTask<T>& task, std::byte* scratch) const;

  private:
    std::int64_t heads_together_ = 0, row_stride_ = 0;
    std::size_t rows_bytes_ = 0, kernel_bytes_ = 0;
};

/// Returns a text that names a plan's kernels, for bench attention --explain.
template <class T>
std::string explain(const FewQueriesPlan& plan, const Tensor& q);

}  // namespace gradtile::attention::cpu
