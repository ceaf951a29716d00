#pragma once
/// Batches of windows from a token sequence: shuffled epochs for training, one ordered pass for validation.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <gradtile/core/random.h>
#include <gradtile/core/tensor.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/layers/documents.h>
#include <gradtile/train/data/packing.h>
#include <gradtile/train/data/token_sequence.h>

namespace gradtile {

class DocumentStream;
struct StreamPlace;

/// Model input: targets[b,t] is the token that follows tokens[b,t], or ignored_target.
struct Batch {
    Tensor tokens;   ///< int32 [B,T]
    Tensor targets;  ///< int32 [B,T]
    Documents documents = {};
};
Batch empty_batch(const Context& ctx, std::int64_t batch_size, std::int64_t context,
                  const Packing& packing = {});

/// Host memory for Documents: positions [B T], and offsets [B * max_documents + 1] or ranges [B T 4].
struct DocumentSpans {
    std::span<std::int32_t> positions = {}, offsets = {}, ranges = {};
};

/// How a loader fills rows of T tokens.
struct WindowOptions {
    std::int64_t context = 0;
    std::int64_t ignore_token = -1;
    Packing packing = {};
};

struct DataLoaderOptions {
    std::int64_t context = 0;  ///< tokens in a window, T
    Seed seed{};               ///< shuffle seed
    std::int64_t rank = 0;     ///< this process's rank, see next()
    std::int64_t ranks = 1;
    std::int64_t ignore_token = -1;  ///< targets with this id are ignored; -1: none
    Packing packing = {};            ///< says where documents begin inside windows
};

/// Training batches; epochs follow each other without end.
///
/// An epoch cuts the sequence into windows of T tokens, starting at a random phase in [0, T), and visits the
/// windows in a random order. Every token that has a predecessor is a target exactly once. The tokens before
/// the phase and after the last whole window form short windows, whose unused positions hold token 0 with an
/// ignored target. A sequence with examples is cut by windows_of() instead, without a phase, and only tokens
/// that are marked are targets. The order is a function of (seed, epoch), so it depends neither on the batch
/// size nor on the process count, and the state is two numbers.
///
/// A stream of documents (document_stream.h) is visited block by block: each block is cut into windows, and
/// its windows are visited in a random order, as those of a sequence in an epoch. The state then holds where
/// the block begins, too.
///
/// Windows are read from files when next() is called. next() passes on errors from TokenSequence::read() and,
/// when an epoch ends, from TokenSequence::require_unchanged(). After an error the loader's position is
/// unchanged, and the batch's contents are undefined.
class DataLoader {
  public:
    /// Throws Error naming the sequence when it is shorter than context + 1 tokens, or when it has no target
    /// that counts.
    DataLoader(TokenSequence tokens, DataLoaderOptions options);
    /// Throws Error when the first block cannot be read, or when an epoch has no target.
    DataLoader(std::shared_ptr<DocumentStream> stream, DataLoaderOptions options);

    /// Fills B rows of T tokens. The ranks together take the next B * ranks windows in the order; rank r
    /// takes the r-th group of B. B is the spans' size / T and may change from call to call. Returns how many
    /// targets count in all ranks' windows. Packed windows need `documents`.
    std::int64_t next(std::span<std::int32_t> tokens, std::span<std::int32_t> targets,
                      const DocumentSpans& documents = {});
    /// Fills the next windows into the caller's contiguous host tensors.
    std::int64_t next(const Batch& batch);

    std::int64_t context() const { return options_.context; }
    const Packing& packing() const { return options_.packing; }
    std::int64_t epoch() const { return cursor_.epoch; }  ///< counted from 0
    /// Returns how many windows all ranks together have taken in this epoch, or in a stream's block.
    std::int64_t position() const { return cursor_.position; }
    std::int64_t windows() const { return cursor_.windows; }  ///< windows in this epoch, or in the block

