#include <gradtile/train/checkpoint/saved_algorithms.h>

#include <utility>

#include <nlohmann/json.hpp>

namespace gradtile {
namespace {

using nlohmann::json;

constexpr const char* op = "matrix algorithms";

/// Reads `count` integers: signed ones for `problem`, unsigned ones for `algorithm`.
template <class Number, std::size_t count>
void read(std::array<Number, count>& numbers, const json& entry, const char* key, std::size_t index) {
    check(entry.is_object() && entry.contains(key) && entry[key].is_array() && entry[key].size() == count, op,
          ": entry ", index, " has no ", key, " of ", count, " integers");
    for (std::size_t i = 0; i < count; ++i) {
        const json& number = entry[key][i];
        const bool fits = number.is_number_unsigned() ? std::in_range<Number>(number.get<std::uint64_t>())
                                                      : number.is_number_integer() &&
                                                            std::in_range<Number>(number.get<std::int64_t>());
        check(fits, op, ": entry ", index, ", ", key, ", number ", i, " is not an integer of its range");
        numbers[i] = number.get<Number>();
    }
}

}  // namespace

json algorithms_to_json(const std::vector<GemmAlgorithm>& algorithms) {
    json list = json::array();
    for (const auto& [problem, algorithm] : algorithms)
        list.push_back({{"problem", problem}, {"algorithm", algorithm}});
    return list;
}

std::vector<GemmAlgorithm> algorithms_from_json(const json& value) {
    check(value.is_array(), op, ": not an array");
    std::vector<GemmAlgorithm> algorithms(value.size());
    for (std::size_t i = 0; i < algorithms.size(); ++i) {
        read(algorithms[i].problem, value[i], "problem", i);
        read(algorithms[i].algorithm, value[i], "algorithm", i);
    }
    return algorithms;
}

}  // namespace gradtile
