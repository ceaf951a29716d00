#pragma once
/// The cost model's constants from measurements, by least squares over relative deviations.
#include <span>
#include <string>
#include <vector>

#include <gradtile/train/cost_model/cost_model.h>

namespace gradtile {

/// What a measurement timed.
enum class Timed {
    step,       ///< a whole training step
    products,   ///< the matrix products of one process's step, by themselves
    attention,  ///< the same of attention
    update,     ///< gradient norm and optimizer of one process's step
    all_reduce,
    reduce_scatter,  ///< bytes: what all processes' parts have together
    all_gather,      ///< the same
    broadcast
};

struct Measurement {
    Timed what = Timed::step;
    TrainConfig config;  ///< of a step or its parts, valid for `gpus`
    std::int64_t gpus = 1;
    double bytes = 0;  ///< of a collective
    double ms = 0;
    double weight = 1;  ///< of its deviation; 0: only compared
    std::string note;
};

/// One JSON object a line: {"what": "step", "gpus": 4, "ms": 30.1, "preset": "gpt2-124m", "batch": 64, ...},
/// settings named as in a config file; {"what": "all_reduce", "gpus": 4, "bytes": 1048576, "ms": 0.03}, which
/// `gradtile bench comm --json` prints; optionally "weight" and "note". Collectives of less than
/// smallest_fitted_bytes have weight 0 unless they say otherwise: training's are larger, and NCCL has other
/// protocols for small ones. Throws Error "PATH:LINE: ..." on what is not understood.
inline constexpr double smallest_fitted_bytes = 4 << 20;
std::vector<Measurement> read_measurements(const std::string& path);
/// What was timed, besides kind and number of GPUs: "124M, 12 x 768, 64 x 1024 bf16, zero 1".
std::string description_of(const Measurement& measurement);

/// What the model says of it. All GPUs are in one node.
double predicted_ms(const Measurement& measurement, const CostConstants& constants);

struct CostFit {
    CostConstants constants;
    std::vector<std::string> undetermined;  ///< what no measurement depends on: as at the start
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
