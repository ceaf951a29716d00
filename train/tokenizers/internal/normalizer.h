#pragma once
/// Applies a vocabulary's NormalizerSteps to text.
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/train/tokenizers/byte_pair_vocabulary.h>

namespace gradtile {

class Normalizer {
  public:
    /// Throws Error that begins with `source` for more than max_steps steps, for texts of more than
    /// max_step_bytes bytes, for replacements that together multiply a text's length by more than max_growth,
    /// for a damaged character map, and if a step needs utf8proc and there is none.
    Normalizer(const std::vector<NormalizerStep>& steps, std::string_view source);

    static constexpr std::size_t max_steps = 16;
    static constexpr std::size_t max_step_bytes = 64;
    static constexpr double max_growth = 64.0;

    /// Whether no step changes any text.
    bool is_identity() const { return steps_.empty(); }
    /// Whether added tokens are found in the normalized text as they are.
    bool keeps_symbols() const { return keeps_symbols_; }
    std::string run(std::string_view text) const;

  private:
    std::vector<std::function<std::string(std::string_view text)>> steps_;
    bool keeps_symbols_ = false;
};

/// Returns the text with `to` for each `from`, which is not empty.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

}  // namespace gradtile
