#pragma once
/// Dropout (Srivastava et al. 2014), scaled so that evaluation needs no change, and the residual sum that
/// ends a transformer branch.
///
/// The mask is a pure function of where an element stands in training, never stored: Philox4x32-10 with the
/// counter {column / 8, token, 0, sample in the global batch} gives 128 bits for 8 columns, column c taking
/// 16 of them: u = (words[c % 8 / 2] >> 16 * (c % 2)) & 0xffff. It is kept when u >= round(65536 p) and
/// scaled by 65536 / (65536 - round(65536 p)).
#include <gradtile/core/philox.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

/// Which random numbers a pass draws. A default one means evaluation: nothing is dropped.
struct DropoutKey {
    bool training = false;
    std::uint64_t seed = 0;
    std::int64_t first_sample = 0;  ///< this micro-batch's first sequence within the global batch

    static DropoutKey of_step(std::uint64_t run_seed, std::int64_t step, std::int64_t micro_step,
                              std::int64_t first_sample = 0) {
        const std::uint64_t of_step = mix_seed(run_seed, static_cast<std::uint64_t>(step));
        return {true, mix_seed(of_step, static_cast<std::uint64_t>(micro_step)), first_sample};
    }
    /// The key of one place in the model; every place must have its own number.
    DropoutKey at(std::uint64_t site) const { return {training, mix_seed(seed, site), first_sample}; }
};

/// x [B,..,C], any float dtype: axis 0 counts samples, the axes between tokens, the last columns. A rank-2 x
/// is one sample. Rows are contiguous.
struct Dropout {
    struct Saved {
        DropoutKey key;
    };

    /// x * mask * scale; x itself, not a copy, when nothing is dropped.
    Tensor forward(const Context& ctx, const Tensor& x, const DropoutKey& key, Saved& saved) const;
    /// dy * mask * scale; dy itself when nothing was dropped.
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved& saved) const;
    /// branch = x + branch * mask * scale in one pass, and returns it: the end of a residual branch, whose
    /// own output nobody needs again. Its backward is dx = dy, d_branch = backward(dy).
    Tensor add_residual(const Context& ctx, const Tensor& x, const Tensor& branch, const DropoutKey& key,
                        Saved& saved) const;

    double p = 0.0;
};

}  // namespace gradtile
