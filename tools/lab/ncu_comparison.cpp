#include <gradtile/tools/lab/ncu_comparison.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <iostream>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include <gradtile/core/check.h>
#include <gradtile/core/io/file_system.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/core/text/parse_double.h>
#include <gradtile/tools/command_line/table.h>

namespace gradtile::cli {
namespace {

using attention::lab::Measurement;
using attention::lab::megabytes;
using attention::lab::Setup;

/// One kernel's traffic per launch, averaged over its launches.
struct KernelTraffic {
    std::string kernel;  ///< the kernel's name, without template arguments and parameters
    std::int64_t launches = 0;
    double dram_read = 0, dram_write = 0;
    double l2 = 0;  ///< L2 cache bytes; NaN if the file does not have this metric
};

using Fields = std::vector<std::string>;
constexpr std::array<std::string_view, 3> metric_names = {"dram__bytes_read.sum", "dram__bytes_write.sum",
                                                          "lts__t_bytes.sum"};
constexpr std::size_t required_metrics = 2;

/// Replaces control characters, because the names come from a file and are printed to a terminal.
std::string printable(std::string_view text) {
    constexpr std::size_t longest = 60;
    std::string result(text.substr(0, longest));
    for (char& c : result)
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    return result;
}

/// Splits one line into fields; nullopt if a quote is not closed, or is followed by other text.
std::optional<Fields> split(std::string_view line) {
    Fields fields(1);
    for (std::size_t i = 0; i < line.size(); ++i) {
        if (line[i] == ',') {
            fields.emplace_back();
        } else if (line[i] != '"' || !fields.back().empty()) {
            fields.back() += line[i];
        } else {
            for (++i; i < line.size(); ++i) {
                if (line[i] != '"') {
                    fields.back() += line[i];
                } else if (i + 1 < line.size() && line[i + 1] == '"') {
                    fields.back() += line[i++];
                } else {
                    break;
                }
            }
            if (i >= line.size() || (i + 1 < line.size() && line[i + 1] != ',')) return std::nullopt;
        }
    }
    return fields;
}

/// Reads a number. Its digits may be grouped by commas: "1,048,576", "2.5".
double parse_number(const std::string& text) {
    const std::string integer = text.substr(0, text.find('.'));
    std::string digits;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != ',') {
            digits += text[i];
            continue;
        }
        const std::size_t group = std::min(integer.find(',', i + 1), integer.size()) - i - 1;
        check(i > 0 && i < integer.size() && group == 3, '\'', printable(text), "' is not a number");
    }
    double value = 0;
    const auto [end, error] = parse_double(digits.data(), digits.data() + digits.size(), value);
    check(error == std::errc() && end == digits.data() + digits.size() && value >= 0 && value < 1e18, '\'',
          printable(text), "' is not a number of bytes");
    return value;
}

double bytes_per_unit(const std::string& unit) {
    constexpr std::array units = {std::pair{"byte", 1.0}, std::pair{"Kbyte", 1e3}, std::pair{"Mbyte", 1e6},
                                  std::pair{"Gbyte", 1e9}, std::pair{"Tbyte", 1e12}};
    for (const auto& [name, bytes] : units)
        if (unit == name) return bytes;
    throw Error(concat("unit '", printable(unit), "'; expected byte, Kbyte, Mbyte, Gbyte or Tbyte"));
}

/// Returns "forward_kernel" for "void gradtile::attention::cuda::forward_kernel<Policy>(Parameters)".
std::string base_name(std::string_view kernel) {
    const std::size_t end = kernel.find("_kernel");
    if (end == std::string_view::npos) return printable(kernel);
    const auto is_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
    std::size_t begin = end;
    while (begin > 0 && is_name(kernel[begin - 1])) --begin;
    return printable(kernel.substr(begin, end + std::string_view("_kernel").size() - begin));
}

