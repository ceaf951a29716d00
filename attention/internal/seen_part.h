#pragma once
/// INTERNAL. The part of a call that takes part in attention: the rows that see a key and the keys that a row
/// sees. Kernels multiply whole tiles, so a NaN or an infinity in any other row or key would reach results
/// by 0 * NaN. Therefore kernels get views without these rows and keys where that is possible, and copies
/// with zeros in their place elsewhere.
#include <optional>

#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/attention/internal/kernel_views.h>

namespace gradtile::attention {

/// The tensors and options that kernels get for a forward call. Memory is allocated at construction, also in
/// dry runs; load() and store() enqueue work.
class SeenForward {
  public:
    SeenForward(const Context& ctx, const ResolvedOptions& options, const Saved& saved);
    void load(const Context& ctx) const;
    /// Writes the results of rows that see no key, and those that kernels wrote to scratch memory.
    void store(const Context& ctx) const;
    const ResolvedOptions& options() const { return options_; }
    const Saved& saved() const { return seen_; }

  private:
    ResolvedOptions options_;
    SeenRanges ranges_;
    Saved all_, seen_;
    bool hides_keys_;  ///< k and v are copies
};

/// Like SeenForward, for a backward call.
class SeenBackward {
  public:
    SeenBackward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                 const OutputGradients& d_out, const Gradients& into);
    void load(const Context& ctx) const;
    /// Sets the gradients of unseen rows and keys to 0.
    void store(const Context& ctx) const;
    const ResolvedOptions& options() const { return options_; }
    const Saved& saved() const { return seen_; }
    const OutputGradients& d_out() const { return seen_d_out_; }
    const Gradients& into() const { return seen_into_; }

  private:
    ResolvedOptions options_;
    SeenRanges ranges_;
    Saved all_, seen_;
    OutputGradients d_out_, seen_d_out_;
    Gradients into_, seen_into_;
    bool hides_keys_, hides_rows_;                        ///< k and v, q and d_o are copies
    std::array<std::optional<Readable>, 4> row_numbers_;  ///< lse, lse_remainder, row_max and row_sum
};

}  // namespace gradtile::attention
