#pragma once
/// Fits the cost model's constants to measurements, by least squares over relative deviations.
#include <span>
#include <string>
#include <vector>

#include <gradtile/tools/plan/cost_model.h>

namespace gradtile {

/// The work that a measurement timed.
enum class Timed {
    step,       ///< a whole training step
    products,   ///< only the matrix products in one process's step
    attention,  ///< only the attention in one process's step
    update,     ///< gradient norm and optimizer in one process's step
    all_reduce,
    reduce_scatter,  ///< `bytes` counts all processes' parts together
    all_gather,      ///< `bytes` counts all processes' parts together
    broadcast
};

struct Measurement {
    Timed what = Timed::step;
    TrainConfig config;  ///< the step's settings, valid for `gpus`; unused for a collective
    std::int64_t gpus = 1;
    double bytes = 0;  ///< a collective's size in bytes
    double ms = 0;
    double weight = 1;  ///< weight in the fit; 0: the measurement is only compared
    std::string note;
};

/// Collectives with fewer bytes have weight 0 by default, because training uses larger collectives, and NCCL
/// uses other protocols for small messages.
inline constexpr double min_fitted_bytes = 4 << 20;

/// Reads one JSON object per line: {"what": "step", "gpus": 4, "ms": 30.1, "preset": "gpt2-124m", "batch":
/// 64, ...} with settings named as in a config file, or {"what": "all_reduce", "gpus": 4, "bytes": 1048576,
/// "ms": 0.03}, which `gradtile bench comm --json` prints; optionally with "weight" and "note". Throws Error
/// "PATH:LINE: ..." when a line is invalid.
std::vector<Measurement> read_measurements(const std::string& path);
/// Returns what was timed, besides the kind and the GPU count: "124M, 12 x 768, 64 x 1024 bf16, zero 1".
std::string description_of(const Measurement& measurement);

/// Returns the time that the model predicts. All GPUs are in one node.
double predicted_ms(const Measurement& measurement, const CostConstants& constants);

struct CostFit {
    CostConstants constants;
    /// Constants that no measurement depends on; they keep their start values.
    std::vector<std::string> undetermined;
    int iterations = 0;
};
/// Minimises the sum over measurements of (weight * (predicted / measured - 1))^2 over the constants'
/// logarithms, from `start` (Levenberg 1944, Marquardt 1963).
CostFit fit_constants(std::span<const Measurement> measurements, const CostConstants& start);

template <>
struct EnumNames<Timed> {
    static constexpr std::array names = {std::pair{Timed::step, std::string_view("step")},
                                         std::pair{Timed::products, std::string_view("products")},
                                         std::pair{Timed::attention, std::string_view("attention")},
                                         std::pair{Timed::update, std::string_view("update")},
                                         std::pair{Timed::all_reduce, std::string_view("all_reduce")},
                                         std::pair{Timed::reduce_scatter, std::string_view("reduce_scatter")},
                                         std::pair{Timed::all_gather, std::string_view("all_gather")},
                                         std::pair{Timed::broadcast, std::string_view("broadcast")}};
};

}  // namespace gradtile
