#pragma once
/// The picture for a `gradtile lab` sweep: curves on logarithmic axes.
#include <string>
#include <vector>

namespace gradtile::cli {

struct LabCurve {
    std::string name;       ///< curves with the same name have the same color
    bool dashed = false;    ///< true for the backward pass
    std::vector<double> y;  ///< one positive number for each x
    double slope = 0;
};

struct LabPicture {
    std::string title, x_title, y_title;
    std::vector<double> x;  ///< positive numbers in increasing order
    std::vector<LabCurve> curves;
};

std::string lab_svg(const LabPicture& picture);

}  // namespace gradtile::cli