/// Reads the table in a CSV file, with one row per launch (--page raw) or one row per metric (--page
/// details).
class CsvTable {
  public:
    explicit CsvTable(const Fields& header) : header_(header) {
        id_ = *column("ID");
        kernel_ = *column("Kernel Name");
        name_ = column("Metric Name");
        unit_ = column("Metric Unit");
        value_ = column("Metric Value");
        for (std::size_t m = 0; m < metric_names.size(); ++m) metrics_[m] = column(metric_names[m]);
        if (is_long()) {
            check(unit_ && value_, "no columns 'Metric Unit' and 'Metric Value'");
            return;
        }
        for (std::size_t m = 0; m < required_metrics; ++m)
            check(metrics_[m].has_value(), "no column '", metric_names[m], "'; give ncu --metrics with it");
    }
    static bool is_header(const Fields& fields) {
        return std::count(fields.begin(), fields.end(), "ID") == 1 &&
               std::count(fields.begin(), fields.end(), "Kernel Name") == 1;
    }

    void add(const Fields& row) {
        check(row.size() == header_.size(), row.size(), " fields; expected ", header_.size());
        if (is_long()) return add_metric(row);
        if (units_.empty()) {
            check(row[id_].empty(), "expected a row of units, whose ID is empty");
            units_ = row;
            return;
        }
        for (std::size_t m = 0; m < metric_names.size(); ++m)
            if (metrics_[m]) set(row, m, row[*metrics_[m]], units_[*metrics_[m]]);
    }

    std::vector<KernelTraffic> kernels() const {
        std::vector<KernelTraffic> kernels;
        std::map<std::string, std::size_t> index_of_kernel;
        for (const Launch& launch : launches_) {
            for (std::size_t m = 0; m < required_metrics; ++m)
                check(launch.bytes[m] >= 0, "kernel ", launch.kernel, " has no ", metric_names[m]);
            const auto [index, is_new] = index_of_kernel.emplace(launch.kernel, kernels.size());
            if (is_new) kernels.push_back({.kernel = launch.kernel});
            KernelTraffic& known = kernels[index->second];
            ++known.launches;
            known.dram_read += launch.bytes[0];
            known.dram_write += launch.bytes[1];
            known.l2 += launch.bytes[2] < 0 ? std::numeric_limits<double>::quiet_NaN() : launch.bytes[2];
        }
        for (KernelTraffic& kernel : kernels)
            for (double* bytes : {&kernel.dram_read, &kernel.dram_write, &kernel.l2})
                *bytes /= static_cast<double>(kernel.launches);
        check(!kernels.empty(), "no kernel");
        return kernels;
    }

  private:
    struct Launch {
        std::string kernel;
        /// Bytes per metric; -1: the file does not have the metric.
        std::array<double, 3> bytes = {-1, -1, -1};
    };
    bool is_long() const { return name_.has_value(); }
    std::optional<std::size_t> column(std::string_view name) const {
        const auto found = std::find(header_.begin(), header_.end(), name);
        if (found == header_.end()) return std::nullopt;
        check(std::find(found + 1, header_.end(), name) == header_.end(), "two columns '", name, '\'');
        return static_cast<std::size_t>(found - header_.begin());
    }
    void add_metric(const Fields& row) {
        const auto metric = std::find(metric_names.begin(), metric_names.end(), row[*name_]);
        if (metric != metric_names.end())
            set(row, static_cast<std::size_t>(metric - metric_names.begin()), row[*value_], row[*unit_]);
    }
    void set(const Fields& row, std::size_t metric, const std::string& value, const std::string& unit) {
        const auto [entry, is_new] = launch_of_id_.emplace(row[id_], launches_.size());
        if (is_new) launches_.push_back({.kernel = base_name(row[kernel_])});
        launches_[entry->second].bytes[metric] = parse_number(value) * bytes_per_unit(unit);
    }

    Fields header_, units_;
    std::size_t id_ = 0, kernel_ = 0;
    std::optional<std::size_t> name_, unit_, value_;
    std::array<std::optional<std::size_t>, 3> metrics_;
    std::vector<Launch> launches_;
    std::map<std::string, std::size_t> launch_of_id_;
};

