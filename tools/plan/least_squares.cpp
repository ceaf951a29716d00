#include <gradtile/tools/plan/least_squares.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace gradtile {
namespace {

/// Solves a symmetric positive definite system by elimination with diagonal pivots.
std::vector<double> solve(std::vector<std::vector<double>> matrix, std::vector<double> right) {
    const std::size_t n = right.size();
    for (std::size_t pivot = 0; pivot < n; ++pivot)
        for (std::size_t row = pivot + 1; row < n; ++row) {
            const double factor = matrix[row][pivot] / matrix[pivot][pivot];
            for (std::size_t i = pivot; i < n; ++i) matrix[row][i] -= factor * matrix[pivot][i];
            right[row] -= factor * right[pivot];
        }
    for (std::size_t row = n; row-- > 0;) {
        for (std::size_t i = row + 1; i < n; ++i) right[row] -= matrix[row][i] * right[i];
        right[row] /= matrix[row][row];
    }
    return right;
}

}  // namespace

double dot(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

std::vector<std::vector<double>> derivatives(const Deviations& deviations, const std::vector<double>& point) {
    // Central differences have the truncation error step^2 / 6 times the third derivative, and a rounding
    // error near 1e-16 / step. Both errors are about 1e-11 for a smooth function of order one.
    constexpr double step = 1e-5;
    std::vector<std::vector<double>> columns;
    for (std::size_t i = 0; i < point.size(); ++i) {
        std::vector<double> below = point, above = point;
        below[i] -= step;
        above[i] += step;
        std::vector<double> column = deviations(above);
        const std::vector<double> subtracted = deviations(below);
        for (std::size_t row = 0; row < column.size(); ++row)
            column[row] = (column[row] - subtracted[row]) / (2 * step);
        columns.push_back(std::move(column));
    }
    return columns;
}

LeastSquares least_squares(const Deviations& deviations, std::vector<double> start) {
    LeastSquares result{.point = std::move(start)};
    std::vector<double> now = deviations(result.point);
    double damping = 1e-3;
    for (bool moves = true; moves && result.iterations < 200; ++result.iterations) {
        const auto columns = derivatives(deviations, result.point);
        std::vector<std::size_t> free;  // coordinates that a deviation depends on
        for (std::size_t i = 0; i < columns.size(); ++i)
            if (dot(columns[i], columns[i]) > 0) free.push_back(i);
        moves = false;
        // More damping makes the step shorter and closer to steepest descent. Increase it until a step
        // improves the fit.
        for (; !moves && damping < 1e12; damping *= 10) {
            std::vector<std::vector<double>> matrix(free.size(), std::vector<double>(free.size()));
            std::vector<double> right(free.size());
            for (std::size_t i = 0; i < free.size(); ++i) {
                for (std::size_t j = 0; j < free.size(); ++j)
                    matrix[i][j] = dot(columns[free[i]], columns[free[j]]) * (i == j ? 1 + damping : 1);
                right[i] = -dot(columns[free[i]], now);
            }
            const std::vector<double> step = solve(std::move(matrix), std::move(right));
            std::vector<double> tried = result.point;
            for (std::size_t i = 0; i < free.size(); ++i) tried[free[i]] += std::clamp(step[i], -1.0, 1.0);
            std::vector<double> then = deviations(tried);
            if (!(dot(then, then) < dot(now, now))) continue;
            result.point = std::move(tried);
            now = std::move(then);
            moves = true;
        }
        damping = std::max(damping * 1e-2, 1e-12);
    }
    result.sum = dot(now, now);
    return result;
}

}  // namespace gradtile
