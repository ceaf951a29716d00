#include <gradtile/tools/lab/ncu_comparison.h>

#include <algorithm>
#include <iostream>

#include <gradtile/core/text/json_value.h>
#include <gradtile/tools/command_line/table.h>

namespace gradtile::cli {
namespace {

using attention::lab::Measurement;
using attention::lab::megabytes;
using attention::lab::Setup;

/// Bytes measured in an algorithm's kernels for one pass, and the lab's count for the same number of heads.
struct PassTraffic {
    std::string algorithm, pass;
    double dram = 0, l2 = 0;
    double counted = 0;
    double once = 0;  ///< bytes in all inputs and outputs, each counted once
};

double number(std::int64_t value) {
    return static_cast<double>(value);
}

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
    const double matrix = 4 * number(setup.length * setup.head_dim * heads);
    // flash2 in 16 bits computes the row statistics with its own kernel; the other algorithms share a kernel.
    const bool flash2_has_own_statistics = std::ranges::any_of(
        kernels, [](const KernelTraffic& k) { return k.kernel == "prepare_backward_kernel"; });
    for (const Measurement& m : measure_attention(setup)) {
        // Forward: Q, K, V and O. Backward: Q, K, V, O, dO, dQ, dK and dV.
        PassTraffic pass{.algorithm = m.name,
                         .pass = m.pass,
                         .counted = number(m.slow_bytes * heads),
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

void print_ncu_comparison(const std::vector<KernelTraffic>& kernels, const Setup& setup, std::int64_t heads,
                          bool json) {
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
        table.add({k.kernel, role_of_kernel(k.kernel).algorithm, role_of_kernel(k.kernel).pass,
                   number(k.launches), megabytes(k.dram_read), megabytes(k.dram_write), megabytes(k.l2)});
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
