#pragma once
/// Attention, O = softmax(scale * Q K^T + mask) V, and its gradients. Every algorithm and device has this
/// interface. S denotes the scores and P the probabilities, both [B, Hq, Sq, Sk]; flash never stores them.
///
/// Sources: Vaswani et al. 2017 (eq. 1); Milakov & Gimelshein 2018 (online softmax); Rabe & Staats 2021
/// (memory-efficient attention); Dao et al. 2022 (FlashAttention: forward algorithm 1, backward algorithm 4);
/// Dao 2023 (FlashAttention-2: forward algorithm 1, backward algorithm 2). docs/numerics.md derives the
/// backward pass and the error bounds.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <gradtile/core/dropout_key.h>
#include <gradtile/core/tensor.h>

namespace gradtile::attention {

inline constexpr std::size_t max_biases = 2;

enum class Algorithm : std::uint8_t {
    flash2,  ///< FlashAttention-2: the outer loop is over Q blocks in forward, K/V blocks in backward
    /// Stores S and P; in float64 the reference for other algorithms. Its matrix products include the hidden
    /// pairs (row, key), so a NaN in a key that some rows see reaches every row of the K/V head; on a GPU
    /// also the rows of other packed sequences.
    naive,
    // memory_efficient and flash1 are for comparison. Both refuse packed sequences, row ranges and, on a GPU
    // with 99 KB of shared memory per thread block, float64 gradients for head dims above 128.
    /// Rabe & Staats: a loop over K/V blocks with a running maximum, in linear memory; the backward pass
    /// handles one row block after the other. On the CPU each operation writes its result to memory.
    memory_efficient,
    flash1,          ///< FlashAttention: the outer loop is over K/V blocks in forward, too
    flash = flash2,  ///< another name for flash2
};
std::ostream& operator<<(std::ostream& out, Algorithm algorithm);
/// Returns the algorithm named `text`; "flash" is flash2. Throws Error "SETTING: 'TEXT' is unknown; ..".
Algorithm algorithm_named(std::string_view text, std::string_view setting);

/// Row i sees the keys j with i + off - left <= j <= i + off + right; off = Sk - Sq, or 0 if top_left is set.
struct Window {
    std::int64_t left = -1, right = -1;  ///< -1: unbounded
};

/// Overrides of the choice between flash2's kernels on a GPU, for measurements and tests. Empty: the library
/// chooses. A member that a pass has no use for changes nothing, but tiles without a kernel are an Error.
struct KernelChoice {
    /// false: no kernels that only compute capability 9.0 has. true: these even where others are faster.
    std::optional<bool> hopper = {};
    std::optional<bool> few_queries = {};  ///< false: few queries use the kernels for many queries, too
    std::optional<int> splits = {};        ///< key splits for few queries, at most the library's limit
    std::optional<bool> pairs = {};        ///< whether a forward task is a pair of row blocks
    std::optional<int> set_heads = {};     ///< heads whose tasks are in flight together
    std::optional<bool> ring = {};         ///< whether dQ is summed for the heads in flight only
    std::optional<int> more_slots = {};    ///< extra slots in the dQ accumulator ring, beyond one head set
    /// Indices into the lists in attention/cuda/sm90/candidates.h.
    std::optional<int> forward_tiles = {}, backward_tiles = {};

    bool operator==(const KernelChoice&) const = default;
};

/// Options for one call. The defaults compute softmax(Q K^T / sqrt(Dqk)) V. A call that sets an option which
/// this version does not implement throws an Error with the option's name.
struct Options {
    Algorithm algorithm = Algorithm::flash2;
    /// Scales the products q.k; default 1/sqrt(Dqk). At most half of float32's largest number (float64's for
    /// float64 inputs); unless the inputs are float64, a scale below float32's normal numbers acts as 0.
    std::optional<double> scale = {};
    bool causal = false;    ///< a row sees no key after its own position; replaces window.right by 0
    Window window = {};     ///< sliding window
    bool top_left = false;  ///< aligns row 0 with key 0; by default the last row is aligned with the last key
    /// Makes gradients equal to the bit from run to run. Some gradients are equal without this option: all on
    /// the CPU; on a GPU dK and dV of flash2 and naive, and all of flash1. On a GPU the option makes flash2
    /// add to dQ in a fixed order, which lowers the 16-bit backward pass's speed by 11 to 22% (31 to 41% on
    /// Hopper GPUs). memory_efficient then also adds to dK and dV in a fixed order: one thread block computes
    /// a whole K/V head.
    bool deterministic = false;
    KernelChoice kernels = {};  ///< empty in normal use; refused unless flash2 runs on a GPU

