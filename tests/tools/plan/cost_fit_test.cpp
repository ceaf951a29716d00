#include <gradtile/tools/plan/cost_fit.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <support/temporary_directory.h>

namespace gradtile {
namespace {

using ::testing::HasSubstr;

Measurement step(const char* name, std::int64_t gpus, std::int64_t share, bool zero, TrainDType dtype) {
    Measurement m;
    m.config = preset(name);
    m.config.dtype = dtype;
    m.config.batch = share * gpus;
    m.config.micro_batch = share;
    m.config.zero = zero ? 1 : 0;
    m.gpus = gpus;
    return m;
}

/// Measurements that determine every constant.
std::vector<Measurement> timed() {
    std::vector<Measurement> all;
    for (const TrainDType dtype : {TrainDType::bf16, TrainDType::f32})
        for (const char* name : {"gpt2-124m", "gpt2-350m", "gpt2-774m"})
            for (const std::int64_t share : {1, 4, 16}) all.push_back(step(name, 1, share, false, dtype));
    for (Measurement& m : all)
        if (m.config.model.layers == 24) m.config.model.context = 256;  // attention has a different share
    for (const std::int64_t gpus : {2, 4})
        for (const bool zero : {false, true})
            all.push_back(step("gpt2-124m", gpus, 8, zero, TrainDType::bf16));
    for (const double bytes : {1e5, 1e7, 1e9}) {
        Measurement m;
        m.what = Timed::all_reduce;
        m.gpus = 4;
        m.bytes = bytes;
        all.push_back(m);
    }
    Measurement update = step("gpt2-124m", 1, 1, false, TrainDType::bf16);
    update.what = Timed::update;
    all.push_back(update);
    return all;
}

/// Measurements computed from the model must give back its constants. The steps' times determine the
/// constants through terms about 1e4 times smaller, so a 1e-12 error in a time is a 1e-8 error in a constant.
TEST(CostFit, FindsPlantedConstants) {
    const CostConstants shipped = h200_constants();
    CostConstants planted = shipped;
    double factor = 0.7;
    visit_constants(planted, [&](const char*, double& value, double, const char*) {
        value *= factor;
        factor += 0.08;
    });
    std::vector<Measurement> measurements = timed();
    for (Measurement& m : measurements) m.ms = predicted_ms(m, planted);

    const CostFit fit = fit_constants(measurements, shipped);
    EXPECT_TRUE(fit.undetermined.empty());
    std::vector<double> expected;
    visit_constants(planted,
                    [&](const char*, double value, double, const char*) { expected.push_back(value); });
    std::size_t i = 0;
    visit_constants(fit.constants, [&](const char* name, double value, double, const char*) {
        EXPECT_NEAR(value / expected[i++], 1, 1e-8) << name << " after " << fit.iterations << " iterations";
    });
}

TEST(CostFit, UndeterminedConstantsKeepTheirValuesAndAreNamed) {
    const CostConstants shipped = h200_constants();
    std::vector<Measurement> measurements = timed();
    std::erase_if(measurements,
                  [](const Measurement& m) { return m.gpus > 1 || m.config.dtype == TrainDType::f32; });
    for (Measurement& m : measurements) m.ms = 1.1 * predicted_ms(m, shipped);
    const CostFit fit = fit_constants(measurements, shipped);
    EXPECT_THAT(fit.undetermined, ::testing::ElementsAre("product_flops_f32", "attention_flops_f32",
                                                         "nvlink_bytes", "nvlink_latency", "contention"));
    EXPECT_DOUBLE_EQ(fit.constants.contention, shipped.contention);
    EXPECT_NEAR(fit.constants.product_flops, shipped.product_flops / 1.1, 1e-6 * shipped.product_flops);
}

TEST(CostFit, MeasurementsWithoutWeightDoNotCount) {
    const CostConstants shipped = h200_constants();
    std::vector<Measurement> measurements = timed();
    for (Measurement& m : measurements) m.ms = predicted_ms(m, shipped);
    measurements.front().ms *= 3;
    measurements.front().weight = 0;
    const CostFit fit = fit_constants(measurements, shipped);
    EXPECT_NEAR(fit.constants.product_flops, shipped.product_flops, 1e-8 * shipped.product_flops);
}

/// `gradtile plan --fit` prints, for this file, the constants that the program must contain, with four
/// digits.
TEST(CostFit, ShippedConstantsAreTheFitOfTheShippedMeasurements) {
    const std::vector<Measurement> measurements =
        read_measurements(GRADTILE_SOURCE_DIR "/bench/results/2026-11-21-h200-steps.jsonl");
    const CostConstants shipped = h200_constants();
    const CostFit fit = fit_constants(measurements, shipped);
    std::vector<double> fitted;
    visit_constants(fit.constants,
                    [&](const char*, double value, double, const char*) { fitted.push_back(value); });
    std::size_t i = 0;
    visit_constants(shipped, [&](const char* name, double value, double, const char*) {
        EXPECT_NEAR(value / fitted[i++], 1, 5e-4) << name;
    });
    // Compares only whole steps without recomputation, because the documented accuracy excludes models below
    // 100M parameters.
    for (const Measurement& m : measurements)
        if (m.what == Timed::step && m.weight > 0 && m.config.training.recompute == Recompute::none) {
            EXPECT_NEAR(predicted_ms(m, shipped) / m.ms, 1, 0.03) << description_of(m);
        }
}

TEST(CostFit, MeasurementsAreReadLineByLine) {
    const test::TemporaryDirectory place;
    const std::vector<Measurement> read = read_measurements(place.write(
        "measured.jsonl", R"({"what":"step","gpus":4,"ms":30.5,"weight":0.5,"note":"here",)"
                          R"("preset":"gpt2-124m","batch":64,"micro-batch":8,"zero":1,"dtype":"bf16"})"
                          "\n\n"
                          R"({"what":"all_reduce","gpus":2,"ms":1,"bytes":1048576,"bus_gb_per_s":1.05})"
                          "\n"
                          R"({"what":"broadcast","gpus":2,"ms":1,"bytes":4194304})"));
    ASSERT_EQ(read.size(), 3u);
    EXPECT_EQ(read[0].gpus, 4);
    EXPECT_EQ(read[0].weight, 0.5);
    EXPECT_EQ(read[0].config.zero, 1);
    EXPECT_EQ(description_of(read[0]), "here, 12 x 768, 16 x 1024 bf16, in 2, zero 1");
    EXPECT_EQ(read[1].what, Timed::all_reduce);
    EXPECT_EQ(description_of(read[1]), "1 MiB");
    EXPECT_EQ(read[1].weight, 0);  // smaller than any bucket
    EXPECT_EQ(read[2].weight, 1);
}

TEST(CostFit, InvalidLinesAreNamed) {
    const test::TemporaryDirectory place;
    const auto refused = [&](const std::string& line, const std::string& because) {
        const std::string path = place.write("measured.jsonl", line);
        try {
            read_measurements(path);
            FAIL() << line << " was accepted";
        } catch (const Error& error) {
            EXPECT_THAT(error.what(), HasSubstr(because));
            EXPECT_THAT(error.what(), HasSubstr(path));
        }
    };
    refused("{", ":1: not JSON");
    refused("[]", "expected an object");
    refused(R"({"ms":1})", "has no 'what'");
    refused(R"({"what":"stp","ms":1})", "'stp' is unknown");
    refused(R"({"what":"step","ms":0,"preset":"gpt2-124m"})", "ms: 0");
    refused(R"({"what":"step","ms":"1","preset":"gpt2-124m"})", "ms: \"1\" is a string");
    refused(R"({"what":"step","ms":1})", "no vocabulary");
    refused(R"({"what":"step","ms":1,"preset":"gpt2-124m","bach":3})", "'batch'");
    refused(R"({"what":"step","ms":1,"gpus":7,"preset":"gpt2-124m"})", "512 is not a multiple of the 7");
    refused(R"({"what":"all_reduce","ms":1,"gpus":1,"bytes":8})", "2 or more");
    refused(R"({"what":"all_reduce","ms":1,"gpus":18446744073709551615,"bytes":8})",
            "gpus: 18446744073709551615");
    refused(R"({"what":"step","ms":1,"gpus":4611686018427387904,"preset":"gpt2-124m"})",
            "4611686018427387904");
    refused(R"({"what":"step","ms":1,"gpus":0,"preset":"gpt2-124m"})", "gpus: 0");
    refused(R"({"what":"step","ms":1,"preset":"gpt2-124m","vocabulary":4294967296})", "vocabulary");
    refused(R"({"what":"all_reduce","ms":1,"gpus":2,"bytes":8,"batch":8})", "no settings");
    refused("", "holds no measurement");
    EXPECT_THROW(read_measurements((place / "absent").string()), Error);
}

}  // namespace
}  // namespace gradtile
