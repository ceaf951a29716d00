#pragma once
/// Examples: parts of a token sequence that are trained on one by one, such as conversations.
#include <cstdint>
#include <string_view>
#include <vector>

#include <gradtile/train/data/packing.h>

namespace gradtile {

/// A token sequence's examples. Each window in such a sequence begins at an example's first token (or, if the
/// example is longer than the context, at one of its later tokens), and only some window tokens are targets.
struct Examples {
    /// The index of each example's first token, in increasing order from 0, and then the token count.
    std::vector<std::int64_t> begins{0};
    /// By token: whether the model is trained to predict it. false for each example's first token.
    std::vector<bool> is_target{};

    std::int64_t count() const { return std::ssize(begins) - 1; }
    std::int64_t targets() const;
    /// Returns the examples in tokens [begin, end). Throws Error, with `source`, when an example is divided.
    Examples slice(std::int64_t begin, std::int64_t end, std::string_view source) const;
};

/// Returns an epoch's windows, in example order. A window holds one example, or with packing as many
/// successive whole examples as fit in `context` tokens, at most packing.max_documents. An example with more
/// than context + 1 tokens is cut into windows that hold only this example. Windows without a target are left
/// out.
std::vector<TokenWindow> windows_of(const Examples& examples, std::int64_t context, const Packing& packing);

}  // namespace gradtile