/// Returns the kernels of a table, ordered by their first launch. Lines before the header are ignored,
/// because ncu and the profiled program print such lines. Throws Error with the line number if the text is
/// not such a table.
std::vector<KernelTraffic> kernels_in(std::string_view text) {
    std::optional<CsvTable> table;
    std::int64_t number = 0;
    while (!text.empty()) {
        ++number;
        const std::size_t end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (line.empty() || line.starts_with("==")) continue;
        try {
            const std::optional<Fields> fields = split(line);
            if (!table) {
                if (fields && CsvTable::is_header(*fields)) table.emplace(*fields);
                continue;
            }
            check(fields.has_value(), "a quote is not closed, or not followed by a comma");
            table->add(*fields);
        } catch (const Error& error) {
            throw Error(concat("line ", number, ": ", error.what()));
        }
    }
    check(table.has_value(),
          "no header with the columns 'ID' and 'Kernel Name'; expected the output of ncu --csv");
    return table->kernels();
}

std::vector<KernelTraffic> read_kernels(const std::filesystem::path& path) {
    constexpr std::uint64_t max_bytes = 256 << 20;
    const std::string text = read_text_file(path, max_bytes);
    return with_file_name("Nsight Compute's CSV", path, [&] { return kernels_in(text); });
}

/// The pass that a kernel belongs to. The algorithm is "every" for a kernel that every algorithm's backward
/// pass launches; algorithm and pass are "" for kernels that are not gradtile's attention.
struct KernelRole {
    std::string algorithm, pass;
};
KernelRole role_of_kernel(std::string_view kernel) {
    for (const std::string_view name :
         {"forward_kernel", "hopper_forward_kernel", "few_queries_kernel", "merge_splits_kernel"})
        if (kernel == name) return {"flash2", "forward"};
    for (const std::string_view name :
         {"backward_kernel", "hopper_backward_kernel", "hopper_backward_columns_kernel",
          "prepare_backward_kernel", "finish_d_q_kernel", "backward_keys_kernel", "backward_rows_kernel"})
        if (kernel == name) return {"flash2", "backward"};
    for (const std::string_view algorithm : {"memory_efficient", "flash1"})
        for (const std::string_view pass : {"forward", "backward"})
            if (kernel == concat(algorithm, '_', pass, "_kernel"))
                return {std::string(algorithm), std::string(pass)};
    if (kernel == "sum_parts_kernel") return {"flash1", "backward"};
    if (kernel == "row_statistics_kernel") return {"every", "backward"};
    return {};
}

/// Bytes measured in an algorithm's kernels for one pass, and the lab's count for the same number of heads.
struct PassTraffic {
    std::string algorithm, pass;
    double dram = 0, l2 = 0;
    double counted = 0;
    double once = 0;  ///< bytes in all inputs and outputs, each counted once
};

JsonValue as_json(const KernelTraffic& k) {
    return JsonValue::object({{"kernel", k.kernel},
                              {"algorithm", role_of_kernel(k.kernel).algorithm},
                              {"pass", role_of_kernel(k.kernel).pass},
                              {"launches", k.launches},
                              {"dram_read_bytes", k.dram_read},
                              {"dram_write_bytes", k.dram_write},
                              {"l2_bytes", k.l2}});
}
JsonValue as_json(const PassTraffic& p) {
    return JsonValue::object({{"algorithm", p.algorithm},
                              {"pass", p.pass},
                              {"dram_bytes", p.dram},
                              {"l2_bytes", p.l2},
                              {"counted_bytes", p.counted},
                              {"once_bytes", p.once}});
}

