#include <gradtile/train/run/step_report.h>

#include <limits>

#include <nlohmann/json.hpp>

#include <gradtile/core/check.h>

namespace gradtile {

JsonValue to_json(const StepReport& report) {
    return nlohmann::json{{"step", report.step},
                          {"loss", report.loss},
                          {"lr", report.lr},
                          {"grad_norm", report.grad_norm},
                          {"tokens_per_s", report.tokens_per_s},
                          {"ms", report.ms},
                          {"not_finite", report.not_finite}};
}

StepReport step_report_from(const JsonValue& saved) {
    const nlohmann::json& object = *saved;
    const auto number = [&](const char* key) {
        const nlohmann::json& value = object.at(key);
        return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
    };
    try {
        return {.step = object.at("step").get<std::int64_t>(),
                .loss = number("loss"),
                .lr = number("lr"),
                .grad_norm = number("grad_norm"),
                .tokens_per_s = number("tokens_per_s"),
                .ms = number("ms"),
                .not_finite = object.at("not_finite").get<std::string>()};
    } catch (const nlohmann::json::exception& error) {
        throw Error(concat("the report of a step: ", error.what()));
    }
}

}  // namespace gradtile