    /// Returns the state for a checkpoint: {"epoch", "position", "tokens", "context", "seed"}; for a stream
    /// {"epoch", "position", "file", "row", "block", "buffer", "context", "seed"}. Equal on every rank.
    JsonValue state() const;
    /// Continues exactly at the position in `state`; the batch size and the rank count may differ. Throws
    /// Error, without any change, when the state belongs to other data, another context or another seed.
    void restore(const JsonValue& state);

  private:
    struct Tokens;  // whose windows are visited in one order: all tokens, or a stream's block
    /// A position in the endless order.
    struct Cursor {
        std::shared_ptr<const Tokens> tokens;
        std::int64_t epoch = 0;
        std::int64_t position = 0;
        std::int64_t phase = 0;
        std::int64_t windows = 1;  ///< how many the order has
        std::uint64_t order_seed = 0;
    };
    void check_options() const;
    std::shared_ptr<Tokens> tokens_of(TokenSequence sequence) const;
    Cursor start_of(std::shared_ptr<const Tokens> tokens, std::int64_t epoch, std::int64_t pass) const;
    Cursor start_of_block(const StreamPlace& first) const;
    Cursor place_in(const JsonValue& state) const;
    Cursor place_in_stream(const JsonValue& state) const;
    void advance(Cursor& cursor) const;
    TokenWindow window_at(const Cursor& cursor) const;
    std::int64_t count_targets(const Cursor& cursor);

    DataLoaderOptions options_;
    std::shared_ptr<DocumentStream> stream_;  // null: all tokens are one sequence
    Cursor cursor_;
    WindowOptions window_options() const {
        return {options_.context, options_.ignore_token, options_.packing};
    }
    std::vector<std::int32_t> window_, other_row_;  // scratch: a row of this rank, and of another
};

struct SequentialOptions {
    std::int64_t ignore_token = -1;
    Packing packing = {};
    /// Tokens from one window's start to the next window's start, 1 to context; 0: context. A target that is
    /// in several windows counts only in the first one. So except at the start of the sequence, a target has
    /// at least context - stride tokens before it. Examples and packed windows have no stride.
    std::int64_t stride = 0;
};

/// Validation batches: windows over the whole sequence, in order. The last window may be short, so a loss
/// weighted by next()'s counts is the loss over the whole split. The class throws the same errors as
/// DataLoader.
class SequentialLoader {
  public:
    /// Throws Error naming the sequence when it has fewer than two tokens, or no target that counts.
    SequentialLoader(TokenSequence tokens, std::int64_t context, const SequentialOptions& options = {});

    bool done() const { return window_ == windows(); }
    /// Skips up to `windows_to_skip` remaining windows.
    void skip(std::int64_t windows_to_skip) { window_ = std::min(window_ + windows_to_skip, windows()); }
    std::int64_t windows() const;
    const Packing& packing() const { return options_.packing; }
    /// Returns the longest window's token count, at most the context.
    std::int64_t longest_window() const;
    /// Returns [B, L], the shape of a small batch for the next `rows` windows: B windows are left, and the
    /// longest one has at most L tokens. L is rounded up by less than an eighth, so that few shapes occur.
    Shape next_shape(std::int64_t rows) const;
    /// Fills B rows with the next windows and returns how many targets count. Rows after the last window hold
    /// token 0 with ignored targets.
    std::int64_t next(std::span<std::int32_t> tokens, std::span<std::int32_t> targets,
                      const DocumentSpans& documents = {});
    /// Fills rows of any length that holds the windows.
    std::int64_t next(const Batch& batch);
    /// Returns to the first window. Throws Error when a file was changed since it was opened.
    void rewind();

  private:
    TokenWindow window_at(std::int64_t window) const;
    std::int64_t longest_window(std::int64_t begin, std::int64_t end) const;
    std::int64_t next_rows(std::int64_t length, std::span<std::int32_t> tokens,
                           std::span<std::int32_t> targets, const DocumentSpans& documents);

    TokenSequence tokens_;
    WindowOptions options_;
    std::int64_t stride_;
    std::vector<TokenWindow> example_windows_;
    std::vector<std::int64_t> borders_;
    std::int64_t window_ = 0;
    std::vector<std::int32_t> scratch_;
};

}  // namespace gradtile
