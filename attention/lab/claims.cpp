// The claims of the literature, judged by the lab's counts.
#include <array>
#include <cmath>

#include <gradtile/attention/lab/lab.h>
#include <gradtile/core/dtype.h>
#include <gradtile/core/text/formatted.h>

namespace gradtile::attention::lab {
namespace {

const Measurement& find(const std::vector<Measurement>& all, const std::string& name,
                        const std::string& pass) {
    for (const Measurement& m : all)
        if (m.name == name && m.pass == pass) return m;
    throw Error(concat("lab: no measurement of ", name, ' ', pass));
}

double megabytes(std::int64_t bytes) {
    return 1e-6 * static_cast<double>(bytes);
}

/// Peak memory at half the length and at the length.
Verdict judge_linear_memory(const Setup& setup, const std::vector<Measurement>& attention) {
    Setup half = setup;
    half.length = setup.length / 2;
    const std::vector<Measurement> shorter = measure_attention(half);
    Verdict verdict{.claim = "memory is linear in N, except that of naive attention", .holds = true};
    for (const char* name : {"naive", "memory_efficient", "flash1", "flash2"}) {
        const double before = megabytes(find(shorter, name, "backward").peak_bytes);
        const double after = megabytes(find(attention, name, "backward").peak_bytes);
        verdict.figures += formatted("%s%s %.3f -> %.3f MB (x %.2f)", verdict.figures.empty() ? "" : ", ",
                                     name, before, after, after / before);
        if (std::string(name) != "naive") verdict.holds = verdict.holds && after < 2.01 * before;
    }
    verdict.figures += formatted(" from N = %lld to %lld", static_cast<long long>(half.length),
                                 static_cast<long long>(setup.length));
    return verdict;
}

/// Traffic of flash2's forward pass at several sizes of the fast memory, each four times the one before.
Verdict judge_traffic(const Setup& setup) {
    Verdict verdict{.claim = "slow-memory traffic falls as 1/M until every tensor is moved once"};
    const double compulsory = 4 * 4.0 * static_cast<double>(setup.length * setup.head_dim);  // Q, K, V, O
    std::vector<double> sizes, traffic;
    std::int64_t m = smallest_fast_memory(setup.head_dim);
    for (int i = 0; i < 5; ++i, m *= 4) {
        Setup at = setup;
        at.fast_memory = m;
        const Measurement forward = find(measure_attention(at), "flash2", "forward");
        sizes.push_back(static_cast<double>(m));
        traffic.push_back(static_cast<double>(forward.slow_bytes));
        verdict.figures += formatted("%s%.3f MB at M = %.0f KiB", i == 0 ? "flash2 forward: " : ", ",
                                     megabytes(forward.slow_bytes), static_cast<double>(m) / 1024);
    }
    const double first = log_log_slope({sizes[0], sizes[1]}, {traffic[0], traffic[1]});
    const double last = log_log_slope({sizes[3], sizes[4]}, {traffic[3], traffic[4]});
    verdict.figures += formatted("; slope %.2f at first, %.2f at last; Q, K, V and O once are %.3f MB", first,
                                 last, 1e-6 * compulsory);
    verdict.holds = first < -0.8 && traffic.back() >= compulsory;
    return verdict;
}

Verdict judge_ratio(const char* claim, const char* unit, double naive, double flash, double low,
                    double high) {
    const double ratio = naive / flash;
    return {.claim = claim,
            .holds = ratio >= low,
            .figures = formatted("naive %.3f %s, flash2 %.3f %s: %.1f times (the papers: %.0f to %.0f)",
                                 naive, unit, flash, unit, ratio, low, high)};
}

/// Goes up from 0 in steps of 2^-7, the spacing of binary16 between 8 and 16.
Verdict judge_overflow() {
    Verdict verdict{.claim = "naive softmax overflows in binary16 where e^x > 65504"};
    const auto overflows = [](float x, float terms) {
        return std::isinf(convert<float>(convert<float16>(terms * std::exp(x))));
    };
    const auto first_overflow = [&](float terms) {
        float x = 0;
        for (; !overflows(x, terms); x += 0x1p-7f) {
        }  // the distance of binary16 numbers from 8 to 16
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
                                  const std::vector<SoftmaxMeasurement>& softmax) {
    const auto both = [&](const char* name, auto Measurement::*member) {
        return static_cast<double>(find(attention, name, "forward").*member) +
               static_cast<double>(find(attention, name, "backward").*member);
    };
    const auto peak = [&](const char* name) {
        return megabytes(find(attention, name, "backward").peak_bytes);
    };
    std::vector<Verdict> verdicts;
    if (setup.length >= 2) verdicts.push_back(judge_linear_memory(setup, attention));
    verdicts.push_back(judge_traffic(setup));
    verdicts.push_back(
        judge_ratio("flash needs 5 to 20 times less memory", "MB", peak("naive"), peak("flash2"), 5, 20));
    verdicts.push_back(judge_ratio("flash is 2 to 4 times faster (the papers: on a GPU)", "ms",
                                   both("naive", &Measurement::ms), both("flash2", &Measurement::ms), 2, 4));
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
