#pragma once
/// LauncherLink: the connection between a launcher that replaces lost ranks and each rank. When a rank is
/// lost, the others report it to the launcher, which then tells all where the new group meets:
///
///     rank -> launcher   "lost RANK STEP LINE\n"   the rank waits for a new group; LINE describes the loss
///     rank -> launcher   "unmet RANK STEP LINE\n"  the same, when the group was not complete yet
///     launcher -> rank   "PORT KEY\n"              the new group's port at 127.0.0.1, and its key
///     rank -> launcher   "trains\n"                the rank has the state of the run, and begins to train
#include <memory>
#include <optional>
#include <string>

#include <gradtile/core/descriptor.h>
#include <gradtile/train/parallel/process_group.h>

namespace gradtile::cli {

/// The variable with the number of the rank's descriptor.
inline constexpr const char* link_variable = "GRADTILE_LAUNCHER_LINK";
/// The variable of a rank that replaces a lost one.
inline constexpr const char* replaces_variable = "GRADTILE_REPLACES_RANK";

/// A loss that a rank reports.
struct LossReport {
    int rank = -1;
    std::int64_t step = -1;
    RankLost::Phase phase = RankLost::Phase::connected;
    std::string line = {};
};
std::string to_text(const LossReport& report);
/// Throws Error unless the text is one of to_text(), without its line end.
LossReport loss_report_from(const std::string& text);

/// One end of a connection, which carries lines.
class LineLink {
  public:
    LineLink() = default;
    explicit LineLink(Descriptor socket) : socket_(std::move(socket)) {}

    /// Sends a line. Errors are ignored: the other end's process has ended, which both ends notice otherwise.
    void send(const std::string& line) const;
    /// The next line that has arrived, without its end.
    std::optional<std::string> next();
    /// Waits for the next line. Throws Error when the other end is closed.
    std::string wait_for_next();

  private:
    bool receive();
    Descriptor socket_;
    std::string received_;
};

/// A rank's end.
class LauncherLink {
  public:
    /// The link that this process's environment names; null if its launcher does not replace lost ranks, or
    /// if there is none. Call once.
    static std::shared_ptr<LauncherLink> from_environment();

    /// Whether this process replaces a lost rank.
    bool replaces_rank() const { return replaces_rank_; }
    void report_training() const { link_.send("trains"); }
    /// Reports a loss; returns the environment of the new group.
    RankEnvironment next_environment(RankEnvironment environment, const RankLost& loss, std::int64_t step);

  private:
    LauncherLink(Descriptor socket, bool replaces_rank)
        : link_(std::move(socket)), replaces_rank_(replaces_rank) {}
    LineLink link_;
    bool replaces_rank_;
};

}  // namespace gradtile::cli
