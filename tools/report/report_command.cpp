// gradtile report: compares runs on a page for a browser.
#include <iostream>
#include <set>

#include <gradtile/core/text/message.h>
#include <gradtile/tools/command_line/commands.h>
#include <gradtile/tools/command_line/text_file.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/report/report_page.h>

namespace gradtile::cli {
namespace {

struct Flags {
    std::vector<std::string> runs;
    std::string out;
};

/// If several runs' directories have the same name, the runs' paths become their names.
void make_names_unique(std::vector<RunMetrics>& runs) {
    std::multiset<std::string> names;
    for (const RunMetrics& run : runs) names.insert(run.name);
    for (RunMetrics& run : runs)
        if (names.count(run.name) > 1) run.name = run.path;
}

int report(const Flags& flags) {
    check_usage(!flags.out.empty(), "--out '': expected a file to write (.html)");
    check_usage(flags.runs.size() <= max_report_runs, "report: ", flags.runs.size(),
                " runs; expected at most ", max_report_runs);
    std::vector<RunMetrics> runs;
    for (const std::string& path : flags.runs) {
        runs.push_back(read_run_metrics(path));
        for (const std::string& warning : runs.back().warnings) print_message(warning);
    }
    make_names_unique(runs);
    write_text_file("report", flags.out, report_page(runs));
    std::cout << printable(flags.out) << ": " << runs.size() << (runs.size() == 1 ? " run\n" : " runs\n");
    return 0;
}

}  // namespace

void add_report(CommandLine& program) {
    const auto flags = std::make_shared<Flags>();
    Command command =
        program.add_command("report", "Compare the curves and settings of runs on an HTML page");
    command.add_positionals("runs", flags->runs,
                            "directories of runs, or files like metrics.jsonl; a run may still be training");
    command.add_value("--out", flags->out, "HTML file to write; it needs no network");
    command.require("--out");
    command.set_action([flags] { return report(*flags); });
}

}  // namespace gradtile::cli
