#pragma once
/// What `gradtile train` shows while it trains.
#include <memory>
#include <optional>
#include <string>

#include <gradtile/tools/live/live_display.h>
#include <gradtile/tools/live/progress.h>
#include <gradtile/train/trainer.h>

namespace gradtile::cli {

enum class DisplayKind {
    nothing,
    lines,     ///< see Progress
    dashboard  ///< see LiveDisplay; lines if standard output cannot draw one
};

/// Create the object before the process has other threads.
class TrainDisplay {
  public:
    explicit TrainDisplay(DisplayKind kind);
    /// Prints a message to standard error, above the dashboard if there is one.
    void message(const std::string& text);
    /// Shows the trainer's steps until the returned object is destroyed.
    [[nodiscard]] std::shared_ptr<void> show(Trainer& trainer, const ProgressOptions& options);

  private:
    template <class Shown>
    std::shared_ptr<void> follow(std::unique_ptr<Shown>& shown, Trainer& trainer);
    std::unique_ptr<LiveDisplay> make_dashboard(const Trainer& trainer, const ProgressOptions& options) const;

    DisplayKind kind_;
    std::optional<ContinueSignal> continued_;
    std::unique_ptr<Progress> lines_;
    std::unique_ptr<LiveDisplay> dashboard_;
};

}  // namespace gradtile::cli
