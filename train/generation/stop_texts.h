#pragma once
/// Ends a generated text before the first of some texts.
#include <string>
#include <string_view>
#include <vector>

namespace gradtile {

/// The end of the text is held back while it may be the beginning of a stop text; the next piece decides.
class StopTexts {
  public:
    /// Empty stop texts are ignored.
    explicit StopTexts(std::vector<std::string> texts);

    /// Returns what is certain to come before a stop text.
    std::string next(std::string_view piece);
    /// Returns what was held back; empty once a stop text was found.
    std::string finish();
    bool found() const { return found_; }

  private:
    std::vector<std::string> texts_;
    std::string held_;
    bool found_ = false;
};

}  // namespace gradtile
