#pragma once
/// INTERNAL. The rows and keys that take part in attention: rows that see a key, and keys that a row sees.
/// Kernels multiply whole tiles, so a NaN or an infinity in any other row or key would reach results by 0 *
/// NaN. Therefore kernels get views without these rows and keys where that is possible, and copies with zeros
/// in their place elsewhere.
#include <optional>

#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/attention/internal/kernel_views.h>

namespace gradtile::attention {

/// The options and inputs that kernels get for a forward call. Memory is allocated at construction, also in
/// dry runs; load() enqueues work. Rows that see no key reach no other row's results, so they stay.
class SeenForward {
  public:
    SeenForward(const Context& ctx, const ResolvedOptions& options, const Saved& saved);
    void load(const Context& ctx) const;
    const ResolvedOptions& options() const { return options_; }
    const Saved& saved() const { return seen_; }

  private:
    ResolvedOptions options_;
    IndexRange keys_;
    Saved all_, seen_;
    bool clears_keys_;  ///< k and v are copies
};

/// Like SeenForward, for a backward call. The per-row numbers in `saved` become contiguous.
class SeenBackward {
  public:
    SeenBackward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                 const OutputGradients& d_out, const Gradients& into);
    void load(const Context& ctx) const;
    /// Sets gradients to 0 for keys that kernels did not get.
    void store(const Context& ctx) const;
    const ResolvedOptions& options() const { return forward_.options(); }
    const Saved& saved() const { return seen_; }
    const OutputGradients& d_out() const { return seen_d_out_; }
    const Gradients& into() const { return seen_into_; }

  private:
    SeenForward forward_;
    IndexRange keys_;
    Saved all_, seen_;
    OutputGradients d_out_, seen_d_out_;
    Gradients into_, seen_into_;
    bool clears_rows_;                                    ///< q and d_o are copies
    std::array<std::optional<Readable>, 4> row_numbers_;  ///< lse, lse_remainder, row_max and row_sum
};

}  // namespace gradtile::attention
