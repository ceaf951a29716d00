// gradtile doctor: lists what this machine offers to a run, what it lacks, and the command that brings it.
#include <gradtile/core/allocator.h>
#include <gradtile/core/text/message.h>
#include <gradtile/tools/command_line/commands.h>
#include <gradtile/tools/command_line/table.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/doctor/doctor.h>

namespace gradtile::cli {
namespace {

int doctor(bool json) {
    Table table({{"item", "item", Column::Kind::text, 15},
                 {"state", "state", Column::Kind::text, 7},
                 {"detail", "detail", Column::Kind::text, 0}},
                json);
    bool is_sound = true;
    const auto print = [&](const std::vector<Finding>& findings) {
        for (const Finding& finding : findings)
            table.add({finding.item, name_of(finding.state), printable(finding.detail)});
        is_sound = is_sound && can_run(findings);
    };
    print(examine_machine());
    print(examine_gpus());
    print(examine_libraries(run_libraries(), cuda_device_count()));
    return is_sound ? 0 : exit_failed;
}

}  // namespace

void add_doctor(CommandLine& program) {
    const auto json = std::make_shared<bool>(false);
    Command command = program.add_command(
        "doctor", "List what this machine offers to a run, what it lacks, and the command that installs it");
    command.add_switch("--json", *json, "print one JSON object per line");
    command.set_action([json] { return doctor(*json); });
}

}  // namespace gradtile::cli
