#include <gradtile/train/checkpoint/saved_algorithms.h>

namespace gradtile {
namespace {

constexpr const char* op = "matrix algorithms";

/// Reads `count` integers: signed ones for `problem`, unsigned ones for `algorithm`.
template <class Number, std::size_t count>
void read(std::array<Number, count>& numbers, const JsonValue& entry, const char* key, std::size_t index) {
    check(entry.contains(key) && entry[key].is_array() && entry[key].size() == count, op, ": entry ", index,
          " has no ", key, " of ", count, " integers");
    for (std::size_t i = 0; i < count; ++i) {
        const JsonValue& number = entry[key][i];
        check(number.fits<Number>(), op, ": entry ", index, ", ", key, ", number ", i,
              " is not an integer of its range");
        numbers[i] = number.get<Number>();
    }
}

}  // namespace

JsonValue algorithms_to_json(const std::vector<GemmAlgorithm>& algorithms) {
    JsonValue list = JsonValue::array();
    for (const auto& [problem, algorithm] : algorithms)
        list.push_back(
            JsonValue::object({{"problem", JsonValue::Array(problem.begin(), problem.end())},
                               {"algorithm", JsonValue::Array(algorithm.begin(), algorithm.end())}}));
    return list;
}

std::vector<GemmAlgorithm> algorithms_from_json(const JsonValue& value) {
    check(value.is_array(), op, ": not an array");
    std::vector<GemmAlgorithm> algorithms(value.size());
    for (std::size_t i = 0; i < algorithms.size(); ++i) {
        read(algorithms[i].problem, value[i], "problem", i);
        read(algorithms[i].algorithm, value[i], "algorithm", i);
    }
    return algorithms;
}

}  // namespace gradtile
