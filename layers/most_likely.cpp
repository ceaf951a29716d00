#include <gradtile/layers/most_likely.h>

#include <cmath>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/layers/internal/most_likely_backend.h>

namespace gradtile {

void most_likely_tokens(const Context& ctx, const Tensor& tokens, const Tensor& logits) {
    check(logits.rank() == 2 && logits.dtype() == DType::f32 && logits.size(1) >= 1 &&
              (logits.stride(1) == 1 || logits.size(1) == 1) && tokens.dtype() == DType::i32 &&
              tokens.shape() == Shape{logits.size(0)} && tokens.is_contiguous(),
          "most_likely_tokens: tokens ", tokens, " of logits ", logits,
          "; expected contiguous int32 [R] of float32 [R, V]");
    check_sharing(ctx, "most_likely_tokens", {"tokens", tokens}, {{"logits", logits}});
    if (tokens.elements() == 0) return;
    on_device(ctx, cpu::most_likely_tokens, cuda::most_likely_tokens, tokens, logits);
}

namespace cpu {

void most_likely_tokens(const Context& ctx, const Tensor& tokens, const Tensor& logits) {
    parallel_for(ctx, logits.size(0), [&](std::int64_t row) {
        const float* const x = logits.data<float>() + row * logits.stride(0);
        std::int32_t best = 0;
        bool finite = true;
        for (std::int64_t i = 0; i < logits.size(1); ++i) {
            finite = finite && std::isfinite(x[i]);
            if (x[i] > x[best]) best = static_cast<std::int32_t>(i);
        }
        tokens.data<std::int32_t>()[row] = finite ? best : -1;
    });
}

}  // namespace cpu
}  // namespace gradtile
