// llama.cpp: a GGUF file.
#include <algorithm>
#include <filesystem>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/tools/formats/gguf_metadata.h>
#include <gradtile/tools/formats/gguf_writer.h>
#include <gradtile/tools/formats/internal/formats.h>
#include <gradtile/tools/formats/internal/model_export.h>

namespace gradtile {
namespace {

/// Says for which texts llama.cpp computes other ids from the metadata.
void note_text_of_gguf(ModelExport& model, const BytePairVocabulary& vocabulary) {
    const auto note = [&](const char* text) { model.note(text); };
    if (vocabulary.normalizer == std::vector<NormalizerStep>{UnicodeForm::nfc})
        note(
            "llama.cpp does not apply the tokenizer's normalizer NFC, so text in another Unicode "
            "form has other ids");
    if (vocabulary.metaspace && vocabulary.metaspace->prepend != Metaspace::Prepend::never)
        note(
            "llama.cpp puts a blank before each text and after each added token; the tokenizer puts none "
            "before a text that begins with one");
    const bool adds_blank_once = std::ranges::any_of(vocabulary.normalizer, [](const NormalizerStep& step) {
        const auto* const rules = std::get_if<SentencePieceStep>(&step);
        return rules && rules->adds_blank;
    });
    if (adds_blank_once &&
        std::ranges::any_of(vocabulary.added, [](const AddedToken& token) { return !token.special; }))
        note(
            "llama.cpp puts a blank after each added token, so text beside user-defined symbols "
            "has other ids");
    if (std::ranges::any_of(vocabulary.added, [](const AddedToken& token) {
            return token.lstrip || token.rstrip || token.single_word;
        }))
        note(
            "GGUF has no keys for lstrip, rstrip and single_word, so text beside such tokens may have "
            "other ids");
}

/// llama.cpp expects norms, biases and positions in float32, and norms that multiply by the weight itself.
Tensor gguf_vector(const ModelConfig& config, const WeightMapping& mapping, const Tensor& weights) {
    Tensor x = cast(Context(Device::cpu(), 1), weights, DType::f32);
    const bool adds_one =
        config.norm_offset && mapping.parameter.ends_with(".weight") && mapping.shape.rank() == 1;
    if (adds_one)
        for (std::int64_t i = 0; i < x.elements(); ++i) x.data<float>()[i] += 1.0f;
    return x;
}

}  // namespace

std::vector<std::string> export_gguf(ModelExport& model) {
    GgufFile file{
        .metadata = gguf_model_metadata(model.family(), model.config().model, model.dtype(), model.source())};
    const GgufMetadata tokenizer_metadata = gguf_tokenizer_metadata(
        model.tokenizer() ? &*model.tokenizer() : nullptr, model.config().model.vocabulary,
        {model.text_tokens(), model.turn_end(), model.chat_jinja()}, model.source());
    file.metadata.insert(file.metadata.end(), tokenizer_metadata.begin(), tokenizer_metadata.end());
    check(!exists(std::filesystem::symlink_status(model.out())), model.out(),
          ": exists; choose another --out");
    file.tensors = model.tensors(gguf_tensors(model.family().gguf),
                                 [&](const WeightMapping& mapping, const Tensor& weights) {
                                     return gguf_vector(model.config().model, mapping, weights);
                                 });
    std::ranges::move(gguf_rope_tensors(model.config().model), std::back_inserter(file.tensors));
    if (!model.encoding()) model.note_lost_tokenizer("GGUF");
    if (model.encoding()) note_text_of_gguf(model, model.encoding()->vocabulary());
    if (model.config().model.activation == Activation::gelu)
        model.note("llama.cpp computes GELU's tanh approximation, so logits differ by some 1e-3");
    write_gguf(model.out(), file);
    return {model.out()};
}

}  // namespace gradtile
