#include <gradtile/train/checkpoint/saved_algorithms.h>

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <support/temporary_directory.h>

#include <gradtile/train/checkpoint/checkpoint.h>

#include <support/error_message.h>
#include <support/json.h>

namespace gradtile {
namespace {

using nlohmann::json;
using test::message_of;
using testing::HasSubstr;

/// Numbers of all sizes, including the smallest and the largest.
std::vector<GemmAlgorithm> some_algorithms() {
    std::vector<GemmAlgorithm> list(3);
    std::uint64_t state = 1;
    for (GemmAlgorithm& one : list) {
        for (std::int64_t& number : one.problem)
            number = static_cast<std::int64_t>(state = 6364136223846793005u * state + 1442695040888963407u);
        for (std::uint64_t& number : one.algorithm)
            number = state = 6364136223846793005u * state + 1442695040888963407u;
    }
    list[0].problem[0] = std::numeric_limits<std::int64_t>::min();
    list[0].problem[26] = std::numeric_limits<std::int64_t>::max();
    list[1].algorithm = {};
    list[2].algorithm[7] = std::numeric_limits<std::uint64_t>::max();
    return list;
}

TEST(SavedAlgorithms, SurviveACheckpointUnchanged) {
    const test::TemporaryDirectory place;
    Checkpoint checkpoint;
    checkpoint.config = checkpoint.data = checkpoint.rng = JsonValue::object();
    checkpoint.meta.set("matrix_algorithms", algorithms_to_json(some_algorithms()));
    const std::filesystem::path path = place.path() / "a.h5";
    write_checkpoint(path, checkpoint);
    EXPECT_EQ(algorithms_from_json(read_checkpoint(path).meta["matrix_algorithms"]), some_algorithms());
    EXPECT_TRUE(algorithms_from_json(algorithms_to_json({})).empty());
}

TEST(SavedAlgorithms, InvalidEntriesAreRefusedByName) {
    const json sound = test::json_of(algorithms_to_json(some_algorithms()));
    const auto refusal = [](const json& value) {
        return message_of([&] { algorithms_from_json(test::json_value(value)); });
    };
    for (const json& value : {json(), json(3), json("x"), json::object()})
        EXPECT_THAT(refusal(value), HasSubstr("not an array")) << value;
    for (const json& entry : {json(), json(3), json::array(), json::object()}) {
        json list = sound;
        list[1] = entry;
        EXPECT_THAT(refusal(list), HasSubstr("entry 1 has no problem of 27 integers")) << entry;
    }
    for (const char* key : {"problem", "algorithm"}) {
        json shorter = sound, longer = sound, missing = sound;
        shorter[2][key].erase(0);
        longer[2][key].push_back(0);
        missing[2].erase(key);
        for (const json& list : {shorter, longer, missing})
            EXPECT_THAT(refusal(list), HasSubstr(concat("entry 2 has no ", key)));
        for (const json& number : {json(), json("1"), json(1.5), json(1e300), json(true), json::array()}) {
            json list = sound;
            list[0][key][4] = number;
            EXPECT_THAT(refusal(list), HasSubstr(concat("entry 0, ", key, ", number 4"))) << number;
        }
    }
    json negative = sound, large = sound;
    negative[0]["algorithm"][0] = -1;
    large[0]["problem"][0] = std::numeric_limits<std::uint64_t>::max();
    EXPECT_THAT(refusal(negative), HasSubstr("entry 0, algorithm, number 0"));
    EXPECT_THAT(refusal(large), HasSubstr("entry 0, problem, number 0"));
}

}  // namespace
}  // namespace gradtile