    /// A mask as two ranges of rows for each key: int32 [B or 1, Hq or 1, Sk, 4]; [Hq or 1, total keys, 4] if
    /// packed, where rows count from the sequence's start. For a key's numbers r, the rows i with r[0] <= i <
    /// r[1] or r[2] <= i < r[3] see the key, as far as the other options let them. Ranges may be empty (end
    /// <= begin) and may exceed the rows. A key's numbers are contiguous and aligned to 16 bytes. Kernels
    /// skip blocks without a visible pair, and need O(Sk) memory. row_ranges.h makes the ranges of known
    /// masks.
    Tensor row_ranges = {};

    // ---- Score and probability options ----
    //   s = softcap * tanh(scale q.k / softcap) - slope |i + off - j| + biases

    double softcap = 0;  ///< 0 = none, else 1e-20 to 1e20 (Gemma Team 2024, "Gemma 2")
    /// [Hq] float32 (Press et al. 2022, "ALiBi"), or [B, Hq] with slopes for each batch or packed sequence.
    Tensor alibi_slopes = {};
    /// Score terms [B, Hq, Sq, Sk], float32 or q's dtype; each axis may have length 1. -inf hides a key.
    /// In packed calls a bias is [sequences, Hq, rows, keys], where rows and keys count from each sequence's
    /// start; the last two axes have length 1 or at least the longest sequence's. The CPU throws Error on a
    /// longer sequence; on a GPU its results are undefined. Or a bias is [Hq, total keys], one number per
    /// key of k; each axis may have length 1.
    std::array<Tensor, max_biases> biases = {};
    /// With a bias of batch B and q of batch B * batch_divisor, q's batch b reads batch b / batch_divisor.
    /// The same holds for packed sequences.
    std::int64_t batch_divisor = 1;
    /// [Hq] float32: another logit per row, whose value is 0 (what a large one costs: docs/numerics.md).
    Tensor sink = {};
    double dropout_p = 0;         ///< probability that P_ij is dropped; the other elements are scaled up
    DropoutKey dropout_key = {};  ///< the default key drops nothing, as in evaluation

    // ---- Packed sequences ----

