#pragma once
/// Ends a generated text before the first stop text.
#include <string>
#include <string_view>
#include <vector>

namespace gradtile {

/// next() does not return the text's end while this end may begin a stop text.
class StopTexts {
  public:
    /// Empty stop texts are ignored.
    explicit StopTexts(std::vector<std::string> texts);

    /// Adds a piece to the text. Returns the part that certainly precedes any stop text and was not returned
    /// before.
    std::string next(std::string_view piece);
    /// Call after the last piece. Returns the remaining text; empty once a stop text was found.
    std::string finish();
    bool found() const { return found_; }

  private:
    std::vector<std::string> texts_;
    std::string held_;
    bool found_ = false;
};

}  // namespace gradtile
