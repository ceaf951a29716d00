#include <gradtile/train/run/run_callbacks.h>

#include <limits>

#include <gradtile/core/text/with_source.h>
#include <gradtile/train/config/optional_json.h>

namespace gradtile {

JsonValue to_json(const StepReport& report) {
    JsonValue saved = JsonValue::object({{"step", report.step},
                                         {"loss", report.loss},
                                         {"lr", report.lr},
                                         {"grad_norm", report.grad_norm},
                                         {"tokens_per_s", report.tokens_per_s},
                                         {"ms", report.ms},
                                         {"budget_used", json_of(report.budget_used)},
                                         {"not_finite", report.not_finite}});
    if (report.val_loss) saved.set("val_loss", *report.val_loss);
    return saved;
}

StepReport step_report_from(const JsonValue& object) {
    const auto number = [&](const char* key) {
        const JsonValue& value = object[key];
        return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.number();
    };
    return with_source("the report of a step", [&] {
        return StepReport{
            .step = object["step"].get<std::int64_t>(),
            .loss = number("loss"),
            .val_loss = object.contains("val_loss") ? std::optional(number("val_loss")) : std::nullopt,
            .lr = number("lr"),
            .grad_norm = number("grad_norm"),
            .tokens_per_s = number("tokens_per_s"),
            .ms = number("ms"),
            .budget_used = optional_of<double>(object, "budget_used"),
            .not_finite = object["not_finite"].get<std::string>()};
    });
}

}  // namespace gradtile
