#pragma once
/// A command that runs as one of several processes, or as the parent that starts them on this host.
#include <functional>
#include <memory>
#include <optional>

#include <gradtile/cli/command_line.h>
#include <gradtile/cli/launcher.h>
#include <gradtile/train/parallel/process_group.h>
#include <gradtile/train/train_config.h>

namespace gradtile::cli {

struct GroupFlags {
    double timeout = ProcessGroupOptions{}.timeout;  ///< seconds
    std::optional<std::int64_t> gpus, processes;
    /// Whether this process only starts others.
    bool launches() const { return gpus || processes; }
};

/// --gpus, --processes and --timeout, which must live until the command line is parsed; `what` the command
/// does: "train".
void add_group_flags(Command& command, const std::string& what, GroupFlags& flags);

/// Of a flag that only counts something.
int count_of(const char* flag, std::int64_t value, std::int64_t least);

/// What the flags ask for with this process's own command line. Throws Error when they contradict each other,
/// the device or the machine, or when another launcher has started this process; `flag` is named for that.
Launch launch_of(const GroupFlags& flags, DeviceChoice device, const char* flag);

/// This process's part: joins the group that the launcher's variables tell of (or is alone), does the work
/// and leaves with its exit code. An error, of this process or another, ends all of them; what may wait for
/// the others when it is destroyed must live outside of `work`.
int run_in_group(double timeout, const std::function<int(const std::shared_ptr<ProcessGroup>&)>& work);

}  // namespace gradtile::cli
