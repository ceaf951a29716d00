#pragma once
/// Batches of windows from a token sequence: shuffled epochs for training, one pass in order for validation.
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <gradtile/core/random.h>
#include <gradtile/core/tensor.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/layers/vocabulary.h>
#include <gradtile/train/data/permutation.h>
#include <gradtile/train/data/token_sequence.h>

namespace gradtile {

/// What a model is shown: targets[b,t] is the token that follows tokens[b,t], or ignored_target.
struct Batch {
    Tensor tokens;   ///< int32 [B,T]
    Tensor targets;  ///< int32 [B,T]
};
Batch empty_batch(const Context& ctx, std::int64_t batch_size, std::int64_t context);

struct DataLoaderOptions {
    std::int64_t context = 0;  ///< tokens a window, T
    Seed seed{};               ///< of the order
    std::int64_t rank = 0;     ///< of this process, see next()
    std::int64_t ranks = 1;
    std::int64_t ignore_token = -1;  ///< targets of this id are ignored; -1: none
};

/// Training batches, epoch after epoch without end.
///
/// An epoch cuts the sequence into windows of T tokens, beginning at a random phase in [0, T), and visits
/// them in a random order: every token that has one before it is a target exactly once. What lies before the
/// phase and after the last whole window are short windows; their unused places hold token 0 with an ignored
/// target. All of it is a function of (seed, epoch), so the order does not depend on the batch size or on how
/// many processes share it, and the state is two numbers.
///
/// Files are read as windows are asked for. What TokenSequence::read() throws passes through next(), and so
/// does TokenSequence::require_unchanged() at the end of an epoch; the loader then stands where it stood
/// before, and what the batch holds means nothing.
class DataLoader {
  public:
    /// Throws Error naming the sequence when it is shorter than context + 1 tokens.
    DataLoader(TokenSequence tokens, DataLoaderOptions options);

    /// Fills B rows of T. The ranks together take the next B * ranks windows of the order, rank r the r-th B
    /// of them; B is the spans' size / T and may change from call to call. Returns how many targets count in
    /// the windows of all ranks.
    std::int64_t next(std::span<std::int32_t> tokens, std::span<std::int32_t> targets);
    /// The same for contiguous host tensors.
    std::int64_t next(const Batch& batch);

    std::int64_t context() const { return options_.context; }
    std::int64_t epoch() const { return cursor_.epoch; }  ///< counted from 0
    std::int64_t position() const {
        return cursor_.position;
    }  ///< windows of the epoch that are done, over all ranks
    std::int64_t windows() const { return cursor_.windows(); }  ///< in this epoch
    /// Passes over the data so far: epoch + position / windows.
    double epochs_done() const {
        return static_cast<double>(epoch()) +
               static_cast<double>(position()) / static_cast<double>(windows());
    }

    /// What a checkpoint keeps: {"epoch", "position", "tokens", "context", "seed"}; the same on every rank.
    JsonValue state() const;
    /// Goes on exactly where state() was taken; the batch size and the number of ranks may be others. Throws
    /// Error when the state belongs to other data, another context or another seed; nothing has changed then.
    void restore(const JsonValue& state);

  private:
    struct Window {
        std::int64_t begin, end;  // the tokens that are inputs
    };
    /// A place in the endless order.
    struct Cursor {
        std::int64_t epoch = 0;
        std::int64_t position = 0;
        std::int64_t phase = 0;
        Permutation order{1, 0};
        std::int64_t windows() const { return static_cast<std::int64_t>(order.size()); }
    };
    Cursor start_of(std::int64_t epoch) const;
    Window window_at(const Cursor& cursor) const;
    std::int64_t count_targets(const Window& window);

    TokenSequence tokens_;
    DataLoaderOptions options_;
    Cursor cursor_;
    std::vector<std::int32_t> window_;  // scratch
};

/// Validation batches: non-overlapping windows over the whole sequence, in order, the last one short where
/// need be, so that a loss weighted by next()'s counts is the loss over the whole split. Errors as
/// DataLoader's.
class SequentialLoader {
  public:
    /// Throws Error naming the sequence when it has fewer than two tokens.
    SequentialLoader(TokenSequence tokens, std::int64_t context, std::int64_t ignore_token = -1);

    bool done() const { return window_ == windows(); }
    /// Passes over so many windows, or what is left.
    void skip(std::int64_t windows_to_skip) { window_ = std::min(window_ + windows_to_skip, windows()); }
    std::int64_t windows() const { return (tokens_.size() - 2) / context_ + 1; }
    /// Fills B rows with the next windows and returns how many targets count; rows past the end hold token 0
    /// with ignored targets.
    std::int64_t next(std::span<std::int32_t> tokens, std::span<std::int32_t> targets);
    std::int64_t next(const Batch& batch);
    /// To the first window again. Throws Error when a file was changed since it was opened.
    void rewind();

  private:
    TokenSequence tokens_;
    std::int64_t context_;
    std::int64_t ignore_token_;
    std::int64_t window_ = 0;
    std::vector<std::int32_t> scratch_;
};

}  // namespace gradtile
