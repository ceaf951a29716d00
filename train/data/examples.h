#pragma once
/// Examples: parts of a token sequence that are trained on one by one, as conversations are.
#include <cstdint>
#include <vector>

#include <gradtile/train/data/packing.h>

namespace gradtile {

/// The examples of a token sequence. Each window of such a sequence begins at the first token of an example
/// (or, if the example is longer than the context, at a later token of the example), and only some of the
/// window's tokens are targets.
struct Examples {
    /// The index of each example's first token, in increasing order from 0, and then the number of tokens.
    std::vector<std::int64_t> begins{0};
    /// By token: whether the model is trained to predict it. false for the first token of each example.
    std::vector<bool> is_target{};

    std::int64_t count() const { return std::ssize(begins) - 1; }
    std::int64_t targets() const;
};

/// The input tokens [begin, end) of a row; the targets are the tokens after each of them.
struct TokenWindow {
    std::int64_t begin = 0, end = 0;
};

/// Returns the windows of an epoch, in the order of the examples. A window holds one example, or with packing
/// as many successive whole examples as have room in `context` tokens, at most packing.max_documents. An
/// example with more than context + 1 tokens is cut into windows of its own. Windows without a target are
/// left out.
std::vector<TokenWindow> windows_of(const Examples& examples, std::int64_t context, const Packing& packing);

}  // namespace gradtile
