#pragma once
/// Predicts a run's loss from smaller runs, by the law in Hoffmann et al. 2022 ("Training compute-optimal
/// large language models", arXiv 2203.15556, section 3.3).
#include <span>
#include <string>

namespace gradtile {

/// A finished run.
struct TrainedRun {
    std::string name;
    double weights = 0.0;  ///< N: elements of the blocks' matrices; embeddings and head do not count
    double tokens = 0.0;   ///< D: trained on
    double loss = 0.0;     ///< L: validation loss after the last step, nats per token
};

/// L(N, D) = irreducible + weight_term / N^weight_exponent + token_term / D^token_exponent
struct LossLaw {
    double irreducible = 0.0, weight_term = 0.0, token_term = 0.0, weight_exponent = 0.0,
           token_exponent = 0.0;
    double operator()(double weights, double tokens) const;
};

/// Returns the law with the least Huber loss (delta 0.001) on log L, the best of several starts. Throws Error
/// for fewer than 6 runs, fewer than 3 sizes or 3 token counts, and for a run whose numbers are not finite
/// and positive.
LossLaw fit_loss_law(std::span<const TrainedRun> runs);

struct LossPrediction {
    LossLaw law;
    double loss = 0.0;  ///< nats per token
    /// The interval that holds one run's loss with a probability of about 95%, if the law has the true form:
    /// Student's t times two standard errors added in squares, the jackknife's (from the laws without each
    /// run) and the runs' deviation from the law.
    double error = 0.0;
    /// The runs' relative standard deviation from the law: the root of (sum of squares / (runs - 5)).
    double deviation = 0.0;
};
/// Throws Error as fit_loss_law() does.
LossPrediction predict_loss(std::span<const TrainedRun> runs, double weights, double tokens);

}  // namespace gradtile