std::vector<PassTraffic> traffic_of_passes(const std::vector<KernelTraffic>& kernels, const Setup& setup,
                                           std::int64_t heads) {
    std::vector<PassTraffic> passes;
    const double matrix = 4.0 * static_cast<double>(setup.length * setup.head_dim * heads);
    // flash2 in 16 bits computes the row statistics with its own kernel; the other algorithms share a kernel.
    const bool flash2_has_own_statistics = std::ranges::any_of(
        kernels, [](const KernelTraffic& k) { return k.kernel == "prepare_backward_kernel"; });
    for (const Measurement& m : measure_attention(setup)) {
        // Forward: Q, K, V and O. Backward: Q, K, V, O, dO, dQ, dK and dV.
        PassTraffic pass{.algorithm = m.name,
                         .pass = m.pass,
                         .counted = static_cast<double>(m.slow_bytes * heads),
                         .once = matrix * (m.pass == "forward" ? 4 : 8)};
        bool measured = false;
        for (const KernelTraffic& k : kernels) {
            const KernelRole role = role_of_kernel(k.kernel);
            const bool is_own = role.algorithm == m.name,
                       is_shared =
                           role.algorithm == "every" && !(m.name == "flash2" && flash2_has_own_statistics);
            if (role.pass != m.pass || (!is_own && !is_shared)) continue;
            pass.dram += k.dram_read + k.dram_write;
            pass.l2 += k.l2;
            measured = measured || is_own;
        }
        if (measured) passes.push_back(pass);
    }
    return passes;
}

template <class T>
JsonValue list_as_json(const std::vector<T>& list) {
    std::vector<JsonValue> values;
    for (const T& item : list) values.push_back(as_json(item));
    return values;
}

}  // namespace

void print_ncu_comparison(const std::filesystem::path& csv, const Setup& setup, std::int64_t heads,
                          bool json) {
    const std::vector<KernelTraffic> kernels = read_kernels(csv);
    const std::vector<PassTraffic> passes = traffic_of_passes(kernels, setup, heads);
    if (json) {
        const JsonValue all = JsonValue::object({{"length", setup.length},
                                                 {"head_dim", setup.head_dim},
                                                 {"fast_memory", setup.fast_memory},
                                                 {"heads", heads},
                                                 {"kernels", list_as_json(kernels)},
                                                 {"passes", list_as_json(passes)}});
        std::cout << all.dump() << '\n';
        return;
    }
    std::cout << "measured by Nsight Compute, per launch" << std::endl;
    Table table({{"kernel", "kernel", Column::Kind::text, 32},
                 {"algorithm", "algorithm", Column::Kind::text, 16},
                 {"pass", "pass", Column::Kind::text, 8},
                 {"launches", "launches"},
                 {"read", "DRAM read MB", Column::Kind::number, 12},
                 {"write", "DRAM write MB", Column::Kind::number, 13},
                 {"l2", "L2 MB"}},
                /*json=*/false);
    for (const KernelTraffic& k : kernels)
        table.add({k.kernel, role_of_kernel(k.kernel).algorithm, role_of_kernel(k.kernel).pass, k.launches,
                   megabytes(k.dram_read), megabytes(k.dram_write), megabytes(k.l2)});
    if (passes.empty()) {
        std::cout << "none of these is a kernel of flash2, memory_efficient or flash1\n";
        return;
    }
    std::cout << '\n'
              << heads << " heads, N = " << setup.length << ", d = " << setup.head_dim
              << ": measured, and counted in float32 with M = " << setup.fast_memory << " bytes" << std::endl;
    Table comparison({{"algorithm", "algorithm", Column::Kind::text, 16},
                      {"pass", "pass", Column::Kind::text, 8},
                      {"dram", "DRAM MB"},
                      {"l2", "L2 MB"},
                      {"counted", "counted MB", Column::Kind::number, 10},
                      {"once", "once MB"}},
                     /*json=*/false);
    for (const PassTraffic& p : passes)
        comparison.add({p.algorithm, p.pass, megabytes(p.dram), megabytes(p.l2), megabytes(p.counted),
                        megabytes(p.once)});
    std::cout << "L2 MB are served by the L2 cache. The counted MB model them, with shared memory as the "
                 "fast memory.\n"
                 "once: every input and output moved once, the least for DRAM. 16-bit kernels move half of "
                 "the bytes.\n";
}

}  // namespace gradtile::cli
