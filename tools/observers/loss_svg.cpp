#include <gradtile/tools/observers/loss_svg.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <gradtile/core/io/durable_file.h>
#include <gradtile/core/text/formatted.h>

namespace gradtile {
namespace {

using Point = LossHistory::Point;
using Points = std::vector<Point>;

constexpr double width = 800, height = 450;
constexpr double left = 70, right = 20, top = 44, bottom = 56;  // margins around the plot
constexpr std::size_t max_points = 800;                         // one point per pixel
constexpr const char* train_color = "#2f6fb5";
constexpr const char* val_color = "#c8471f";

/// Averages neighbours, so that at most `max_points` remain.
Points thinned(const Points& points) {
    const std::size_t group = (points.size() + max_points - 1) / max_points;
    if (group <= 1) return points;
    Points few;
    for (std::size_t begin = 0; begin < points.size(); begin += group) {
        const std::size_t end = std::min(begin + group, points.size());
        double sum = 0.0;
        for (std::size_t i = begin; i < end; ++i) sum += points[i].loss;
        few.push_back({points[(begin + end - 1) / 2].step, sum / static_cast<double>(end - begin)});
    }
    return few;
}

/// Returns the mean over a centred window whose length is 1/50 of the run. The window is shorter at the ends,
/// where the curve is steep.
Points smoothed(const Points& points) {
    const auto n = std::ssize(points);
    std::vector<double> sums{0.0};
    for (const Point& point : points) sums.push_back(sums.back() + point.loss);
    Points result;
    for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t reach = std::min<std::int64_t>({n / 100, i, n - 1 - i});
        const auto begin = static_cast<std::size_t>(i - reach), end = static_cast<std::size_t>(i + reach + 1);
        result.push_back({points[static_cast<std::size_t>(i)].step,
                          (sums[end] - sums[begin]) / static_cast<double>(end - begin)});
    }
    return result;
}

/// Returns the round number (1, 2 or 5 times a power of ten) that gives about `count` ticks in a range.
double tick_distance(double range, int count) {
    const double raw = range / count;
    const double power = std::pow(10.0, std::floor(std::log10(raw)));
    for (const double factor : {1.0, 2.0, 5.0})
        if (raw <= factor * power) return factor * power;
    return 10.0 * power;
}

/// Maps data to positions on the page.
struct Axes {
    double last_step = 1.0, low = 0.0, high = 1.0;

    explicit Axes(const LossHistory& history) {
        double min_loss = std::numeric_limits<double>::max(),
               max_loss = std::numeric_limits<double>::lowest();
        for (const Points* points : {&history.train, &history.validation})
            for (const Point& point : *points) {
                last_step = std::max(last_step, static_cast<double>(point.step));
                min_loss = std::min(min_loss, point.loss);
                max_loss = std::max(max_loss, point.loss);
            }
        if (min_loss > max_loss) return;  // no points yet
        // Adding less than a billionth of a loss, as a file may contain it, might not change it.
        const double least_range = std::max({1e-3, 1e-9 * std::abs(min_loss), 1e-9 * std::abs(max_loss)});
        const double distance = tick_distance(std::max(max_loss - min_loss, least_range), 6);
        low = std::floor(min_loss / distance) * distance;
        high = std::max(std::ceil(max_loss / distance) * distance, low + distance);
    }
    double x(double step) const { return left + step / last_step * (width - left - right); }
    double y(double loss) const {
        return height - bottom - (loss - low) / (high - low) * (height - top - bottom);
    }
};

std::string path_through(const Points& points, const Axes& axes, const char* style) {
    if (points.empty()) return {};
    std::string path = "<path fill=\"none\" " + std::string(style) + " d=\"";
    char command = 'M';
    for (const Point& point : points) {
        path +=
            formatted("%c%.1f %.1f", command, axes.x(static_cast<double>(point.step)), axes.y(point.loss));
        command = 'L';
    }
    return path + "\"/>\n";
}

std::string grid(const Axes& axes) {
    std::string svg;
    const double y_distance = tick_distance(axes.high - axes.low, 6);
    for (int i = 0; axes.low + i * y_distance <= axes.high + 1e-9 * y_distance; ++i) {
        const double loss = axes.low + i * y_distance, y = axes.y(loss);
        svg += formatted("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", left, y,
                         width - right, y);
        svg +=
            formatted("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>\n", left - 8, y + 4, loss);
    }
    const double x_distance = std::max(1.0, tick_distance(axes.last_step, 8));
    for (int i = 0; i * x_distance <= axes.last_step; ++i) {
        const double step = i * x_distance, x = axes.x(step);
        svg += formatted("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", x, top,
                         x, height - bottom);
        svg += formatted("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.0f</text>\n", x,
                         height - bottom + 18, step);
    }
    svg += formatted(
        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" stroke=\"#444\"/>\n", left,
        top, width - left - right, height - top - bottom);
    svg += formatted("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">step</text>\n",
                     (left + width - right) / 2, height - 14);
    svg += formatted(
        "<text transform=\"translate(18 %.1f) rotate(-90)\" text-anchor=\"middle\">"
        "loss (nats per token)</text>\n",
        (top + height - bottom) / 2);
    return svg;
}

std::string legend(const LossHistory& history) {
    double x = width - right - 240;
    std::string svg;
    const auto entry = [&](const char* color, const std::string& text) {
        svg += formatted(
            "<line x1=\"%.1f\" y1=\"26\" x2=\"%.1f\" y2=\"26\" stroke=\"%s\" stroke-width=\"3\"/>\n", x,
            x + 22, color);
        svg += formatted("<text x=\"%.1f\" y=\"30\">%s</text>\n", x + 28, text.c_str());
        x += 105;
    };
    entry(train_color, "training");
    if (!history.validation.empty())
        entry(val_color, formatted("validation %.4f", history.validation.back().loss));
    return svg;
}

std::string escaped(const std::string& text) {
    std::string safe;
    for (const char c : text) {
        switch (c) {
            case '<':
                safe += "&lt;";
                break;
            case '>':
                safe += "&gt;";
                break;
            case '&':
                safe += "&amp;";
                break;
            default:
                safe += c;
        }
    }
    return safe;
}

}  // namespace

std::string loss_svg(const LossHistory& history, const std::string& title) {
    const Axes axes(history);
    std::string svg = formatted(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" "
        "font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n",
        width, height, width, height);
    svg += formatted("<rect width=\"%.0f\" height=\"%.0f\" fill=\"white\"/>\n", width, height);
    svg += formatted("<text x=\"%.1f\" y=\"30\" font-size=\"15\">", left) + escaped(title) + "</text>\n";
    svg += grid(axes) + legend(history);
    svg += path_through(
        thinned(history.train), axes,
        formatted("stroke=\"%s\" stroke-width=\"1\" stroke-opacity=\"0.3\"", train_color).c_str());
    svg += path_through(thinned(smoothed(history.train)), axes,
                        formatted("stroke=\"%s\" stroke-width=\"2\"", train_color).c_str());
    svg += path_through(history.validation, axes,
                        formatted("stroke=\"%s\" stroke-width=\"1.5\"", val_color).c_str());
    for (const Point& point : history.validation)
        svg += formatted("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n",
                         axes.x(static_cast<double>(point.step)), axes.y(point.loss), val_color);
    return svg + "</svg>\n";
}

void write_loss_svg(const std::filesystem::path& path, const LossHistory& history, const std::string& title) {
    const std::string svg = loss_svg(history, title);
    with_file_name("picture", path, [&] { DurableFile::write(path, svg, DurableFile::Sync::none); });
}

}  // namespace gradtile
