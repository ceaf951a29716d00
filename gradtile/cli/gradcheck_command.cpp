// gradtile gradcheck: finite differences in float64 against every hand-written derivative.
#include <iostream>

#include <gradtile/cli/commands.h>
#include <gradtile/cli/devices.h>
#include <gradtile/cli/gradcheck_operators.h>
#include <gradtile/core/json_value.h>
#include <gradtile/train/nearest_name.h>

namespace gradtile::cli {
namespace {

struct Flags {
    std::string op = "all";
    DeviceChoice device = DeviceChoice::cpu;
    bool json = false;
};

JsonValue as_json(const std::string& name, const GradientReport::Input& input) {
    return JsonValue::object({{"op", name},
                              {"input", input.name},
                              {"error", input.error},
                              {"bound", input.bound},
                              {"analytic", input.analytic},
                              {"numeric", input.numeric},
                              {"checked", input.checked},
                              {"ok", input.ok}});
}

int gradcheck(const Flags& flags) {
    std::vector<std::string> names;
    for (const CheckedOperator& op : checked_operators()) names.push_back(op.name);
    const bool known = flags.op == "all" || std::find(names.begin(), names.end(), flags.op) != names.end();
    check(known, "--op: '", flags.op, "' is unknown; the nearest known one is '",
          nearest_name(flags.op, names), "'");

    const Context ctx(resolve_device(flags.device));
    bool all_ok = true;
    for (const CheckedOperator& op : checked_operators()) {
        if (flags.op != "all" && flags.op != op.name) continue;
        const GradientReport report = op.check(ctx);
        all_ok = all_ok && report.ok();
        if (flags.json) {
            for (const GradientReport::Input& input : report.inputs)
                std::cout << as_json(op.name, input).dump() << '\n';
        } else {
            std::cout << op.name << (report.ok() ? "" : "  FAILED") << '\n' << report;
        }
    }
    if (!flags.json)
        std::cout << (all_ok ? "all gradients agree with finite differences\n"
                             : "some gradients are wrong\n");
    return all_ok ? 0 : 1;
}

}  // namespace

void add_gradcheck(CommandLine& program) {
    const auto flags = std::make_shared<Flags>();
    Command command = program.add_command(
        "gradcheck", "Check hand-written gradients against finite differences in float64");
    std::string names = "all";
    for (const CheckedOperator& op : checked_operators()) names += ", " + op.name;
    command.add_value("--op", flags->op, names);
    add_device_flag(command, flags->device);
    command.add_switch("--json", flags->json, "one JSON object an input");
    command.on_chosen([flags] { return gradcheck(*flags); });
}

}  // namespace gradtile::cli
