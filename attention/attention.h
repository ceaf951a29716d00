#pragma once
/// Attention: O = softmax(scale * Q K^T + mask) V and its gradients; one contract for every algorithm and
/// device. S and P below are the scores and the probabilities, [B, Hq, Sq, Sk]; flash never stores them.
///
/// Sources: Vaswani et al. 2017 (eq. 1); Milakov & Gimelshein 2018 (online softmax); Dao et al. 2022 and Dao
/// 2023 (FlashAttention, FlashAttention-2: forward algorithm 1, backward algorithm 2). docs/numerics.md
/// derives the backward pass and the error bounds.
#include <array>
#include <cstdint>
#include <optional>

#include <gradtile/core/tensor.h>

namespace gradtile::attention {

enum class Algorithm : std::uint8_t {
    flash,  ///< FlashAttention-2: Q blocks outside forward, K/V blocks outside backward
    naive,  ///< S and P stored; in float64 the reference for everything
    // Named for later versions, refused in this one:
    memory_efficient,  ///< K/V blocks with a running maximum, backward recomputed row block by row block
    flash1,            ///< FlashAttention: K/V outside in the forward pass too
};
std::ostream& operator<<(std::ostream& out, Algorithm algorithm);

/// Row i sees the keys j with i + off - left <= j <= i + off + right, where off = Sk - Sq (0 with
/// Options::top_left); -1 = unbounded.
struct Window {
    std::int64_t left = -1;
    std::int64_t right = -1;
};

/// What to compute. The defaults are plain softmax(Q K^T / sqrt(Dqk)) V. An option that this version does not
/// provide is refused by name, never ignored.
struct Options {
    Algorithm algorithm = Algorithm::flash;
    std::optional<double> scale = {};  ///< of the scores; 1/sqrt(Dqk) when not given
    bool causal = false;               ///< no key later than the query: window.right = min(window.right, 0)
    Window window = {};                ///< sliding window
    bool top_left = false;  ///< align causal and window with row 0 = key 0; default: last row = last key
    /// Bit-equal gradients from run to run. The CPU's always are, dK and dV of the GPU too; there dQ's
    /// additions then take turns, which takes the 16-bit backward pass 11 to 22% of its speed.
    bool deterministic = false;

    // ---- Named for later versions, refused in this one ----
    std::array<Tensor, 2> biases = {};  ///< added to S; each broadcasts to [B, Hq, Sq, Sk]
    std::int64_t batch_divisor = 1;     ///< a bias of batch B serves a q of batch B * batch_divisor
    Tensor alibi_slopes = {};           ///< [Hq] float32: S -= slope * |i + off - j|
    double softcap = 0;                 ///< S = softcap * tanh(S / softcap); 0 = none
    Tensor sink = {};                   ///< [Hq] float32: a logit that takes probability and gives no value
    double dropout_p = 0;               ///< probability that an element of P is dropped
    std::uint64_t dropout_key = 0;  ///< Philox key: the mask is a function of (key, batch, head, row, column)
    Tensor cumulative_q = {};       ///< packed sequences: int32 [B+1] offsets into q [total, Hq, Dqk]
    Tensor cumulative_k = {};       ///< the same for k and v
};

/// What backward needs: the inputs (views, not copies), the output and one number a row.
struct Saved {
    Tensor q;    ///< [B, Sq, Hq, Dqk]
    Tensor k;    ///< [B, Sk, Hkv, Dqk]
    Tensor v;    ///< [B, Sk, Hkv, Dv]
    Tensor o;    ///< [B, Sq, Hq, Dv]
    Tensor lse;  ///< [B, Hq, Sq], natural log; float32 (float64 for float64 inputs)
};

struct Gradients {
    Tensor q;  ///< [B, Sq, Hq, Dqk]
    Tensor k;  ///< [B, Sk, Hkv, Dqk]
    Tensor v;  ///< [B, Sk, Hkv, Dv]
};

/// O [B, Sq, Hq, Dv] from q [B, Sq, Hq, Dqk], k [B, Sk, Hkv, Dqk], v [B, Sk, Hkv, Dv]; Hq a multiple of Hkv.
/// One dtype: float64, float32, bfloat16 or float16 (16-bit: head dims that are multiples of 8); sums in
/// float32 or wider. Head dims 1 to 256. Any strides, stride 0 and transposed included; any lengths, 0
/// included. A row that sees no key gives O = 0 and LSE = -inf.
/// On a GPU a call takes fewer than 2^28 tokens a sequence, and in float64 at most 65,535 heads of all
/// sequences. Throws Error on shapes, dtypes or options other than these.
Tensor forward(const Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Options& options,
               Saved& saved);
/// The same into `o`, which may be any view of that shape and dtype that does not overlap itself;
/// overwritten.
void forward(const Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Options& options,
             Saved& saved, const Tensor& o);

/// Gradients of a scalar with d_o = its gradient by O (shape and dtype of O, any strides). `options` must be
/// those of the forward call. Rows that see no key get zero gradients.
Gradients backward(const Context& ctx, const Tensor& d_o, const Options& options, const Saved& saved);
/// The same into views the caller supplies (for example three slices of one packed dQKV tensor); overwritten.
void backward(const Context& ctx, const Tensor& d_o, const Options& options, const Saved& saved,
              const Gradients& into);

}  // namespace gradtile::attention
