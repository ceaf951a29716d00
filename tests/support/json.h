#pragma once
/// nlohmann's JSON values in tests, which build and change them more easily than the library's JsonValue.
#include <nlohmann/json.hpp>

#include <gradtile/core/text/json_reader.h>

namespace gradtile::test {

inline JsonValue json_value(const nlohmann::json& value) {
    return parse_json(value.dump(), "test");
}

inline nlohmann::json json_of(const JsonValue& value) {
    return nlohmann::json::parse(value.dump());
}

}  // namespace gradtile::test