    /// Sequences with different lengths, stored one after the other without padding. Sequence b has rows
    /// cumulative_q[b] to cumulative_q[b + 1] - 1 in q, and keys cumulative_k[b] to cumulative_k[b + 1] - 1
    /// in k and v. Both tensors are contiguous int32 [B + 1] on q's device; set both or none. q, k, v and o
    /// then have no batch axis: q is [total rows, Hq, Dqk], k is [total keys, Hkv, Dqk]; lse is [Hq, total
    /// rows]. A row sees only keys in its own sequence, and the mask, ALiBi and dropout count rows and keys
    /// from its start. Lengths may be 0. Rows and keys after the last sequence belong to no sequence: their O
    /// and gradients are 0, and LSE is -inf. The first offset must be 0, and offsets must not decrease. The
    /// CPU throws Error on other offsets. A GPU reads the offsets only when its kernels run, and limits them
    /// to the tensors' lengths.
    Tensor cumulative_q = {}, cumulative_k = {};
};

/// Tensors that backward needs: the inputs (views, not copies), the output, and one number per row. Packed
/// sequences have no batch axis: see Options::cumulative_q.
struct Saved {
    Tensor q;    ///< [B, Sq, Hq, Dqk]
    Tensor k;    ///< [B, Sk, Hkv, Dqk]
    Tensor v;    ///< [B, Sk, Hkv, Dv]
    Tensor o;    ///< [B, Sq, Hq, Dv]
    Tensor lse;  ///< [B, Hq, Sq], natural log; float32 (float64 for float64 inputs)
    /// The rounding error that lse lacks, in its shape and dtype: P = exp(S - lse - lse_remainder). A row
    /// whose keys are all masked by a bias of -1e9 has LSE = -1e9 + ln n, and float32 has no digits left for
    /// ln n. An undefined tensor means 0, for example after partial results were merged. The forward pass
    /// defines the remainder on the CPU, and on a GPU with biases for flash2 and memory_efficient.
    Tensor lse_remainder = {};
    // Defined for Algorithm::flash1 only, in lse's shape and dtype: the paper's m and l, LSE = m + ln l.
    Tensor row_max = {};  ///< the row's largest score
    Tensor row_sum = {};  ///< the sum of exp(score - row_max)
};

struct Gradients {
    Tensor q;  ///< [B, Sq, Hq, Dqk]
    Tensor k;  ///< [B, Sk, Hkv, Dqk]
    Tensor v;  ///< [B, Sk, Hkv, Dv]
    /// Bias gradients, in the biases' dtypes and shapes. Along an axis of length 1 or stride 0 the gradient
    /// is a sum over that axis, computed in float32 (float64 for float64 inputs) in a fixed order. A gradient
    /// has stride 0 where its bias has. In packed calls it is 0 where no sequence has a pair, and a GPU
    /// computes it pair by pair, without tensor cores.
    std::array<Tensor, max_biases> biases = {};
    Tensor sink = {};  ///< [Hq] float32
};

/// Computes O [B, Sq, Hq, Dv] from q [B, Sq, Hq, Dqk], k [B, Sk, Hkv, Dqk], v [B, Sk, Hkv, Dv]. Hq must be a
/// multiple of Hkv. k and v may have batch 1, whatever q's batch is: all batches then share them. All tensors
/// have one dtype: float64, float32, bfloat16 or float16. Head dims are 1 to 256; on a GPU, 16-bit tensors
/// whose head dim is not a multiple of 8 are first copied. Sums are in float32 or wider. Input strides may be
/// any, including 0, negative ones and transposed layouts. Lengths may be any, including 0. A row that sees
/// no key has O = 0 and LSE = -inf. Keys that no row sees, by the mask, row ranges and -inf biases, and rows
/// that see no key may hold anything, also NaN: their own O and gradients are 0, and they change no other
/// result. A NaN in a key that only some rows see may reach 255 rows before and after them, or every row of
/// the K/V head with naive, row ranges or biases: docs/numerics.md, "Inputs that nothing sees". On a GPU a
/// sequence must have fewer than 2^28 tokens. Throws Error on other shapes, dtypes or options.
Tensor forward(const Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Options& options,
               Saved& saved);
/// Computes O like the function above, but writes it to `o`: any view with that shape and dtype whose
/// elements do not overlap. Throws Error if `o` shares memory with another operand.
///
/// If `max_logits` is defined, float32 [Hq], it receives each head's largest scale * q.k over all visible
/// pairs: before softcap, slopes and biases, and also over pairs that a bias of -inf hides. QK-clip needs
/// these numbers (Kimi Team 2025, "Kimi K2", section 2.1). A head without a visible pair has -inf; a NaN
/// product of a visible pair gives NaN. They cost a pass of their own, q.k once more for every visible pair
/// without matrix instructions, which may take several times as long as the rest of the call.
void forward(const Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Options& options,
             Saved& saved, const Tensor& o, const Tensor& max_logits = {});

/// Returns whether attention computes this dtype on this device: every floating dtype, but float16 on a GPU
/// only in a build with -DGRADTILE_FLOAT16=ON.
bool supports(Device device, DType dtype);

/// Returns one line of text that says which kernels compute this call, with which tiles and schedule, and
/// why; on a GPU for both passes, which may use different kernels.
std::string explain_forward(const Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                            const Options& options);

/// Computes the gradients of a scalar L from d_o = dL/dO (O's shape and dtype, any strides) and d_lse =
/// dL/dLSE (saved.lse's shape and dtype; undefined: 0). `options` must be the forward call's options. Rows
/// that see no key get zero gradients. If k and v have batch 1, their gradients are sums over q's batches:
/// each batch's gradient is rounded to the dtype, and the rounded gradients are added in float32 (float64 for
/// float64). The result includes gradients for the biases and the sink that are set.
Gradients backward(const Context& ctx, const Tensor& d_o, const Options& options, const Saved& saved,
                   const Tensor& d_lse = {});
/// Computes gradients like the function above, but writes them to the caller's views, for example three
/// slices of one packed dQKV tensor. Bias and sink gradients are computed only where `into` has a tensor for
/// them. Throws Error if a gradient shares memory with another gradient or with an operand, or if a gradient
/// has elements that share memory.
void backward(const Context& ctx, const Tensor& d_o, const Options& options, const Saved& saved,
              const Gradients& into, const Tensor& d_lse = {});

/// Attention results over some of the keys, for every query. merge() makes one call's results from those of
/// calls with disjoint keys (Milakov & Gimelshein 2018, eq. 4; Dao et al. 2022, FlashAttention, algorithm 1,
/// line 12).
struct PartialResult {
    /// [B, Sq, Hq, Dv], or [rows, Hq, Dv] for packed sequences; float64, float32, bfloat16 or float16
    Tensor o;
    Tensor lse;  ///< [B, Hq, Sq], or [Hq, rows]; float32 (float64 for float64)
};

/// Computes the attention results over both parts' keys:
///
///     lse = ln(exp(a.lse) + exp(b.lse))      o = exp(a.lse - lse) a.o + exp(b.lse - lse) b.o
///
/// A part whose LSE is -inf has no key for that row, and its O is not read; if both are, O is 0 and LSE is
/// -inf. Sums are in float32 (float64 for float64), so that O has only the parts' rounding errors and its
/// own. A sink must be in one part only. Strides may be any. `into` may be the same views as a or b. Throws
/// Error on shapes and dtypes that differ, and on other memory that `into` shares with a part, or if `into`
/// has elements that share memory.
///
/// With flash2, backward() takes the merged o and lse as Saved, without a remainder, and computes gradients
/// for all keys, or for one part's keys. The other algorithms compute the softmax of the keys they get.
void merge(const Context& ctx, const PartialResult& into, const PartialResult& a, const PartialResult& b);
PartialResult merge(const Context& ctx, const PartialResult& a, const PartialResult& b);

}  // namespace gradtile::attention
