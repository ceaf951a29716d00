#pragma once
/// Runs a command as one of several processes, or as the parent that starts them on this host.
#include <functional>
#include <memory>
#include <optional>

#include <gradtile/tools/command_line/command_line.h>
#include <gradtile/tools/launch/launcher.h>
#include <gradtile/tools/launch/launcher_link.h>
#include <gradtile/train/config/train_config.h>
#include <gradtile/train/parallel/process_group.h>

namespace gradtile::cli {

struct GroupFlags {
    double timeout = ProcessGroupOptions{}.timeout;  ///< seconds
    std::optional<std::int64_t> gpus, processes;
    /// Whether this process is the parent.
    bool launches() const { return gpus || processes; }
};

/// Declares --gpus, --processes and --timeout. `what` is the verb in the help: "train". `flags` must live
/// until the command line is parsed.
void add_group_flags(Command& command, const std::string& what, GroupFlags& flags);

/// Returns a counting flag's value; throws UsageError unless it is from `min_value` to 4096.
int checked_count(const char* flag, std::int64_t value, std::int64_t min_value);

/// The launch that the flags describe, with this process's command line. Throws Error when the flags
/// contradict each other, the device or the machine, and when a launcher has already started this process.
/// Without --gpus and --processes the last message names `flag`.
Launch make_launch(const GroupFlags& flags, DeviceChoice device, const char* flag);

/// Joins the process group that the launcher's variables describe (or a group with this process alone), runs
/// `work`, leaves the group and returns the exit code. An error in any process ends all processes. With a
/// `link` the group can replace lost processes; null: none. Objects whose destructors may wait for other
/// processes must outlive `work`.
int run_in_group(double timeout, const std::shared_ptr<LauncherLink>& link,
                 const std::function<int(const std::shared_ptr<ProcessGroup>&)>& work);

}  // namespace gradtile::cli
