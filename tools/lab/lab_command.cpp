// gradtile lab: attention from naive to FlashAttention-2 on a two-level memory, side by side, with memory
// accesses counted.
#include <iostream>
#include <optional>
#include <tuple>

#include <gradtile/core/text/formatted.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/core/text/message.h>
#include <gradtile/tools/command_line/commands.h>
#include <gradtile/tools/command_line/table.h>
#include <gradtile/tools/command_line/text_file.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/lab/key_splits.h>
#include <gradtile/tools/lab/machine.h>
#include <gradtile/tools/lab/ncu_comparison.h>
#include <gradtile/tools/lab/page.h>
#include <gradtile/tools/lab/sweep_picture.h>

namespace gradtile {
namespace {
enum class Sweep { length, fast_memory, head_dim };
}
template <>
struct EnumNames<Sweep> {
    static constexpr std::array names = {std::pair{Sweep::length, std::string_view("length")},
                                         std::pair{Sweep::fast_memory, std::string_view("fast-memory")},
                                         std::pair{Sweep::head_dim, std::string_view("head-dim")}};
};
}  // namespace gradtile

namespace gradtile::cli {
namespace {

using attention::lab::log_log_slope;
using attention::lab::Machine;
using attention::lab::measure_attention;
using attention::lab::measure_softmax;
using attention::lab::Measurement;
using attention::lab::megabytes;
using attention::lab::Setup;
using attention::lab::smallest_fast_memory;
using attention::lab::SoftmaxMeasurement;
using attention::lab::Trace;
using attention::lab::trace_attention;
using attention::lab::Verdict;

/// The command's flags. The defaults depend on whether a page is written.
struct LabFlags {
    Setup setup;
    std::optional<std::int64_t> length, head_dim, fast_memory;
    std::optional<Sweep> sweep;
    std::string svg;   ///< picture path; empty: no picture
    std::string html;  ///< page path; empty: no page
    std::string ncu;   ///< path to Nsight Compute's CSV file; empty: no comparison
    std::int64_t heads = 1;
    bool json = false;
};

JsonValue as_json(const Measurement& m) {
    return JsonValue::object({{"name", m.name},
                              {"pass", m.pass},
                              {"block_rows", m.block_rows},
                              {"block_keys", m.block_keys},
                              {"loads", m.loads},
                              {"stores", m.stores},
                              {"slow_bytes", m.slow_bytes},
                              {"formula_bytes", m.formula_bytes},
                              {"flops", m.flops},
                              {"peak_bytes", m.peak_bytes},
                              {"peak_fast_bytes", m.peak_fast_bytes},
                              {"ms", m.ms},
                              {"error", m.error}});
}
JsonValue as_json(const SoftmaxMeasurement& m) {
    return JsonValue::object({{"name", m.name},
                              {"loads", m.loads},
                              {"stores", m.stores},
                              {"slow_bytes", m.slow_bytes},
                              {"formula_bytes", m.formula_bytes},
                              {"ms", m.ms},
                              {"error", m.error}});
}
JsonValue as_json(const KeySplit& s) {
    return JsonValue::object({{"heads", s.heads},
                              {"splits", s.splits},
                              {"occupancy_of_one", s.occupancy_of_one},
                              {"occupancy", s.occupancy}});
}
JsonValue as_json(const Verdict& verdict) {
    return JsonValue::object(
        {{"claim", verdict.claim}, {"holds", verdict.holds}, {"figures", verdict.figures}});
}
JsonValue as_json(const Machine& machine) {
    return JsonValue::object({{"copy_bytes_per_s", machine.roofline.bytes_per_s},
                              {"product_flops_per_s", machine.roofline.flops_per_s},
                              {"standard_ms", machine.speed.standard_ms},
                              {"flash2_ms", machine.speed.flash2_ms}});
}
template <class T>
JsonValue list_as_json(const std::vector<T>& list) {
    std::vector<JsonValue> values;
    for (const T& item : list) values.push_back(as_json(item));
    return values;
}

JsonValue setup_as_json(const Setup& setup) {
    return JsonValue::object(
        {{"length", setup.length}, {"head_dim", setup.head_dim}, {"fast_memory", setup.fast_memory}});
}

double number(std::int64_t value) {
    return static_cast<double>(value);
}

void print_attention(const std::vector<Measurement>& measurements) {
    Table table({{"name", "algorithm", Column::Kind::text, 16},
                 {"pass", "pass", Column::Kind::text, 8},
                 {"blocks", "rows x keys", Column::Kind::text, 11},
                 {"loads", "loads M"},
                 {"stores", "stores M"},
                 {"slow", "slow MB"},
                 {"formula", "formula MB", Column::Kind::number, 10},
                 {"peak", "peak MB"},
                 {"fast", "fast KiB"},
                 {"ms", "ms"},
                 {"error", "error", Column::Kind::text, 7}},
                /*json=*/false);
    for (const Measurement& m : measurements)
        table.add({m.name, m.pass, concat(m.block_rows, " x ", m.block_keys), 1e-6 * number(m.loads),
                   1e-6 * number(m.stores), megabytes(number(m.slow_bytes)), megabytes(m.formula_bytes),
                   megabytes(number(m.peak_bytes)), number(m.peak_fast_bytes) / 1024, m.ms,
                   formatted("%.1e", m.error)});
}

void print_softmax(const std::vector<SoftmaxMeasurement>& measurements, std::int64_t length) {
    Table table({{"name", "softmax", Column::Kind::text, 18},
                 {"loads", "loads/x"},
                 {"stores", "stores/x"},
                 {"slow", "slow MB"},
                 {"formula", "formula MB", Column::Kind::number, 10},
                 {"ms", "ms"},
                 {"error", "error", Column::Kind::text, 7}},
                /*json=*/false);
    for (const SoftmaxMeasurement& m : measurements)
        table.add({m.name, number(m.loads) / number(length), number(m.stores) / number(length),
                   megabytes(number(m.slow_bytes)), megabytes(m.formula_bytes), m.ms,
                   formatted("%.1e", m.error)});
}

/// Prints the least time that the roofline model allows, under the assumption that slow memory is as fast as
/// this machine's memory.
void print_roofline(const std::vector<Measurement>& measurements, const Machine& machine) {
    const double rate = machine.roofline.flops_per_s, bandwidth = machine.roofline.bytes_per_s;
    std::cout << formatted(
        "\nroofline of this machine, one CPU thread: copy %.1f GB/s, product %.1f GFLOP/s, ridge %.1f "
        "FLOP/byte\n",
        1e-9 * bandwidth, 1e-9 * rate, machine.roofline.ridge());
    Table table({{"name", "algorithm", Column::Kind::text, 16},
                 {"pass", "pass", Column::Kind::text, 8},
                 {"gflop", "GFLOP"},
                 {"intensity", "FLOP/byte"},
                 {"bound", "bound", Column::Kind::text, 8},
                 {"ms", "at least ms", Column::Kind::number, 11}},
                /*json=*/false);
    for (const Measurement& m : measurements) {
        const double compute = m.flops / rate, transfer = number(m.slow_bytes) / bandwidth;
        table.add({m.name, m.pass, 1e-9 * m.flops, m.intensity(), compute >= transfer ? "compute" : "memory",
                   1e3 * std::max(compute, transfer)});
    }
}

void print_key_splits(const std::vector<KeySplit>& splits, std::int64_t length) {
    if (splits.empty()) return;
    std::cout << "\none query per head, " << length << " keys: parts of the keys (num_splits) on a GPU of "
              << example_multiprocessors << " multiprocessors, computed" << std::endl;
    Table table({{"heads", "heads"},
                 {"one", "occupancy of 1 part", Column::Kind::percent, 19},
                 {"splits", "parts"},
                 {"occupancy", "occupancy", Column::Kind::percent}},
                /*json=*/false);
    for (const KeySplit& s : splits) table.add({s.heads, s.occupancy_of_one, s.splits, s.occupancy});
}

int compare(const LabFlags& flags) {
    const Setup& setup = flags.setup;
    const std::vector<Measurement> attention = measure_attention(setup);
    const std::vector<SoftmaxMeasurement> softmax = measure_softmax(setup);
    const Machine machine{attention::lab::measure_roofline(), attention::lab::measure_speed(setup)};
    const std::vector<Verdict> verdicts = attention::lab::judge_claims(setup, attention, softmax, machine);
    const std::vector<KeySplit> splits = key_splits(setup.length, setup.head_dim);
    if (flags.json) {
        JsonValue all = setup_as_json(setup);
        all.set("algorithms", list_as_json(attention));
        all.set("softmax", list_as_json(softmax));
        all.set("key_splits", list_as_json(splits));
        all.set("machine", as_json(machine));
        all.set("verdicts", list_as_json(verdicts));
        std::cout << all.dump() << '\n';
        return 0;
    }
    std::cout << "one head, N = " << setup.length << ", d = " << setup.head_dim
              << ", float32, fast memory M = " << setup.fast_memory << " bytes; one thread" << std::endl;
    print_attention(attention);
    std::cout << "formula: N d + N^2 (naive, memory_efficient) and N^2 d^2 / M (flash) elements, without "
                 "constants\n\nsoftmax of a row of "
              << setup.length << " elements" << std::endl;
    print_softmax(softmax, setup.length);
    print_roofline(attention, machine);
    print_key_splits(splits, setup.length);
    std::cout << '\n';
    for (const Verdict& verdict : verdicts)
        std::cout << (verdict.holds ? "holds:          " : "does not hold:  ") << verdict.claim
                  << "\n                " << verdict.figures << '\n';
    return 0;
}

std::int64_t Setup::*member_of(Sweep sweep) {
    if (sweep == Sweep::length) return &Setup::length;
    return sweep == Sweep::head_dim ? &Setup::head_dim : &Setup::fast_memory;
}

struct SweepPoint {
    std::int64_t value;
    std::vector<Measurement> attention;
};

/// Runs the lab with the given value, and with this value halved up to four times.
std::vector<SweepPoint> run_sweep(const LabFlags& flags) {
    constexpr int points = 5;
    std::int64_t Setup::*const member = member_of(*flags.sweep);
    std::vector<SweepPoint> results;
    for (int i = points - 1; i >= 0; --i) {
        Setup setup = flags.setup;
        setup.*member >>= i;
        if (setup.*member >= 1 && setup.fast_memory >= smallest_fast_memory(setup.head_dim))
            results.push_back({setup.*member, measure_attention(setup)});
    }
    check_usage(results.size() >= 2, "--sweep ", name_of(*flags.sweep), ": halving ", flags.setup.*member,
                " leaves fewer than two points; give a larger value");
    return results;
}

/// Returns one number from algorithm `index` for every sweep point.
template <class Number>
std::vector<double> along(const std::vector<SweepPoint>& points, std::size_t index,
                          Number Measurement::*member) {
    std::vector<double> numbers;
    for (const SweepPoint& point : points)
        numbers.push_back(static_cast<double>(point.attention[index].*member));
    return numbers;
}

LabCurve curve_of(const Measurement& m, const std::vector<double>& bytes, double slope) {
    LabCurve curve{.name = m.name, .dashed = m.pass == "backward", .y = {}, .slope = slope};
    for (const double b : bytes) curve.y.push_back(megabytes(b));
    return curve;
}

int sweep(const LabFlags& flags) {
    const std::vector<SweepPoint> points = run_sweep(flags);
    std::vector<double> values;
    std::vector<Column> columns{{"name", "algorithm", Column::Kind::text, 16},
                                {"pass", "pass", Column::Kind::text, 8},
                                {"what", "MB", Column::Kind::text, 5}};
    std::vector<std::string> titles;
    for (const SweepPoint& point : points) {
        values.push_back(number(point.value));
        titles.push_back(std::to_string(point.value));
    }
    for (const std::string& title : titles) columns.push_back({title.c_str(), title.c_str()});
    columns.push_back({"slope", "slope"});
    Table table(columns, /*json=*/false);
    std::vector<JsonValue> algorithms;
    LabPicture picture{.title = "Traffic of attention (in the legend: slopes)",
                       .x_title = std::string(name_of(*flags.sweep)),
                       .y_title = "MB moved between slow and fast memory",
                       .x = values,
                       .curves = {}};
    if (!flags.json)
        std::cout << "sweep of " << name_of(*flags.sweep) << "; N = " << flags.setup.length
                  << ", d = " << flags.setup.head_dim << ", M = " << flags.setup.fast_memory
                  << " bytes where they are fixed; slope: of log MB on log " << name_of(*flags.sweep)
                  << std::endl;
    for (std::size_t i = 0; i < points.front().attention.size(); ++i) {
        const Measurement& m = points.front().attention[i];
        JsonValue row = JsonValue::object({{"name", m.name}, {"pass", m.pass}});
        for (const auto& [key, title, member] : {std::tuple{"slow_bytes", "slow", &Measurement::slow_bytes},
                                                 {"peak_bytes", "peak", &Measurement::peak_bytes}}) {
            const std::vector<double> numbers = along(points, i, member);
            const double slope = log_log_slope(values, numbers);
            if (member == &Measurement::slow_bytes) picture.curves.push_back(curve_of(m, numbers, slope));
            row.set(key, numbers);
            row.set(concat(key, "_slope"), slope);
            std::vector<Cell> cells{m.name, m.pass, title};
            for (const double bytes : numbers) cells.emplace_back(megabytes(bytes));
            cells.emplace_back(slope);
            if (!flags.json) table.add(cells);
        }
        algorithms.push_back(std::move(row));
    }
    if (!flags.svg.empty()) write_text_file("picture", flags.svg, lab_svg(picture));
    if (!flags.json) return 0;
    JsonValue all = setup_as_json(flags.setup);
    all.set("sweep", std::string(name_of(*flags.sweep)));
    all.set("values", values);
    all.set("algorithms", algorithms);
    std::cout << all.dump() << '\n';
    return 0;
}

/// The defaults for a page. They are small (a few blocks of rows and keys), because a page shows every step.
constexpr Setup page_defaults{.length = 64, .head_dim = 16, .fast_memory = 4096};
constexpr std::int64_t max_page_length = 256, max_page_steps = 100'000;

int write_page(const LabFlags& flags) {
    const std::vector<Trace> traces = trace_attention(flags.setup, max_page_steps);
    write_text_file("page", flags.html, lab_page(flags.setup, traces));
    std::size_t steps = 0;
    for (const Trace& trace : traces) steps += trace.steps.size();
    std::cout << "wrote " << printable(flags.html) << ": " << traces.size() << " passes, " << steps
              << " steps\n";
    return 0;
}

int lab(LabFlags& flags) {
    Setup& setup = flags.setup;
    if (!flags.html.empty()) setup = page_defaults;
    setup.length = flags.length.value_or(setup.length);
    setup.head_dim = flags.head_dim.value_or(setup.head_dim);
    setup.fast_memory = flags.fast_memory.value_or(setup.fast_memory);
    check_flag("--length", setup.length, {1, 16384});
    check_flag("--head-dim", setup.head_dim, {1, 256});
    check_flag("--fast-memory", setup.fast_memory, {1, 1 << 30});
    const std::int64_t smallest = smallest_fast_memory(setup.head_dim);
    check_usage(setup.fast_memory >= smallest, "--fast-memory: ", setup.fast_memory, "; expected at least ",
                smallest, " bytes for --head-dim ", setup.head_dim);
    check_flag("--heads", flags.heads, {1, 1 << 20});
    check_usage(flags.heads == 1 || !flags.ncu.empty(), "--heads: ", flags.heads, "; it needs --ncu");
    check_usage(flags.ncu.empty() || (!flags.sweep && flags.html.empty()),
                "--ncu: it cannot be combined with --sweep or --html");
    if (!flags.ncu.empty()) {
        print_ncu_comparison(flags.ncu, setup, flags.heads, flags.json);
        return 0;
    }
    check_usage(flags.svg.empty() || flags.sweep, "--svg: a picture needs --sweep ", choices_of<Sweep>());
    if (flags.html.empty()) return flags.sweep ? sweep(flags) : compare(flags);
    check_usage(!flags.sweep && !flags.json, "--html: it cannot be combined with --sweep or --json");
    check_usage(setup.length <= max_page_length, "--length: ", setup.length, "; expected 1 to ",
                max_page_length, " with --html, because the page holds every step");
    return write_page(flags);
}

}  // namespace

void add_lab(CommandLine& program) {
    const auto flags = std::make_shared<LabFlags>();
    Command command = program.add_command(
        "lab", "Run attention from naive to FlashAttention-2 side by side and count its memory traffic");
    const auto add_size = [&](const char* name, const char* help, std::int64_t Setup::*member,
                              std::optional<std::int64_t> LabFlags::*given) {
        command.add_value<std::int64_t>(
            name, concat(help, "; with --html ", page_defaults.*member), flags->setup.*member,
            [flags, given](const std::int64_t& value) { (*flags).*given = value; });
    };
    add_size("--length", "queries and keys of the head, N", &Setup::length, &LabFlags::length);
    add_size("--head-dim", "width of the head, d", &Setup::head_dim, &LabFlags::head_dim);
    add_size("--fast-memory", "size of the fast memory in bytes, M", &Setup::fast_memory,
             &LabFlags::fast_memory);
    command.add_value("--sweep", flags->sweep,
                      "repeat with this number at its value and at up to four halvings of it, and fit "
                      "power laws to traffic and peak memory");
    const auto add_file = [&](const char* name, const char* help, std::string LabFlags::*member) {
        command.add_value<std::string>(name, help, [flags, name, member](const std::string& path) {
            check_usage(!path.empty(), name, ": ''; expected the name of a file");
            (*flags).*member = path;
        });
    };
    add_file("--svg", "write the sweep's traffic as a picture to this file", &LabFlags::svg);
    add_file("--html",
             "write a page that shows every step of every algorithm to this file; it needs no network",
             &LabFlags::html);
    add_file("--ncu",
             "compare the counted bytes with those that Nsight Compute measured for a GPU's kernels: the "
             "output of ncu "
             "--csv --page "
             "raw (docs/using.md)",
             &LabFlags::ncu);
    command.add_value("--heads", flags->heads, "batch x heads of the call that ncu measured; with --ncu");
    command.add_switch("--json", flags->json, "print one JSON object");
    command.set_action([flags] { return lab(*flags); });
}

}  // namespace gradtile::cli
