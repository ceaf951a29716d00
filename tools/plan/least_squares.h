#pragma once
/// Nonlinear least squares.
#include <functional>
#include <vector>

namespace gradtile {

/// Deviations at a point; their number does not depend on the point.
using Deviations = std::function<std::vector<double>(const std::vector<double>& point)>;

/// Returns each deviation's derivative with respect to each coordinate: columns[coordinate][deviation].
std::vector<std::vector<double>> derivatives(const Deviations& deviations, const std::vector<double>& point);

struct LeastSquares {
    std::vector<double> point;
    double sum = 0.0;  ///< of the squared deviations
    int iterations = 0;
};
/// Returns a local minimum of the sum of squared deviations, by damped Gauss-Newton steps
/// (Levenberg-Marquardt) from `start`. A coordinate, usually a logarithm, moves by at most 1 in a step; one
/// that no deviation depends on stays.
LeastSquares least_squares(const Deviations& deviations, std::vector<double> start);

double dot(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace gradtile
