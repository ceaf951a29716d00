// gradtile gradcheck: compares every hand-written derivative with finite differences in float64, and the
// kernels for the other dtypes with float64.
#include <iomanip>
#include <iostream>

#include <gradtile/attention/attention.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/core/text/nearest_name.h>
#include <gradtile/tools/command_line/commands.h>
#include <gradtile/tools/command_line/devices.h>
#include <gradtile/tools/command_line/standard_streams.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/gradcheck/gradcheck_accuracy.h>
#include <gradtile/tools/gradcheck/gradcheck_operators.h>

namespace gradtile::cli {
namespace {

struct Flags {
    std::string op = "all";
    DeviceChoice device = DeviceChoice::cpu;
    std::vector<std::string> dtypes = {"f64"};
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
JsonValue as_json(const AccuracyLine& line) {
    return JsonValue::object({{"op", line.op},
                              {"dtype", std::string(name_of(line.dtype))},
                              {"kernel", line.kernel},
                              {"option", line.option},
                              {"comparison", line.worst.what},
                              {"error", line.worst.error},
                              {"bound", line.worst.bound},
                              {"ok", line.worst.ok()}});
}

std::ostream& operator<<(std::ostream& out, const AccuracyLine& line) {
    out << line.op << ' ' << name_of(line.dtype) << ' ' << line.kernel << ", " << line.option << ": "
        << (line.worst.ok() ? "ok" : "WRONG") << "; closest to its bound: " << line.worst.what << ' ';
    return out << std::setprecision(3) << line.worst.error << ", bound " << line.worst.bound
               << std::setprecision(6);
}

/// Throws UsageError when the operator cannot be checked in `dtype`.
void check_operator_name(const std::string& op, DType dtype) {
    if (op == "all") return;
    std::vector<std::string> names{"all"};
    if (dtype == DType::f64) {
        for (const CheckedOperator& known : checked_operators()) names.push_back(known.name);
    } else {
        for (const AccuracyCheck& known : accuracy_checks()) names.push_back(known.name);
    }
    const bool known = std::find(names.begin(), names.end(), op) != names.end();
    check_usage(known, "--op: '", op, "' is unknown", dtype == DType::f64 ? "" : concat(" in ", dtype),
                did_you_mean(op, names));
}

DType checked_dtype(const std::string& name, const Device& device) {
    for (const auto& [short_name, dtype] :
         {std::pair{"f64", DType::f64}, {"f32", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}})
        if (name == short_name || name == name_of(dtype)) {
            check_usage(attention::supports(device, dtype), "--dtype: ", name, " on ", device,
                        " needs a build with -DGRADTILE_FLOAT16=ON");
            return dtype;
        }
    throw UsageError(
        concat("--dtype: ", device, " has no kernels for '", name, "'; expected f64, f32, bf16 or f16"));
}

/// Finite differences in float64.
bool check_derivatives(const Context& ctx, const Flags& flags) {
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
        check_output();
    }
    if (!flags.json)
        std::cout << (all_ok ? "all gradients agree with finite differences\n"
                             : "some gradients are wrong\n");
    return all_ok;
}

/// Compares another dtype's kernels with float64.
bool check_accuracy(const Context& ctx, DType dtype, const Flags& flags) {
    int lines = 0, failed = 0;
    const AccuracyReport report = [&](const AccuracyLine& line) {
        ++lines;
        failed += !line.worst.ok();
        if (flags.json) {
            std::cout << as_json(line).dump() << '\n';
        } else {
            std::cout << line << '\n';
        }
        check_output();
    };
    for (const AccuracyCheck& op : accuracy_checks())
        if (flags.op == "all" || flags.op == op.name) op.check(ctx, dtype, report);
    if (!flags.json) {
        if (failed == 0) {
            std::cout << "all " << lines << " combinations in " << dtype << " lie within their bounds\n";
        } else {
            std::cout << failed << " of " << lines << " combinations in " << dtype << " are wrong\n";
        }
    }
    return failed == 0;
}

/// flash is flash2's old name.
std::string current_name(const std::string& op) {
    if (op == "attention-flash") return "attention-flash2";
    return op == "attention-flash-causal" ? "attention-flash2-causal" : op;
}

int gradcheck(const Flags& flags) {
    const Context ctx(resolve_device(flags.device));
    std::vector<DType> dtypes;
    for (const std::string& name : flags.dtypes) dtypes.push_back(checked_dtype(name, ctx.device()));
    for (const DType dtype : dtypes) check_operator_name(flags.op, dtype);
    bool all_ok = true;
    for (const DType dtype : dtypes) {
        const bool ok =
            dtype == DType::f64 ? check_derivatives(ctx, flags) : check_accuracy(ctx, dtype, flags);
        all_ok = all_ok && ok;
    }
    return all_ok ? 0 : 1;
}

}  // namespace

void add_gradcheck(CommandLine& program) {
    const auto flags = std::make_shared<Flags>();
    Command command = program.add_command(
        "gradcheck",
        "Check hand-written gradients against finite differences, and every kernel against float64");
    std::string names = "all";
    for (const CheckedOperator& op : checked_operators()) names += ", " + op.name;
    names += "; in other dtypes than f64: all";
    for (const AccuracyCheck& op : accuracy_checks()) names += ", " + op.name;
    command.add_value<std::string>("--op", names, flags->op,
                                   [flags](const std::string& op) { flags->op = current_name(op); });
    command.add_value<std::vector<std::string>>(
        "--dtype",
        "dtypes to check, separated by commas; f64: against finite differences; f32, bf16, f16: every kernel "
        "of the device against float64 (default: f64)",
        [flags](const std::vector<std::string>& dtypes) { flags->dtypes = dtypes; });
    add_device_flag(command, flags->device);
    command.add_switch("--json", flags->json,
                       "print one JSON object per input, or per combination of kernel and option");
    command.set_action([flags] { return gradcheck(*flags); });
}

}  // namespace gradtile::cli
