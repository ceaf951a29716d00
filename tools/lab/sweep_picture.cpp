#include <gradtile/tools/lab/sweep_picture.h>

#include <algorithm>
#include <cmath>

#include <gradtile/core/text/formatted.h>

namespace gradtile::cli {
namespace {

constexpr double picture_width = 890, picture_height = 500;
constexpr double left = 80, right = 260, top = 44,
                 bottom = 56;  // margins around the plot, with the legend at the right
constexpr const char* colors[] = {"#c8471f", "#b08900", "#2f6fb5", "#2b8a57"};

/// Maps numbers to positions on the page, with logarithmic axes.
struct LogAxes {
    double min_x, max_x, min_y, max_y;

    explicit LogAxes(const LabPicture& picture)
        : min_x(picture.x.front()),
          max_x(picture.x.back()),
          min_y(picture.curves.front().y.front()),
          max_y(min_y) {
        for (const LabCurve& curve : picture.curves)
            for (const double y : curve.y) min_y = std::min(min_y, y), max_y = std::max(max_y, y);
        min_y = std::pow(10, std::floor(std::log10(min_y)));
        max_y = std::max(std::pow(10, std::ceil(std::log10(max_y))), 10 * min_y);
    }
    double x(double value) const {
        const double part = max_x > min_x ? std::log(value / min_x) / std::log(max_x / min_x) : 0.5;
        return left + part * (picture_width - left - right);
    }
    double y(double value) const {
        const double part = std::log(value / min_y) / std::log(max_y / min_y);
        return picture_height - bottom - part * (picture_height - top - bottom);
    }
};

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
    return formatted("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor) + text + "</text>\n";
}
std::string line_between(double x1, double y1, double x2, double y2, const char* style) {
    return formatted("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2, y2, style);
}

/// Returns the grid: a line at every x, and a line at every y that is a power of ten.
std::string grid_of(const LabPicture& picture, const LogAxes& axes) {
    const double plot_bottom = picture_height - bottom, plot_right = picture_width - right;
    std::string svg;
    for (const double value : picture.x) {
        svg += line_between(axes.x(value), top, axes.x(value), plot_bottom, "stroke=\"#ddd\"");
        svg += text_at(axes.x(value), plot_bottom + 18, "middle", formatted("%.0f", value));
    }
    for (double value = axes.min_y; value < 1.5 * axes.max_y; value *= 10) {
        svg += line_between(left, axes.y(value), plot_right, axes.y(value), "stroke=\"#ddd\"");
        svg += text_at(left - 8, axes.y(value) + 4, "end", formatted("%g", value));
    }
    svg += text_at((left + plot_right) / 2, picture_height - 14, "middle", picture.x_title);
    svg += formatted("<text transform=\"translate(18 %.1f) rotate(-90)\" text-anchor=\"middle\">",
                     (top + plot_bottom) / 2) +
           picture.y_title + "</text>\n";
    return svg;
}

std::string curve_of(const LabPicture& picture, const LabCurve& curve, const LogAxes& axes,
                     const std::string& stroke) {
    std::string path = "<path fill=\"none\" " + stroke + " d=\"";
    for (std::size_t i = 0; i < picture.x.size(); ++i)
        path += formatted("%c%.1f %.1f", i == 0 ? 'M' : 'L', axes.x(picture.x[i]), axes.y(curve.y[i]));
    return path + "\"/>\n";
}

}  // namespace

std::string lab_svg(const LabPicture& picture) {
    const LogAxes axes(picture);
    std::string svg = formatted(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
        "height=\"%.0f\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n",
        picture_width, picture_height, picture_width, picture_height);
    svg +=
        formatted("<rect width=\"%.0f\" height=\"%.0f\" fill=\"white\"/>\n", picture_width, picture_height);
    svg += text_at(left, 28, "start", picture.title) + grid_of(picture, axes);
    std::vector<std::string> names;
    double legend_y = top + 12;
    for (const LabCurve& curve : picture.curves) {
        const auto known = std::find(names.begin(), names.end(), curve.name);
        const auto index = static_cast<std::size_t>(known - names.begin());
        if (known == names.end()) names.push_back(curve.name);
        const std::string stroke =
            formatted("stroke=\"%s\" stroke-width=\"2\"%s", colors[index % std::size(colors)],
                      curve.dashed ? " stroke-dasharray=\"6 4\"" : "");
        svg += curve_of(picture, curve, axes, stroke);
        const double x = picture_width - right + 12;
        svg += line_between(x, legend_y - 4, x + 26, legend_y - 4, stroke.c_str());
        svg += text_at(
            x + 32, legend_y, "start",
            curve.name + (curve.dashed ? " backward" : " forward") + formatted(", %.2f", curve.slope));
        legend_y += 20;
    }
    return svg + "</svg>\n";
}

}  // namespace gradtile::cli
