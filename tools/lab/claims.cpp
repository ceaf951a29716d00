// The claims from the literature, judged by the lab's counts and by measurements on this machine.
#include <cmath>

#include <gradtile/core/dtype.h>
#include <gradtile/core/text/formatted.h>
#include <gradtile/tools/lab/machine.h>

namespace gradtile::attention::lab {
namespace {

const Measurement& find(const std::vector<Measurement>& all, const std::string& name,
                        const std::string& pass) {
    for (const Measurement& m : all)
        if (m.name == name && m.pass == pass) return m;
    throw Error(concat("lab: no measurement of ", name, ' ', pass));
}

/// The measurements at the lengths N/8, N/4, N/2 and N, leaving out lengths below 1.
struct Lengths {
    std::vector<double> lengths;
    std::vector<std::vector<Measurement>> attention;

    Lengths(const Setup& setup, const std::vector<Measurement>& at_full_length) {
        for (const std::int64_t divisor : {8, 4, 2}) {
            Setup shorter = setup;
            shorter.length = setup.length / divisor;
            if (shorter.length < 1) continue;
            lengths.push_back(static_cast<double>(shorter.length));
            attention.push_back(measure_attention(shorter));
        }
        lengths.push_back(static_cast<double>(setup.length));
        attention.push_back(at_full_length);
    }
    /// The backward pass's peak memory in MB, at each length.
    std::vector<double> peaks(const char* name) const {
        std::vector<double> peaks;
        for (const std::vector<Measurement>& all : attention)
            peaks.push_back(megabytes(static_cast<double>(find(all, name, "backward").peak_bytes)));
        return peaks;
    }
    std::string range() const { return formatted("N = %.0f to %.0f", lengths.front(), lengths.back()); }
};

std::string comma_unless_first(const std::string& text) {
    return text.empty() ? "" : ", ";
}

/// Judges by the power-law exponents that fit the peaks. The tolerance 0.05 allows for incomplete blocks at
/// the end.
Verdict judge_linear_memory(const Lengths& lengths) {
    Verdict verdict{.claim = "memory is linear in N, except that of naive attention", .holds = true};
    for (const char* name : {"naive", "memory_efficient", "flash1", "flash2"}) {
        const std::vector<double> peaks = lengths.peaks(name);
        const double slope = log_log_slope(lengths.lengths, peaks);
        verdict.figures +=
            formatted("%s%s %.3f -> %.3f MB (N^%.2f)", comma_unless_first(verdict.figures).c_str(), name,
                      peaks.front(), peaks.back(), slope);
        const bool is_linear = slope < 1.05;
        verdict.holds = verdict.holds && is_linear == (std::string(name) != "naive");
    }
    verdict.figures += ", " + lengths.range();
    return verdict;
}

Verdict judge_memory_ratio(const Lengths& lengths) {
    const std::vector<double> naive = lengths.peaks("naive"), flash = lengths.peaks("flash2");
    Verdict verdict{.claim = "flash needs 5 to 20 times less memory",
                    .holds = naive.back() / flash.back() >= 5};
    for (std::size_t i = 0; i < naive.size(); ++i)
        verdict.figures += formatted("%s%.1f times at N = %.0f", comma_unless_first(verdict.figures).c_str(),
                                     naive[i] / flash[i], lengths.lengths[i]);
    verdict.figures += "; the ratio grows with N";
    return verdict;
}

/// The claim is about GPUs. This function judges the claim on one CPU thread, whose ridge is lower.
Verdict judge_speed(const std::vector<Measurement>& attention, const Machine& machine) {
    const auto roofline_ms = [&](const char* name) {
        double ms = 0;
        for (const char* pass : {"forward", "backward"}) {
            const Measurement& m = find(attention, name, pass);
            ms += 1e3 * std::max(m.flops / machine.roofline.flops_per_s,
                                 static_cast<double>(m.slow_bytes) / machine.roofline.bytes_per_s);
        }
        return ms;
    };
    const double standard = machine.speed.standard_ms, flash2 = machine.speed.flash2_ms;
    const double bound = roofline_ms("naive"), flash2_bound = roofline_ms("flash2");
    return {.claim = "flash is 2 to 4 times faster (the papers: on a GPU)",
            .holds = standard / flash2 >= 2,
            .figures = formatted(
                "measured on one CPU thread, forward and backward: standard attention with the matrix "
                "library %.2f ms, flash2's kernels %.2f ms: %.1f times; the roofline allows %.2f "
                "and %.2f ms: %.1f times",
                standard, flash2, standard / flash2, bound, flash2_bound, bound / flash2_bound)};
}

/// Judges by the counted traffic and the measured bandwidth.
Verdict judge_bound(const std::vector<Measurement>& attention, const Roofline& roofline) {
    Verdict verdict{.claim = "naive attention is memory-bound, flash is compute-bound", .holds = true};
    for (const char* name : {"naive", "flash2"})
        for (const char* pass : {"forward", "backward"}) {
            const double intensity = find(attention, name, pass).intensity();
            const bool is_compute_bound = intensity >= roofline.ridge();
            verdict.figures +=
                formatted("%s%s %s %.1f FLOP/byte (%s-bound)", comma_unless_first(verdict.figures).c_str(),
                          name, pass, intensity, is_compute_bound ? "compute" : "memory");
            verdict.holds = verdict.holds && is_compute_bound == (std::string(name) == "flash2");
        }
    verdict.figures += formatted("; the ridge of one CPU thread: %.1f GFLOP/s / %.1f GB/s = %.1f FLOP/byte",
                                 1e-9 * roofline.flops_per_s, 1e-9 * roofline.bytes_per_s, roofline.ridge());
    return verdict;
}

/// Judges by the forward traffic of flash2 at five fast-memory sizes. Each size is four times the previous
/// size.
Verdict judge_traffic(const Setup& setup) {
    Verdict verdict{.claim = "slow-memory traffic falls as 1/M until every tensor is moved once"};
    // Bytes of Q, K, V and O.
    const double compulsory = 4 * 4.0 * static_cast<double>(setup.length * setup.head_dim);
    std::vector<double> sizes, traffic;
    std::int64_t m = smallest_fast_memory(setup.head_dim);
    for (int i = 0; i < 5; ++i, m *= 4) {
        Setup varied_setup = setup;
        varied_setup.fast_memory = m;
        const Measurement forward = find(measure_attention(varied_setup), "flash2", "forward");
        sizes.push_back(static_cast<double>(m));
        traffic.push_back(static_cast<double>(forward.slow_bytes));
        verdict.figures += formatted("%s%.3f MB at M = %.0f KiB", i == 0 ? "flash2 forward: " : ", ",
                                     megabytes(traffic.back()), static_cast<double>(m) / 1024);
    }
    const double first = log_log_slope({sizes[0], sizes[1]}, {traffic[0], traffic[1]});
    const double last = log_log_slope({sizes[3], sizes[4]}, {traffic[3], traffic[4]});
    verdict.figures += formatted("; slope %.2f at first, %.2f at last; Q, K, V and O once are %.3f MB", first,
                                 last, 1e-6 * compulsory);
    verdict.holds = first < -0.8 && traffic.back() >= compulsory;
    return verdict;
}

/// Searches upwards from 0 in steps of 2^-7, the binary16 spacing between 8 and 16.
Verdict judge_overflow() {
    Verdict verdict{.claim = "naive softmax overflows in binary16 where e^x > 65504"};
    const auto overflows = [](float x, float terms) {
        return std::isinf(convert<float>(convert<float16>(terms * std::exp(x))));
    };
    const auto first_overflow = [&](float terms) {
        float x = 0;
        while (!overflows(x, terms)) x += 0x1p-7f;
        return static_cast<double>(x);
    };
    const double alone = first_overflow(1), pair = first_overflow(2);
    verdict.holds = alone > 11 && alone < 11.1 && pair < 11;
    verdict.figures =
        formatted("e^11 = %.0f still fits; e^x is infinite from x = %.4f on, the sum of two from %.4f on",
                  std::exp(11.0), alone, pair);
    return verdict;
}

Verdict judge_fusion(const Setup& setup, const std::vector<SoftmaxMeasurement>& softmax) {
    Verdict verdict{.claim = "the six transfers of an unfused softmax become two"};
    const double n = static_cast<double>(setup.length);
    double unfused = 0, fused = 0;
    for (const SoftmaxMeasurement& m : softmax) {
        const double transfers = static_cast<double>(m.loads + m.stores) / n;
        if (m.name == "unfused") unfused = transfers;
        if (m.name == "fused") fused = transfers;
    }
    verdict.holds = unfused == 6 && fused == 2;
    verdict.figures = fused == 0 ? "the row does not fit the fast memory, so it cannot be fused"
                                 : formatted("%.0f and %.0f accesses an element", unfused, fused);
    return verdict;
}

}  // namespace

std::vector<Verdict> judge_claims(const Setup& setup, const std::vector<Measurement>& attention,
                                  const std::vector<SoftmaxMeasurement>& softmax, const Machine& machine) {
    std::vector<Verdict> verdicts;
    if (setup.length >= 2) {
        const Lengths lengths(setup, attention);
        verdicts.push_back(judge_linear_memory(lengths));
        verdicts.push_back(judge_memory_ratio(lengths));
    }
    verdicts.push_back(judge_traffic(setup));
    verdicts.push_back(judge_speed(attention, machine));
    verdicts.push_back(judge_bound(attention, machine.roofline));
    verdicts.push_back(judge_overflow());
    verdicts.push_back(judge_fusion(setup, softmax));
    return verdicts;
}

double log_log_slope(const std::vector<double>& x, const std::vector<double>& y) {
    const double n = static_cast<double>(x.size());
    double mean_x = 0, mean_y = 0, products = 0, squares = 0;
    for (std::size_t i = 0; i < x.size(); ++i) mean_x += std::log(x[i]) / n, mean_y += std::log(y[i]) / n;
    for (std::size_t i = 0; i < x.size(); ++i) {
        products += (std::log(x[i]) - mean_x) * (std::log(y[i]) - mean_y);
        squares += (std::log(x[i]) - mean_x) * (std::log(x[i]) - mean_x);
    }
    check(squares > 0, "lab: a slope needs two different x");
    return products / squares;
}

}  // namespace gradtile::attention::lab
