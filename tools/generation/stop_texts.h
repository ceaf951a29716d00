#pragma once
/// Ends a generated text before the first of some texts.
#include <string>
#include <string_view>
#include <vector>

namespace gradtile {

/// next() does not return the end of the text while this end may be the beginning of a stop text.
class StopTexts {
  public:
    /// Empty stop texts are ignored.
    explicit StopTexts(std::vector<std::string> texts);

    /// Adds a piece of the text. Returns the part of the text that certainly precedes any stop text and was
    /// not returned before.
    std::string next(std::string_view piece);
    /// Call after the last piece. Returns the rest of the text; empty once a stop text was found.
    std::string finish();
    bool found() const { return found_; }

  private:
    std::vector<std::string> texts_;
    std::string held_;
    bool found_ = false;
};

}  // namespace gradtile
